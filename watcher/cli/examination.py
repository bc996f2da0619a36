"""`watcher doctor`: what the service depends on, fact by fact, with a remedy for each that is wrong.

Rules of this file: a fact is `ok` (or merely a fact), `warning` (works, but not as one might think) or
`problem` (the service will not run as configured). A broken configuration is one more fact, not the end.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from watcher import __version__, settings
from watcher.adapters import environment, folders
from watcher.adapters.filesystems import file_system_type, is_network
from watcher.adapters.lock import owner_of
from watcher.adapters.state_owner import check_owner
from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from watcher.cli.reports import Report
    from watcher.settings import Settings

SCHEMA: Final = 1
LOW_SPACE_BYTES: Final = 500_000_000
PACKAGES: Final = ("watchdog", "structlog", "pydantic", "pydantic-settings", "msgspec", "filelock", "numpy",
    "pillow", "opencv-python-headless", "pypatchmatch", "psutil")  # fmt: skip
LAMA_PACKAGES: Final = ("torch", "simple-lama-inpainting")
HEIC_PACKAGE: Final = "pillow-heif"
WEIGHTS_BYTES: Final = {205_803_670: "the published weights", 205_669_692: "Sanster's export"}
MANY_FOLDERS: Final = 100_000

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that was looked at."""

    topic: str
    name: str
    value: str
    level: Level = "ok"
    remedy: str | None = None


def examine(config: Path | None, state_dir: Path | None, *, probe: bool) -> Report:
    """Look at everything.

    Args:
        config: the configuration file; None for the default one.
        state_dir: instead of the configured one.
        probe: also ask PyTorch for its devices, which takes seconds.
    """
    facts = [*_program()]
    chosen, about = _configuration(config, state_dir)
    facts += about
    if chosen is not None:
        facts += [*_folders(chosen), *_limits(chosen), *_service(chosen)]
    facts += [*_packages(chosen), *_weights(chosen), *_devices(chosen, probe=probe)]
    return {
        "schema": SCHEMA,
        "problems": sum(fact.level == "problem" for fact in facts),
        "facts": [asdict(fact) for fact in facts],
    }


def _program() -> Iterator[Fact]:
    yield Fact("program", "watcher", __version__)
    yield Fact("program", "python", f"{sys.version.split()[0]} ({sys.executable})")
    yield Fact("program", "system", sys.platform)


def _configuration(config: Path | None, state_dir: Path | None) -> tuple[Settings | None, list[Fact]]:
    try:
        chosen = settings.load(config, state_dir=state_dir)
    except settings.ConfigurationError as error:
        return None, _problems("configuration", error)
    facts = [Fact("configuration", "file", str(chosen.config_file or "none: environment and defaults"))]
    try:
        settings.check_folders(chosen)
        settings.check_access(chosen)
    except settings.ConfigurationError as error:
        facts += _problems("folders", error)
    return chosen, facts


def _problems(topic: str, error: settings.ConfigurationError) -> list[Fact]:
    return [Fact(topic, found.where, found.what, "problem", found.remedy) for found in error.problems]


def _folders(chosen: Settings) -> Iterator[Fact]:
    named = [("inbox", chosen.inbox), ("outbox", chosen.outbox), ("state_dir", chosen.state_dir)]
    if chosen.after == "archive" and chosen.archive is not None:
        named.append(("archive", chosen.archive))
    for name, path in named:
        yield _folder(name, path)
    try:
        check_owner(chosen.state_dir, inbox=chosen.inbox, outbox=chosen.outbox)
    except RemediableError as error:
        yield Fact("folders", "state_dir", str(error), "problem", error.remedy)


def _folder(name: str, path: Path) -> Fact:
    kind, free = file_system_type(path), environment.free_bytes(path)
    told = [str(path), *([kind] if kind else []), *([] if free is None else [f"{free / 1e9:.1f} GB free"])]
    value = ", ".join(told)
    if name == "state_dir" and is_network(path):
        return Fact("folders", name, value, "problem", "the journal needs a local disk: set state_dir to one")
    if free is not None and free < LOW_SPACE_BYTES:
        return Fact("folders", name, value, "warning", "free some space: results wait while the disk is full")
    missing = folders.unusable(path, write=False) if name == "state_dir" else None
    return Fact(
        "folders", name, f"{value}, made at the first start" if missing == "does not exist" else value
    )


def _limits(chosen: Settings) -> Iterator[Fact]:
    if chosen.arrivals.observer == "native" and is_network(chosen.inbox):
        yield Fact("limits", "notifications", "a network file system sends none", "warning",
            'set arrivals.observer to "auto" or "polling"')  # fmt: skip
    limits = environment.inotify_limits()
    watches = limits.get("max_user_watches")
    if watches is not None and chosen.arrivals.recursive:
        count = environment.folder_count(chosen.inbox, MANY_FOLDERS)
        enough = count < watches
        yield Fact(
            "limits",
            "fs.inotify.max_user_watches",
            f"{watches}, for {count} folders of the inbox",
            "ok" if enough else "warning",
            None
            if enough
            else "the inbox will be polled; raise it: sysctl fs.inotify.max_user_watches=524288",
        )
    for name in ("max_user_instances", "max_queued_events"):
        if name in limits:
            yield Fact("limits", f"fs.inotify.{name}", str(limits[name]))


def _service(chosen: Settings) -> Iterator[Fact]:
    owner = owner_of(chosen.state_dir)
    yield Fact("service", "running", "no" if owner is None else f"yes, pid {owner.pid or 'unknown'}")


def _packages(chosen: Settings | None) -> Iterator[Fact]:
    for name, version in environment.package_versions(PACKAGES).items():
        if version is None:
            yield Fact("packages", name, "absent", "problem", "install watcher again")
        else:
            yield Fact("packages", name, version)
    heic = environment.package_versions((HEIC_PACKAGE,))[HEIC_PACKAGE]
    absent = "absent: HEIC pictures are refused until you run: pip install pillow-heif"
    yield Fact("packages", HEIC_PACKAGE, absent if heic is None else heic)
    needed = chosen is not None and chosen.engine.name == "lama"
    for name, version in environment.package_versions(LAMA_PACKAGES).items():
        if version is not None:
            yield Fact("packages", name, version)
        elif needed:
            yield Fact(
                "packages", name, "absent", "problem", "the README says how to install the lama engine"
            )
        else:
            yield Fact("packages", name, "absent: the lama engine cannot run, patchmatch needs nothing")


def _weights(chosen: Settings | None) -> Iterator[Fact]:
    if chosen is None:
        return
    needed = chosen.engine.name == "lama"
    source = chosen.model.source_path
    if source is not None:
        yield _weights_file(source, pinned=chosen.model.sha256 is not None)
        return
    cached = sorted(chosen.model.cache_dir.glob("*.pt"))
    for file in cached:
        yield _weights_file(file, pinned=chosen.model.sha256 is not None)
    if not cached:
        yield Fact(
            "weights",
            "lama",
            f"none in {chosen.model.cache_dir}",
            "problem" if needed else "ok",
            "set model.source or LAMA_MODEL to a file; the README says where it is published"
            if needed
            else None,
        )


def _weights_file(file: Path, *, pinned: bool) -> Fact:
    try:
        size_bytes = file.stat().st_size
    except OSError as error:
        return Fact("weights", str(file), f"cannot be read: {error.strerror}", "problem", "mend model.source")
    known = WEIGHTS_BYTES.get(size_bytes)
    if known or pinned:
        what = known or "checked against model.sha256 at the start"
        return Fact("weights", str(file), f"{size_bytes} bytes: {what}")
    remedy = "a file that is not one of the two known needs its hash as model.sha256"
    return Fact("weights", str(file), f"{size_bytes} bytes: not a known size", "warning", remedy)


def _devices(chosen: Settings | None, *, probe: bool) -> Iterator[Fact]:
    yield Fact("devices", "cpus", environment.cpus())
    seen = environment.graphics_devices()
    yield Fact("devices", "accelerators", ", ".join(seen) or "none seen")
    if chosen is not None:
        wants_cuda = chosen.engine.device.startswith("cuda")
        blind = wants_cuda and not seen
        yield Fact(
            "devices",
            "configured",
            chosen.engine.device,
            "warning" if blind else "ok",
            "the system shows no such device: see its driver, or set engine.device" if blind else None,
        )
    if probe:
        answer = environment.torch_devices()
        if "error" in answer:
            yield Fact(
                "devices", "torch sees", f"nothing: {answer['error']}", "warning", "see the package torch"
            )
        else:
            yield Fact("devices", "torch sees", ", ".join(answer["devices"]))
