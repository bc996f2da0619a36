"""What a result may not differ in from its source, and a telling of all that does.

What this module owns: the comparison of two files as `independent` sees them. Rules of this module:
- Masks and comparisons are in viewed orientation, since that is where a person looks.
- What the row of the picture allows to differ is left out; everything else that is known of a file counts.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.worker import independent
from tests.worker.bench import FILL
from tests.worker.rows import PALETTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tests.worker.independent import Pixels, Seen
    from tests.worker.rows import Row
    from watcher.wire import ImageFacts

    Mask = NDArray[np.bool_]

GREY_FILL = 97.3
"""The engine's colour as grey (ITU-R BT.601)."""


# --- where things are --------------------------------------------------------------------------------------


def as_viewed(stored: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn an array as EXIF says (2.32, 4.6.4): what is stored becomes what a person sees."""
    turns = (stored, stored[:, ::-1], stored[::-1, ::-1], stored[::-1])
    if orientation <= 4:
        return turns[orientation - 1]
    transposed = np.swapaxes(stored, 0, 1)
    return (transposed, transposed[:, ::-1], transposed[::-1, ::-1], transposed[::-1])[orientation - 5]


def as_stored(viewed: NDArray[Any], orientation: int) -> NDArray[Any]:
    return as_viewed(viewed, {6: 8, 8: 6}.get(orientation, orientation))


def widened(mask: Mask, pixels: int) -> Mask:
    """Grow a mask by a square."""
    result = mask.copy()
    for axis in (0, 1):
        padded = np.pad(result, [(pixels, pixels) if n == axis else (0, 0) for n in (0, 1)])
        size = result.shape[axis]
        result = np.logical_or.reduce(
            [padded.take(range(at, at + size), axis) for at in range(2 * pixels + 1)]
        )
    return result


CHROMA_REACH_PX = 2
"""So far into its neighbours a unit's colour is smoothed by a decoder that doubles it."""


def touched(hole: Mask, seen: Seen) -> Mask:
    """Return the pixels of a JPEG that the units under a hole have a say in; both as a person sees them."""
    wide, high = independent.sampling(seen)
    stored = as_stored(hole, seen.orientation)
    padded = np.pad(stored, ((0, -stored.shape[0] % high), (0, -stored.shape[1] % wide)))
    units = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide).any(axis=(1, 3))
    whole = np.kron(units, np.ones((high, wide), np.bool_))[: stored.shape[0], : stored.shape[1]]
    return as_viewed(widened(whole, CHROMA_REACH_PX), seen.orientation)


# --- what may not differ -----------------------------------------------------------------------------------

_PALETTE_FACTS = frozenset({"gif-palette", "background", "Image ColorMap"})
"""Entries that no pixel uses are given to the fill."""


def _unlike(before: dict[str, Any], after: dict[str, Any], may_differ: frozenset[str]) -> Iterator[str]:
    for name in sorted((before.keys() | after.keys()) - may_differ):
        if before.get(name) != after.get(name):
            yield f"{name} was {_short(before.get(name))} and is {_short(after.get(name))}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:60]}... ({len(text)} characters)"


def _outside(row: Row, before: Seen, after: Seen, hole: Mask) -> Iterator[str]:
    if row.outside == "close":
        far = ~widened(hole, 16)
        likeness = psnr(before.viewed[far], after.viewed[far]) if far.any() else np.inf
        if likeness < row.psnr_db:
            yield f"outside the hole it is {likeness:.1f} dB like before"
        return
    kept = ~(hole if row.outside == "exact" else touched(hole, before))
    changed = (before.viewed != after.viewed).any(axis=2) & kept
    if changed.any():
        y, x = np.argwhere(changed)[0]
        yield (
            f"{changed.sum()} pixels outside the hole changed, the first at x={x} y={y}: "
            f"{before.viewed[y, x].tolist()} is {after.viewed[y, x].tolist()}"
        )


def psnr(one: Pixels, other: Pixels) -> float:
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    peak = np.iinfo(one.dtype).max
    return float(10 * np.log10(peak**2 / max(error, 1e-9)))


def _alpha(row: Row, before: Seen, after: Seen) -> Iterator[str]:
    old, new = before.alpha(), after.alpha()
    if old is not None and new is not None:
        worst = int(abs(old.astype(int) - new.astype(int)).max())
        if worst > row.alpha_steps:
            yield f"alpha changed by up to {worst}"


def _inside(row: Row, before: Seen, after: Seen, hole: Mask) -> Iterator[str]:
    inner = hole if row.outside == "exact" else ~widened(~hole, 3)
    alpha = after.alpha()
    if alpha is not None and (row.fill in PALETTES or "tRNS" in after.facts or row.fill == "near"):
        inner = inner & (alpha == alpha.max())  # elsewhere only the colours of that opacity may be chosen
    if not inner.any():
        return
    colours = _colours(row, after, inner)
    wanted = _wanted(row, before, after)
    off = float(abs(np.mean(colours, axis=0) - wanted).max())
    if off > row.fill_steps:
        mean = np.mean(colours, axis=0).round(1).tolist()
        yield f"the hole is {mean} and not {np.asarray(wanted).tolist()}"
    spread = float((colours.max(axis=0) - colours.min(axis=0)).max())
    if row.outside == "exact" and spread > row.fill_steps:
        yield f"the hole is of several colours, {spread} apart, and the engine gave one"


def _colours(row: Row, seen: Seen, inner: Mask) -> NDArray[np.float64]:
    """Return what stands in the hole, (pixels, 1 or 3), in steps of 8 bits."""
    bands = seen.viewed.shape[2]
    if row.fill == "inks":
        inks = seen.viewed[inner][:, :4]
        inks = (inks >> 8).astype(np.uint8) if inks.dtype == np.uint16 else inks
        if row.outside != "exact":
            inks = inks.mean(axis=0, keepdims=True).round().astype(np.uint8)
        unique = np.unique(inks, axis=0)
        return np.array([_printed(ink.tobytes(), seen.facts["icc-profile-data"]) for ink in unique])
    scale = 257 if seen.viewed.dtype == np.uint16 else 1
    return np.asarray(seen.viewed[inner][:, : 3 if bands > 2 else 1] / scale)


@cache
def _printed(ink: bytes, profile: bytes) -> tuple[int, ...]:
    """Return what a mix of inks looks like; kept, since reading a profile is what takes the time."""
    pixel = np.frombuffer(ink, np.uint8).reshape(1, 1, 4)
    return tuple(independent.through_profile(pixel, profile)[0, 0].tolist())


def _wanted(row: Row, before: Seen, after: Seen) -> NDArray[np.float64]:
    bands = after.viewed.shape[2]
    if row.fill == "one bit":
        return np.array([0.0])
    if row.fill == "full palette":
        return _nearest(before, after)
    if row.fill == "grey":
        levels = (1 << min(8, int(after.facts["bits-per-sample"]))) - 1
        return np.array([round(GREY_FILL / 255 * levels) * 255 / levels])
    return np.array([GREY_FILL]) if bands < 3 else np.array(FILL, float)


def _nearest(before: Seen, after: Seen) -> NDArray[np.float64]:
    """Return the engine's colour where the palette has it, else the nearest that the picture has anyway."""
    colours = np.vstack([seen.viewed[..., :3].reshape(-1, 3) for seen in (before, after)]).astype(int)
    numbers = np.unique(colours @ [1 << 16, 1 << 8, 1])
    found = np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=1)
    return np.asarray(found[((found - FILL) ** 2).sum(axis=1).argmin()], float)


# --- all of it ---------------------------------------------------------------------------------------------

_CLAIMS = {"exact": "identical", "blocks": "blocks", "close": "reencoded"}


def lost(row: Row, report: ImageFacts, before: Seen, after: Seen, hole: Mask) -> Iterator[str]:
    """Tell everything that was to stay and did not, and what the report says that is not so."""
    if after.container != before.container or after.stored.shape != before.stored.shape:
        yield f"it is a {after.container} of {after.stored.shape} now"
        return
    may_differ = row.may_differ | (_PALETTE_FACTS if row.fill in PALETTES else frozenset())
    yield from _unlike(before.facts, after.facts, may_differ)
    yield from _unlike(before.tags, after.tags, may_differ)
    if after.viewed.shape != before.viewed.shape:
        yield f"it is seen as {after.viewed.shape} now"
    elif after.viewed.dtype != before.viewed.dtype:
        yield f"its samples are {after.viewed.dtype} now"
    else:
        yield from _outside(row, before, after, hole)
        yield from _alpha(row, before, after)
    if report.dropped_metadata != row.dropped:
        yield f"the report names {report.dropped_metadata} as dropped, and not {row.dropped}"
    if report.outside != _CLAIMS[row.outside]:
        yield f"the report says {report.outside} of what is outside, and not {_CLAIMS[row.outside]}"
    if report.hole_px != hole.sum():
        yield f"the report speaks of {report.hole_px} pixels, and {hole.sum()} were marked"


def differences(row: Row, report: ImageFacts, before: Seen, after: Seen, hole: Mask) -> Iterator[str]:
    """Tell what `lost` tells, and where the hole is not of the engine's colour."""
    yield from lost(row, report, before, after, hole)
    if after.viewed.shape == before.viewed.shape:
        yield from _inside(row, before, after, hole)
