"""The messages between the service and its workers: one JSON object a line, versioned.

Rules of this file:
- A message is a frozen struct with a `type` tag. The first message in each direction (`Configure`,
  `Hello`) carries `protocol`; a peer that reads another number refuses to go on.
- Unknown fields are ignored (an older peer may read a newer one's lines); a missing field, a wrong type
  or an unknown tag is a `WireError`, never a guess.
- Times are nanoseconds of the machine's monotonic clock, which both processes share; durations end in
  `_ns`. A time never leaves the machine it was taken on.
- Paths are strings with surrogate escapes (PEP 383), so a name that is not UTF-8 survives: the lines are
  pure ASCII and `json` writes a lone surrogate as an escape.
- Messages carry paths and facts, never pixels.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from watcher.regions import Region

PROTOCOL = 3
_MAX_BITS = 63
"""Of an integer: the service calculates with them, and a worker may write anything."""

Phase = Literal["read", "decode", "mask", "preprocess", "inference", "composite", "encode"]
MarkSource = Literal["mask", "marked_copy", "sidecar", "colour", "alpha", "regions"]
MarkFileKind = Literal["mask", "marked_copy", "sidecar"]
PictureFormat = Literal["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "HEIC", "AVIF"]
Outside = Literal["identical", "blocks", "reencoded"]
"""What is true of the pixels outside the grown mask: all bit-identical; bit-identical but for the JPEG blocks
that the mask touches, and one pixel beside them where chroma is sampled coarsely; or all encoded again."""
FailureCode = Literal[
    "undecodable",  # complete, and no decoder reads it
    "unsupported",  # recognised, and deliberately not served (RAW, animation, multi-page, ...)
    "too_large",  # over the pixel or byte limit
    "mask_undecodable",
    "mask_mismatch",  # another aspect than the picture
    "mask_covers_all",  # nothing is left to fill from
    "marks_ambiguous",  # strokes of the marker colour, in a picture that has that colour by nature
    "changed",  # the bytes read are not the bytes that were dispatched
    "vanished",  # gone before it was read
    "no_space",  # staging is full: not the picture's fault
    "device_memory",  # one crop alone does not fit into the accelerator's memory; the process ends after it
    "engine",  # the engine raised or returned nonsense; the process lives on
]


class WireError(ValueError):
    """A line that is not a message of this protocol."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Common shape of all messages."""


# --- service to worker -------------------------------------------------------------------------------------


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration asks for; what runs is reported back in `EngineFacts` and `DeviceFacts`."""

    name: str = "auto"
    device: str = "auto"
    threads: int | None = None
    deterministic: bool = False
    weights_path: str | None = None
    weights_sha256: str | None = None
    model_cache_dir: str | None = None
    """Where verified weights are looked for when `weights_path` is None."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what one picture may ask of a worker."""

    max_pixels: int = 200_000_000
    max_file_bytes: int = 1_000_000_000
    crop_pixels: int = 1_048_576
    """Upper bound of the pixels of one crop that goes to the model at native scale."""
    batch_pixels: int = 200_000_000
    """A batch ends early once the pictures filled in it have so many pixels: what is left is given back."""


class Configure(_Message, frozen=True, kw_only=True, tag="configure"):
    """First message to a worker."""

    protocol: int = PROTOCOL
    incarnation: int
    parent_pid: int
    spawned_ns: int
    """When the service called exec: `process_start` is counted from here."""
    engine: EngineChoice
    limits: Limits = Limits()
    one_shot: bool = False
    """Cold path: serve the batches that are on the pipe, then exit at its end."""


class Marking(msgspec.Struct, frozen=True, kw_only=True):
    """How the pictures of a recipe are marked."""

    sources: tuple[MarkSource, ...] = ("mask",)
    """The first that yields a mark wins."""
    grow_px: int | None = None
    """None: max(4 px, 0.5 % of the long side)."""
    invert: bool = False
    """Mask files are black where something is to go."""
    colour: str = "#FF00FF"
    """What strokes of the source `colour` are painted in."""
    regions: tuple[Region, ...] = ()
    region_mask: str | None = None
    """A mask image for all of the recipe's pictures. Not one of the job's files: it has no hash here."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the worker sees it."""

    job: str
    source: str
    sha256: str
    """Of the picture's settled bytes; other bytes on disk answer `changed`."""
    mark_file: str | None = None
    mark_file_kind: MarkFileKind | None = None
    mark_file_sha256: str | None = None
    staging: str
    """Folder for the result; the worker creates `<staging>/<stage_name>` and nothing else."""
    stage_name: str
    recipe: str
    marking: Marking = Marking()
    unmarked: Literal["hold", "copy"] = "hold"
    quality: int | None = None
    """None: the source's own quantisation tables."""
    keep_metadata: bool = True


class RunBatch(_Message, frozen=True, kw_only=True, tag="run_batch"):
    """Work for the model; items are served in order and reported one by one."""

    batch: str
    sent_ns: int
    items: tuple[Item, ...]


class Ping(_Message, frozen=True, kw_only=True, tag="ping"):
    """Answered by `Pong` from the thread that works, so it proves that this thread is free."""

    number: int


class Exit(_Message, frozen=True, kw_only=True, tag="exit"):
    """Finish the running batch, then end with exit code 0."""


class PreviewRequest(_Message, frozen=True, kw_only=True, tag="preview"):
    """The only message to `python -m watcher.worker.preview`: show what would go, fill nothing."""

    protocol: int = PROTOCOL
    source: str
    mark_files: tuple[tuple[MarkFileKind, str], ...] = ()
    """Kind and path, by precedence."""
    marking: Marking = Marking()
    limits: Limits = Limits()
    output: str
    """Where the picture with the overlay is written; its suffix says in which format."""


# --- worker to service -------------------------------------------------------------------------------------


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for and what is loaded."""

    configured: str
    actual: str
    reason: str | None = None
    """Why `actual` is not `configured` (or, for `auto`, why it was chosen)."""
    model_sha256: str | None = None


class DeviceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Where the work was seen to happen. A fact that a device cannot give is None."""

    parameters: str | None = None
    output: str | None = None
    kernel_time_share: dict[str, float] | None = None
    fallback_ops: tuple[str, ...] | None = None


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Configured, available and actual are three columns; only `evidence` decides the third."""

    configured: str
    available: tuple[str, ...]
    actual: str
    reason: str | None = None
    evidence: DeviceEvidence = DeviceEvidence()


class StartSegments(msgspec.Struct, frozen=True, kw_only=True):
    """The time chain of a start, from exec to ready, without gaps but for `unattributed`."""

    process_start_ns: int = 0
    import_ns: int = 0
    device_probe_ns: int = 0
    model_read_ns: int = 0
    model_load_ns: int = 0
    warmup_ns: int = 0
    unattributed_ns: int = 0
    """What is left of the time from the program's first line to readiness."""


class WorkSegments(msgspec.Struct, frozen=True, kw_only=True):
    """The time chain of one item inside the worker, from `started_ns` to `finished_ns`."""

    read_ns: int = 0
    decode_ns: int = 0
    mask_ns: int = 0
    preprocess_ns: int = 0
    inference_ns: int = 0
    composite_ns: int = 0
    encode_ns: int = 0


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one picture and done to it."""

    format: PictureFormat
    width: int
    height: int
    hole_px: int = 0
    """Pixels inside the grown mask."""
    crops: int = 0
    model_px: int = 0
    """Pixels that went to the model, over all crops, padding included."""
    outside: Outside | None = None
    dropped_metadata: tuple[str, ...] = ()


class ItemTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Monotonic instants that tie the worker's chain to the service's."""

    batch_received_ns: int
    started_ns: int
    finished_ns: int
    """Just before the report is written to the pipe."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """First message from a worker, before anything heavy is imported."""

    protocol: int = PROTOCOL
    pid: int
    version: str


class Warming(_Message, frozen=True, kw_only=True, tag="warming"):
    """The model is loaded; the warm-up begins, and then the golden self-test."""


class Ready(_Message, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded and warm, and has filled the golden picture as it should."""

    engine: EngineFacts
    device: DeviceFacts
    segments: StartSegments
    ready_ns: int
    rss_bytes: int
    model_loads: int
    """Counted at the call that loads weights, not inferred."""
    open_files: int | None = None
    """Descriptors of the process, where the system tells."""
    golden_px: int = 0
    """What the warm engine had to do for the golden picture, counted as for `inference`, and its time."""
    golden_ns: int = 0


class BatchStarted(_Message, frozen=True, kw_only=True, tag="batch_started"):
    """The batch was read from the pipe."""

    batch: str
    received_ns: int


class ItemStarted(_Message, frozen=True, kw_only=True, tag="item_started"):
    """From here on a crash is this item's until its report, or the next item's start."""

    batch: str
    job: str


class ItemProgressed(_Message, frozen=True, kw_only=True, tag="item_progressed"):
    """One phase or crop of the item is over: the only proof of life that counts.

    How long the next one may take goes by how much it has to do. `units` are: bytes of the files for `read`,
    bytes of the decoded pixels for `decode`, the picture's pixels for `mask`, `preprocess` and `composite`,
    the same weighted by what its container costs for `encode`, and for `inference` what the engine has to do
    for the one next crop, as it measures work itself. 0 where there is nothing to do. Formats differ too much
    for one measure: `decode` and `encode` tell theirs.
    """

    batch: str
    job: str
    phase: Phase
    """What is over."""
    spent_ns: int = 0
    """Since the item's last report."""
    next: Phase | None = None
    """What begins."""
    units: int = 0
    """Of what begins."""
    format: PictureFormat | None = None
    """Of the picture, once it is known."""
    crop: int | None = None


class ItemDone(_Message, frozen=True, kw_only=True, tag="item_done"):
    """A result lies in staging, written and closed, not yet synced to disk."""

    batch: str
    job: str
    outcome: Literal["done", "unchanged"]
    """`unchanged`: the staged bytes are the source's own."""
    reason: str | None = None
    """For `unchanged`: why nothing was filled (`the mask is empty ...`, `nothing marked`)."""
    marks: MarkSource | None
    sha256_in: str
    mark_file_sha256_in: str | None = None
    sha256_out: str
    size_bytes: int
    image: ImageFacts
    engine: EngineFacts
    device: DeviceFacts
    segments: WorkSegments
    times: ItemTimes
    rss_bytes: int
    model_loads: int | None = None
    """How often the process has loaded a model so far, by its own count."""


class ItemHeld(_Message, frozen=True, kw_only=True, tag="item_held"):
    """Looked at, and nothing marked. Not an attempt."""

    batch: str
    job: str
    reason: str | None = None
    """What was looked at in vain (`the marked copy shows no difference`), if it is more than the picture."""
    image: ImageFacts
    segments: WorkSegments
    times: ItemTimes


class ItemIncomplete(_Message, frozen=True, kw_only=True, tag="item_incomplete"):
    """The file has no end yet (end marker missing, zero tail, cut stream). Not an attempt while young."""

    batch: str
    job: str
    reason: str
    segments: WorkSegments
    times: ItemTimes


class ItemFailed(_Message, frozen=True, kw_only=True, tag="item_failed"):
    """Refused, with a reason and a remedy in plain words."""

    batch: str
    job: str
    code: FailureCode
    reason: str
    remedy: str
    image: ImageFacts | None = None
    segments: WorkSegments
    times: ItemTimes


class BatchDone(_Message, frozen=True, kw_only=True, tag="batch_done"):
    """The worker is free. Every item was reported on, or is given back (see `Limits.batch_pixels`)."""

    batch: str
    rss_bytes: int
    open_files: int | None = None
    given_back: tuple[str, ...] = ()
    """Jobs that were not begun."""


class Pong(_Message, frozen=True, kw_only=True, tag="pong"):
    """Answer to `Ping`."""

    number: int


class Fatal(_Message, frozen=True, kw_only=True, tag="fatal"):
    """Last words: why the worker is about to exit with a code other than 0."""

    exit_code: int
    reason: str
    remedy: str


class CropFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A box that would go to the model, on the picture as a person sees it."""

    left: int
    top: int
    width: int
    height: int
    scale: float
    """1.0: at its own size; below: it would be seen that much smaller."""


class Previewed(_Message, frozen=True, kw_only=True, tag="previewed"):
    """What would go. Sizes are of the picture as a person sees it."""

    format: PictureFormat
    width: int
    height: int
    marks: MarkSource | None
    """None: nothing is marked, and nothing was written."""
    mark_file: str | None = None
    """The file that the mark is from, if it is from one."""
    notes: tuple[str, ...] = ()
    mark_px: int = 0
    hole_px: int = 0
    """Pixels of the grown mark."""
    grow_px: int = 0
    """By how many pixels it was grown."""
    crops: tuple[CropFacts, ...] = ()
    output: str | None = None


class PreviewRefused(_Message, frozen=True, kw_only=True, tag="preview_refused"):
    """The picture or its mark cannot be served: what the service would say of it."""

    code: FailureCode | Literal["incomplete", "not_written"]
    reason: str
    remedy: str


ToWorker = Configure | RunBatch | Ping | Exit
FromWorker = (
    Hello
    | Warming
    | Ready
    | BatchStarted
    | ItemStarted
    | ItemProgressed
    | ItemDone
    | ItemHeld
    | ItemIncomplete
    | ItemFailed
    | BatchDone
    | Pong
    | Fatal
)

EXIT_OK = 0
EXIT_INTERNAL = 1
"""A bug of ours, or a start that failed: as Python itself leaves after an uncaught exception."""
EXIT_PARENT_GONE = 70
EXIT_RECYCLE = 75
"""The process is used up, and says so: a fresh one is wanted. No crash."""
EXIT_STICKY_DEVICE = 76
EXIT_CONFIGURATION = 78


def encode(message: ToWorker | FromWorker | PreviewRequest | Previewed | PreviewRefused) -> bytes:
    """Return the message as one ASCII line that ends in a newline."""
    return json.dumps(msgspec.to_builtins(message), separators=(",", ":")).encode("ascii") + b"\n"


def decode_to_worker(line: bytes) -> ToWorker:
    """Read one line from the service.

    Raises:
        WireError: the line is not a message to a worker.
    """
    message: ToWorker = _decode(line, ToWorker)
    return message


def decode_from_worker(line: bytes) -> FromWorker:
    """Read one line from a worker.

    Raises:
        WireError: the line is not a message from a worker.
    """
    message: FromWorker = _decode(line, FromWorker)
    return message


def decode_preview_request(line: bytes) -> PreviewRequest:
    """Read the question of a preview.

    Raises:
        WireError: the line is none.
    """
    request: PreviewRequest = _decode(line, PreviewRequest)
    return request


def decode_preview(line: bytes) -> Previewed | PreviewRefused:
    """Read the answer of a preview.

    Raises:
        WireError: the line is none.
    """
    answer: Previewed | PreviewRefused = _decode(line, Previewed | PreviewRefused)
    return answer


def _decode(line: bytes, kind: Any) -> Any:  # noqa: ANN401 - the callers give it its type back
    try:
        return msgspec.convert(json.loads(line, parse_int=_int), type=kind)
    except (ValueError, RecursionError) as error:  # msgspec.ValidationError is a ValueError
        raise WireError(f"not a message of protocol {PROTOCOL}: {error}; line: {line[:200]!r}") from error


def _int(digits: str) -> int:
    number = int(digits)
    if number.bit_length() > _MAX_BITS:
        raise ValueError(f"{digits[:20]}... is too large a number")
    return number
