"""The plain values that decisions are made with. `watcher.settings` builds them from the configuration.

Rules of this file: numbers and names only, units in the names, defaults as shipped. A default that comes
from a measurement says from which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from watcher.core.job import JsonObject


@dataclass(frozen=True, slots=True)
class ArrivalPolicy:
    """When a file counts as complete, and how often the inbox is listed."""

    quiet_s: float = 1.0
    """How long a fingerprint must stay the same where nothing better proves that the writer is done."""
    network_quiet_factor: float = 3.0
    """So much longer on a network file system, where a writer's pauses are the network's too."""
    rescan_s: float = 30.0
    rescan_share: float = 0.05
    """A listing that is dear is made rarer, so that listing takes at most this share of the time."""
    burst_rescan_s: float = 0.2
    """The least time between two listings, however loud the source of events is."""
    empty_warn_s: float = 600.0
    """A file of 0 bytes is told of once after this time."""
    orphan_notice_s: float = 60.0
    """A mask without a picture is told of once after this time."""
    window: int = 64
    """So many files are looked at, hashed or in line at one time, the others wait in the backlog. Enough to
    keep a worker busy while the next are hashed (four full batches); a new arrival waits for these only."""
    window_once: int = 2048
    """As `window` with `once`, where a process serves all that is at hand: its start is to be paid rarely."""
    young_s: float = 60.0
    """A file without an end is waited for until its last change is this long ago; then it has failed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named rule: which files, where their marks come from, how the result is written."""

    name: str = "default"
    match: tuple[str, ...] = ("**",)
    marks: tuple[str, ...] = ("mask", "marked_copy", "sidecar")
    """Where its pictures' marks come from; the first that yields one wins."""
    grow_px: int | None = None
    """None: max(4 px, 0.5 % of the long side), chosen by the worker."""
    invert: bool = False
    """Mask files are black where something is to go."""
    colour: str = "#FF00FF"
    """What strokes are painted in, where `marks` has `colour`."""
    regions: tuple[JsonObject, ...] = ()
    """Boxes and polygons (`watcher.regions.Region` says of what shape), where `marks` has `regions`."""
    region_mask: str | None = None
    """The path of a mask for all of its pictures, likewise."""
    unmarked: Literal["hold", "copy"] = "hold"
    orphan_masks: Literal["wait", "picture"] = "wait"
    """What a file with a mask's name is while no picture has it: a mask that waits, or a picture."""
    quality: int | None = None
    """None: the source's own."""
    keep_metadata: bool = True


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """What goes to the model together."""

    max_batch: int = 16
    max_file_bytes: int = 256_000_000
    """Limit of the sum of the files' sizes: pixels are not known before the worker has looked."""
    linger_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """The resident worker's life."""

    start_timeout_s: float = 120.0
    """From the start of the process to the end of its self-test."""
    ping_s: float = 10.0
    """An idle worker is asked so often whether its thread is free."""
    pong_s: float = 5.0
    """It has so long to answer."""
    drain_s: float = 25.0
    kill_s: float = 5.0
    """A killed process that does not end for so long is told of as an error."""
    backoff_first_s: float = 0.5
    backoff_max_s: float = 60.0
    healthy_s: float = 60.0
    """So long ready, and one good batch: the backoff starts over."""
    breaker_crashes: int = 5
    breaker_window_s: float = 120.0
    breaker_open_s: float = 60.0
    breaker_open_max_s: float = 900.0
    recycle_items: int | None = None
    recycle_age_s: float | None = None
    recycle_growth_bytes: int | None = 2_147_483_648
    """Beyond what it used when it was warm. One picture's working memory is below 1 GB and is given back."""
    recycle_files: int = 256
    """Open descriptors beyond what it had when it was warm."""
    scarce_bytes: int = 536_870_912
    """With so little memory left, a worker that has grown by half as much is recycled too."""
    lazy: bool = False
    """Start the worker with the first job instead of with the service."""


@dataclass(frozen=True, slots=True)
class ColdPolicy:
    """The one-shot path."""

    enabled: bool = True
    max_parallel: int = 1
    first_estimate_s: float = 10.0
    """What a cold job takes, until a start was measured; and its work alone, until a picture was served."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a job is given up."""

    max_solo_faults: int = 2
    foreign_attempts: int = 6
    """After so many dispatches a signal from outside is held against a job like any other end."""
    engine_attempts: int = 2
    """How often an engine error is tried before the job has failed."""
    publish_retry_s: float = 5.0
    publish_retry_max_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Policy:
    """All of it."""

    after: Literal["keep", "archive", "delete"] = "keep"
    engine: str = "auto"
    device: str = "auto"
    """As configured: for the record's `configured` columns where no worker was asked."""
    once: bool = False
    """Work off what is there in one-shot processes, then stop."""
    arrivals: ArrivalPolicy = ArrivalPolicy()
    recipes: tuple[Recipe, ...] = field(default_factory=lambda: (Recipe(),))
    batching: BatchPolicy = BatchPolicy()
    worker: WorkerPolicy = WorkerPolicy()
    cold: ColdPolicy = ColdPolicy()
    retry: RetryPolicy = RetryPolicy()
    summary_s: float | None = 3600.0
    """What was done is told so long after the first of it; None: never."""
