"""Finds the weights file and proves what it is before anything opens it.

Rules of this file:
- A file is good if its sha256 is one we know, or the one that the configuration names; a name proves nothing
  (two different files circulate as `big-lama.pt`).
- The size is checked at every start. The hash is taken once per file as it lies on disk: `verified.json` in
  the cache folder remembers it by path, device, inode, size, mtime and ctime. That is as safe as the file
  system: every write moves the ctime, which no program can set; a file that changed within the last
  seconds is never remembered, since a second write in the same tick would not show. What this does not
  see is a disk that rots silently; delete `verified.json` to have everything hashed again.
- Nothing is downloaded, moved, repaired or deleted here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watcher.worker.engines.protocol import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from watcher.wire import EngineChoice

ENVIRONMENT_VARIABLE = "LAMA_MODEL"
"""Read by simple-lama-inpainting itself; honoured here so that an existing set-up keeps working."""

_MEMORY_NAME = "verified.json"
_MEMORY_MAX_FILES = 16
_SETTLED_AFTER_S = 3.0
"""Coarser than the time stamps of any file system in use (FAT: 2 s)."""

_HOW_TO_GET = (
    "Download big-lama.pt (205,803,670 bytes) from release v0.1.0 of "
    "github.com/enesmsahin/simple-lama-inpainting, then name"
    f" the file as `source` under `[model]` in the configuration or in {ENVIRONMENT_VARIABLE}."
)


class WeightsMissingError(EngineUnavailableError):
    """There is no weights file at any of the places where one may lie."""


class WeightsRejectedError(EngineUnavailableError):
    """There is a file, and it is not what it should be."""


@dataclass(frozen=True, slots=True)
class KnownWeights:
    """A file that is good without being named by the configuration."""

    title: str
    size_bytes: int
    sha256: str


PUBLISHED = KnownWeights(
    title="big-lama.pt as published by simple-lama-inpainting",
    size_bytes=205_803_670,
    sha256="7ba7aa7ac37a4d41fdbbeba3a2af7ead18058552997e3a3cd1a3b2210c9e6b4c",
)
SANSTER = KnownWeights(
    title="big-lama.pt as published by Sanster",
    size_bytes=205_669_692,
    sha256="344c77bbcb158f17dd143070d1e789f38a66c04202311ae3a258ef66667a9ea9",
)
KNOWN = (PUBLISHED, SANSTER)


@dataclass(frozen=True, slots=True)
class VerifiedWeights:
    """A weights file whose bytes are known."""

    path: Path
    sha256: str
    identity: FileIdentity

    def check_unchanged(self) -> None:
        """Compare the file on disk with the one that was verified; call it after a library has read it.

        Raises:
            WeightsRejectedError: the file was replaced or written since.
        """
        try:
            now = FileIdentity.of(self.path.stat())
        except OSError:
            now = None
        if now != self.identity:
            raise WeightsRejectedError(
                f"the weights file {self.path} changed while it was being loaded",
                "Wait until whatever writes the file is done; it is verified again at the next start.",
            )


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells two states of a file apart without reading it."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Take the identity from a stat result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def is_settled(self, now_s: float) -> bool:
        """Tell whether one more write would be sure to show in the times."""
        return max(self.mtime_ns, self.ctime_ns) / 1e9 + _SETTLED_AFTER_S < now_s


def cached_name(sha256: str) -> str:
    """Return the file name of weights in the cache folder: it carries the hash, so names never collide."""
    return f"lama-{sha256[:16]}.pt"


def locate(choice: EngineChoice, environ: Mapping[str, str]) -> Path:
    """Return where the weights are to be read from: configuration, then environment, then cache.

    A place that is named and empty is an error; the next one is not tried in its stead.

    Raises:
        WeightsMissingError: no place holds a file.
        WeightsRejectedError: the configured hash is not one.
    """
    if choice.weights_path:
        return _named(choice.weights_path, "`source` under `[model]`")
    if environ.get(ENVIRONMENT_VARIABLE):
        return _named(environ[ENVIRONMENT_VARIABLE], f"the environment variable {ENVIRONMENT_VARIABLE}")
    pinned = _pinned_hash(choice)
    hashes = (pinned,) if pinned else tuple(weights.sha256 for weights in KNOWN)
    if choice.model_cache_dir:
        for sha256 in hashes:
            cached = Path(choice.model_cache_dir).expanduser() / cached_name(sha256)
            if cached.exists():
                return cached
    raise WeightsMissingError("no weights file for LaMa is configured or cached", _HOW_TO_GET)


def locate_verified(choice: EngineChoice, environ: Mapping[str, str]) -> VerifiedWeights:
    """Find the weights and verify them.

    Raises:
        WeightsMissingError: no place holds a file.
        WeightsRejectedError: the file is not what it should be.
    """
    memory = Path(choice.model_cache_dir).expanduser() / _MEMORY_NAME if choice.model_cache_dir else None
    return verify(locate(choice, environ), pinned_sha256=_pinned_hash(choice), memory=memory)


def verify(path: Path, *, pinned_sha256: str | None = None, memory: Path | None = None) -> VerifiedWeights:
    """Prove that `path` holds known weights, or exactly those that are pinned.

    Args:
        path: the file.
        pinned_sha256: the only hash that is good; None: any of `KNOWN`.
        memory: the JSON file that remembers earlier verifications; None: hash every time.

    Raises:
        WeightsRejectedError: unreadable, cut off, another kind of file, or another hash.
    """
    try:
        identity = _regular_file_identity(path)
        _check_size(path, identity.size_bytes, pinned_sha256)
        sha256 = _recall(memory, path, identity) or _hash_and_remember(path, identity, memory)
    except OSError as error:
        raise WeightsRejectedError(
            f"the weights file {path} cannot be read: {error.strerror or error}",
            "Check that the user whom watcher runs as may read the file and every folder above it.",
        ) from error
    _check_hash(path, sha256, pinned_sha256)
    return VerifiedWeights(path=path, sha256=sha256, identity=identity)


def _named(name: str, where: str) -> Path:
    path = Path(name).expanduser().absolute()
    if not path.exists():
        raise WeightsMissingError(
            f"the weights file {path}, named by {where}, does not exist",
            f"Correct the path, or put the file there. {_HOW_TO_GET}",
        )
    return path


def _pinned_hash(choice: EngineChoice) -> str | None:
    if not choice.weights_sha256:
        return None
    pinned = choice.weights_sha256.strip().lower()
    if len(pinned) != hashlib.sha256().digest_size * 2 or set(pinned) - set("0123456789abcdef"):
        raise WeightsRejectedError(
            f"`sha256` under `[model]` is not a sha256: {choice.weights_sha256!r}",
            "Give the 64 hexadecimal digits that `sha256sum FILE` prints, or leave the setting out.",
        )
    return pinned


def _regular_file_identity(path: Path) -> FileIdentity:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise WeightsRejectedError(f"{path} is not a file", f"Name the weights file itself. {_HOW_TO_GET}")
    return FileIdentity.of(status)


def _check_size(path: Path, size_bytes: int, pinned_sha256: str | None) -> None:
    """Refuse by size alone where that is enough: it costs nothing and gives the plainest message."""
    if size_bytes == 0:
        raise WeightsRejectedError(f"the weights file {path} is empty", _remedy(pinned_sha256))
    expected = {known.size_bytes for known in KNOWN if pinned_sha256 in (None, known.sha256)}
    if size_bytes in {known.size_bytes for known in KNOWN}:
        return  # it may be the other export: the hash can name it
    if expected and size_bytes not in expected:
        looks = _kind_of_accident(path) or _odd_size(size_bytes, max(expected))
        raise WeightsRejectedError(f"the weights file {path} {looks}", _remedy(pinned_sha256))


def _check_hash(path: Path, sha256: str, pinned_sha256: str | None) -> None:
    if sha256 in ({pinned_sha256} if pinned_sha256 else {known.sha256 for known in KNOWN}):
        return
    titles = {known.sha256: known.title for known in KNOWN}
    if sha256 in titles:
        # Two exports go by one name, and lists give the hash of the one with the address of the other.
        looks = f"is {titles[sha256]}"
        remedy = (
            f"To use this file, which is good too, set `sha256` under `[model]` to {sha256}, or leave that "
            "setting out; else put the other file there."
        )
    else:
        looks = _kind_of_accident(path) or f"has sha256 {sha256}"
        remedy = _remedy(pinned_sha256)
    wanted = f"the configuration names {pinned_sha256}" if pinned_sha256 else "no known weights have it"
    if pinned_sha256 in titles:
        wanted += f", which is {titles[pinned_sha256]}"
    raise WeightsRejectedError(f"the weights file {path} {looks}, and {wanted}", remedy)


def _odd_size(size_bytes: int, expected_bytes: int) -> str:
    if size_bytes < expected_bytes:
        return (
            f"has {size_bytes:,} bytes where {expected_bytes:,} are expected: it is cut off, or other weights"
        )
    return f"has {size_bytes:,} bytes: it is none of the known weights files"


def _kind_of_accident(path: Path) -> str | None:
    """Name what often lies where weights should, or None for what may be weights (a zip archive)."""
    with path.open("rb") as file:
        head = file.read(256)
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not weights: the download was answered by a login or error page"
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the weights themselves"
    if not head.startswith(b"PK"):
        return "is not a TorchScript archive"
    return None


def _remedy(pinned_sha256: str | None) -> str:
    if pinned_sha256:
        return (
            "Put the file there whose hash `sha256` under `[model]` names, or correct that setting "
            "(`sha256sum FILE` prints the hash; name only a file whose origin you trust: loading it runs its "
            "code)."
        )
    return (
        f"{_HOW_TO_GET} To use other weights on purpose, set `sha256` under `[model]` to their hash "
        "(only a file whose origin you trust: loading it runs its code)."
    )


def _hash_and_remember(path: Path, identity: FileIdentity, memory: Path | None) -> str:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        after = FileIdentity.of(os.fstat(file.fileno()))
    if after != identity:
        raise WeightsRejectedError(
            f"the weights file {path} changed while it was being read",
            "Wait until the download or copy is complete; it is verified again at the next start.",
        )
    if memory is not None and identity.is_settled(time.time()):
        _remember(memory, path, identity, sha256)
    return sha256


def _recall(memory: Path | None, path: Path, identity: FileIdentity) -> str | None:
    entry = _read_memory(memory).get(os.fspath(path)) if memory is not None else None
    if not isinstance(entry, dict) or entry.get("identity") != asdict(identity):
        return None
    sha256 = entry.get("sha256")
    return sha256 if isinstance(sha256, str) else None


def _read_memory(memory: Path) -> dict[str, Any]:
    """Return what is remembered; a memory that cannot be read remembers nothing."""
    try:
        files = json.loads(memory.read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return files if isinstance(files, dict) else {}


def _remember(memory: Path, path: Path, identity: FileIdentity, sha256: str) -> None:
    """Note the verification; a folder that cannot be written costs the next start one hash, no more."""
    files = {name: entry for name, entry in _read_memory(memory).items() if Path(name).exists()}
    files.pop(os.fspath(path), None)
    files = dict(list(files.items())[-(_MEMORY_MAX_FILES - 1) :])
    files[os.fspath(path)] = {"identity": asdict(identity), "sha256": sha256}
    staged = memory.with_name(f".{memory.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps({"schema": 1, "files": files}, indent=1), encoding="ascii")
        staged.replace(memory)
    with contextlib.suppress(OSError):
        staged.unlink(missing_ok=True)
