"""Which blocks of a JPEG a hole touches, and a JPEG in which only those are new.

Words: a *block* is 8x8 samples of one component (ITU-T T.81, A.1.1); where a component is sampled more
coarsely, its block covers more pixels. Rules of this module:
- Blocks that hold no pixel of the hole keep their quantised coefficients, bit by bit. So a pixel decodes to
  the source's unless it lies in a touched block, or beside one where chroma is sampled coarsely: decoders
  smooth between neighbouring chroma samples, which reaches one pixel further.
- The hole's blocks are encoded with the source's own tables and sampling, from rectangles of whole MCUs.
- libjpeg is asked, in a process of its own (`transcoder`): it ends its process on an error, and hostile
  bytes then meet nothing of ours. It is the library that Pillow brings.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from watcher.worker.imaging.crops import Rect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from watcher.worker.imaging.picture import Mask, Pixels

_BLOCK_PX = 8
_PROGRAM = Path(__file__).with_name("transcoder.py")
_LIMIT_S = 10.0
_LIMIT_S_PER_MEGAPIXEL = 1.0
"""Many times what any machine takes; a process that overstays is ended, and the picture is encoded anew."""
_LAST_WORDS_CHARS = 200


class BlocksLostError(Exception):
    """The other blocks cannot be kept; the message says why."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How often one component is sampled in an MCU, horizontally and vertically (1 to 4)."""

    horizontal: int
    vertical: int


@dataclass(frozen=True, slots=True)
class Transcoded:
    """What the other process made of a JPEG.

    Attributes:
        cut_off: the picture's data ends before the picture does; then there is nothing else.
        data: the new JPEG, without any application segment; empty where no pixels were given.
    """

    cut_off: bool
    data: bytes


@functools.cache
def libjpeg() -> str | None:
    """Return the path of the libjpeg that Pillow brings, else the system's name for it, if it has one."""
    import importlib.metadata  # many modules, of which a worker needs none at its start

    try:
        files = importlib.metadata.files("pillow") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.startswith("libjpeg") and (".so" in file.name or file.suffix == ".dylib"):
            return str(file.locate())
    return "libjpeg.so.62" if sys.platform == "linux" else None


def inspect(source: bytes, *, megapixels: float) -> Transcoded:
    """Read a JPEG's coefficients, and tell whether its data is cut off.

    Raises:
        BlocksLostError: they cannot be read.
    """
    return _run({"channels": 0, "boxes": []}, [source], megapixels)


def with_new_blocks(source: bytes, samplings: Sequence[Sampling], pixels: Pixels, hole: Mask) -> Transcoded:
    """Return a JPEG whose blocks are the source's but for those that the hole touches.

    Args:
        source: of one picture.
        samplings: of its components, in their order.
        pixels: the whole filled picture, uint8, (height, width) or (height, width, channels): grey, RGB, or
            inks as the file stores them.
        hole: bool, (height, width), with at least one True.

    Raises:
        BlocksLostError: the structure cannot be kept, or libjpeg is missing or refused.
    """
    height, width = hole.shape
    widest = max(sampling.horizontal for sampling in samplings)
    tallest = max(sampling.vertical for sampling in samplings)
    if any(widest % sampling.horizontal or tallest % sampling.vertical for sampling in samplings):
        raise BlocksLostError("its components are sampled in a ratio that is no whole number")
    sizes = [
        (_BLOCK_PX * widest // sampling.horizontal, _BLOCK_PX * tallest // sampling.vertical)
        for sampling in samplings
    ]
    boxes: list[dict[str, Any]] = []
    parts = [source]
    for box in _boxes(hole, _BLOCK_PX * widest, _BLOCK_PX * tallest):
        touched = [touched_blocks(hole[box.slices], *size) for size in sizes]
        places = [
            {
                "left": box.left // block_width,
                "top": box.top // block_height,
                "rows": blocks.shape[0],
                "columns": blocks.shape[1],
            }
            for (block_width, block_height), blocks in zip(sizes, touched, strict=True)
        ]
        boxes.append({"size": (box.width, box.height), "components": places})
        parts += [pixels[box.slices].tobytes(), *(blocks.tobytes() for blocks in touched)]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]  # noqa: PLR2004 - (height, width)
    return _run({"channels": channels, "boxes": boxes}, parts, width * height / 1e6)


def _boxes(hole: Mask, mcu_width: int, mcu_height: int) -> list[Rect]:
    """Return rectangles of whole MCUs around all parts of a hole, cut at the picture's borders.

    Parts that no whole row or column of MCUs separates share one: few and simple, and holes in two corners do
    not make the whole picture be encoded.
    """
    height, width = hole.shape
    mcus = touched_blocks(hole, mcu_width, mcu_height)
    return [
        Rect(
            top * mcu_height,
            left * mcu_width,
            min(bottom * mcu_height, height),
            min(right * mcu_width, width),
        )
        for top, bottom in _runs(np.flatnonzero(mcus.any(axis=1)))
        for left, right in _runs(np.flatnonzero(mcus[top:bottom].any(axis=0)))
    ]


def _runs(numbers: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return the runs of ascending numbers: first, and one beyond the last."""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks)]


def touched_blocks(hole: Mask, block_width: int, block_height: int) -> NDArray[np.bool_]:
    """Return which blocks hold a pixel of the hole: bool, (rows, columns).

    Args:
        hole: bool, (height, width), from a corner of a block on.
        block_width: pixels that a block covers.
        block_height: likewise.
    """
    height, width = hole.shape
    padded = np.pad(hole, ((0, -height % block_height), (0, -width % block_width)))
    parts = padded.reshape(
        padded.shape[0] // block_height, block_height, padded.shape[1] // block_width, block_width
    )
    return np.asarray(parts.any(axis=(1, 3)))


def _run(request: dict[str, Any], parts: Sequence[bytes], megapixels: float) -> Transcoded:
    library = libjpeg()
    if library is None:
        raise BlocksLostError("Pillow brings no libjpeg of its own here")
    line = json.dumps({**request, "library": library, "source_bytes": len(parts[0])}).encode()
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-B", str(_PROGRAM)],
            input=b"".join([line, b"\n", *parts]),
            capture_output=True,
            timeout=_LIMIT_S + _LIMIT_S_PER_MEGAPIXEL * megapixels,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BlocksLostError(str(error)) from error
    if ended.returncode != 0:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        last = said[-1] if said else f"libjpeg's process ended with {ended.returncode}"
        raise BlocksLostError(last[:_LAST_WORDS_CHARS])
    answer, _, data = ended.stdout.partition(b"\n")
    return Transcoded(cut_off=bool(json.loads(answer)["cut_off"]), data=data)
