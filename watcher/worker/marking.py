"""Where a picture is marked: the sources of its recipe in their order, the first that yields a mark wins.

Rules of this module:
- A mask file and a sidecar are statements: one that marks nothing says that nothing is to go, and no further
  source is asked. A marked copy without a difference, a picture without strokes, without erased pixels or
  without any of the recipe's regions says nothing, and the next source is asked.
- A mark is found on what a person saw (viewed orientation), and handed on as stored.
- Whoever cannot be understood is refused with what is wrong; a mark is never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from watcher.regions import RegionError, sidecar_from
from watcher.worker.imaging.decode import load_mark_file
from watcher.worker.imaging.files import read_file
from watcher.worker.imaging.marked_copy import find_difference
from watcher.worker.imaging.marker import find_strokes, marker_colours
from watcher.worker.imaging.masks import erased, note_of_inversion, read_mask
from watcher.worker.imaging.orientation import to_stored, to_viewed
from watcher.worker.imaging.refusals import IncompleteError, RefusedError
from watcher.worker.imaging.region_masks import mask_of_regions
from watcher.worker.imaging.rgb import rgb_of, shown_over

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.wire import FailureCode, Limits, MarkFileKind, Marking, MarkSource
    from watcher.worker.imaging.masks import MaskFile
    from watcher.worker.imaging.picture import Picture, Pixels

    Mask = NDArray[np.bool_]

FILE_WORDS: dict[MarkFileKind, str] = {"mask": "mask", "marked_copy": "marked copy", "sidecar": "sidecar"}
"""What a mark file of a kind is called in reasons."""
_COARSE_TIMES = 3
"""A rim of some pixels of a copy that much smaller is broad in the picture: far more goes than was drawn."""
_REGION_MASK_REMEDY = (
    "give the recipe a black and white PNG with the shape of its pictures, then run: watcher retry"
)


@dataclass(frozen=True, slots=True)
class MarkFile:
    """The bytes of a mark file."""

    kind: MarkFileKind
    data: bytes


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark that was found.

    Attributes:
        source: where from.
        mask: bool, (height, width), stored orientation, not grown; all False for a statement of nothing.
        reopen: erased pixels that come back opaque, or None.
        notes: what a person should know of it.
    """

    source: MarkSource
    mask: Mask
    reopen: Mask | None = None
    notes: tuple[str, ...] = ()

    @property
    def why_empty(self) -> str:
        """Why a mark without a pixel has none."""
        word = "sidecar names no region" if self.source == "sidecar" else f"{self.source} is empty"
        return "; ".join((f"the {word}, so nothing was removed", *self.notes))


def may_be_marked(picture: Picture, marking: Marking, mark_file: MarkFile | None) -> bool:
    """Whether it is worth decoding an opened picture's pixels."""
    anywhere = {"colour", "regions"} | ({"alpha"} if picture.may_have_alpha else set())
    has_file = mark_file is not None and mark_file.kind in marking.sources
    return has_file or not anywhere.isdisjoint(marking.sources)


def find_mark(
    picture: Picture, pixels: Pixels, marking: Marking, mark_file: MarkFile | None, limits: Limits
) -> Marked | None:
    """Return the first source's mark, or None where nothing is marked.

    Args:
        picture: opened and loaded.
        pixels: as its `load` returned them; not changed.
        marking: the recipe's.
        mark_file: what lies beside the picture, or None.
        limits: for further files that are read.

    Raises:
        IncompleteError: the mark file has no end yet.
        RefusedError: a source cannot be understood, or does not fit the picture.
    """
    finder = _Finder(picture, pixels, marking, mark_file, limits)
    for source in marking.sources:
        marked = finder.look_in(source)
        if marked is not None:
            return marked
    return None


def reason_unmarked(marking: Marking, mark_file: MarkFile | None) -> str | None:
    """Return what was looked at in vain, where that is more than the picture."""
    if mark_file is None or mark_file.kind not in marking.sources:
        return None
    return f"the {FILE_WORDS[mark_file.kind]} shows no difference from the picture"


class _Finder:
    """Looks for one picture's mark."""

    def __init__(
        self, picture: Picture, pixels: Pixels, marking: Marking, mark_file: MarkFile | None, limits: Limits
    ) -> None:
        self._picture = picture
        self._pixels = pixels
        self._marking = marking
        self._mark_file = mark_file
        self._limits = limits

    def look_in(self, source: MarkSource) -> Marked | None:
        match source:
            case "mask" | "marked_copy" | "sidecar":
                is_there = self._mark_file is not None and self._mark_file.kind == source
                return self._in_file(self._mark_file) if self._mark_file is not None and is_there else None
            case "colour":
                return self._in_strokes()
            case "alpha":
                clear = erased(self._picture, self._pixels)
                return None if clear is None else Marked("alpha", clear, reopen=clear)
            case "regions":
                return self._in_regions()

    def _in_file(self, file: MarkFile) -> Marked | None:
        match file.kind:
            case "mask":
                return self._in_mask(file.data)
            case "marked_copy":
                return self._in_marked_copy(file.data)
            case "sidecar":
                return self._in_sidecar(file.data)

    def _in_mask(self, data: bytes) -> Marked:
        invert, max_pixels = self._marking.invert, self._limits.max_pixels
        file = read_mask(data, self._picture, max_pixels=max_pixels, invert=invert)
        notes = (file.note, note_of_inversion(file.mask))
        return Marked("mask", file.mask, notes=tuple(note for note in notes if note is not None))

    def _in_marked_copy(self, data: bytes) -> Marked | None:
        remedy, max_pixels = "save it as a JPEG or PNG", self._limits.max_pixels
        copy, pixels = load_mark_file(data, max_pixels=max_pixels, word="marked copy", remedy=remedy)
        copied = to_viewed(rgb_of(copy, pixels), copy.orientation)
        difference = find_difference(self._shown_over(copied), copied)
        if difference is None:
            return None
        notes = () if (note := _note_of_coarseness(copied, self._picture)) is None else (note,)
        return Marked("marked_copy", self._stored(difference), notes=notes)

    def _shown_over(self, copied: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the picture as it is seen; where it is transparent, what its copy has there shows through.

        An editor lays it on white, or on whatever it likes: that is nothing that a person drew.
        """
        orientation = self._picture.orientation
        viewed = to_viewed(rgb_of(self._picture, self._pixels), orientation)
        alpha = self._picture.alpha(self._pixels)
        if alpha is None:
            return viewed
        opacity = to_viewed(alpha if alpha.dtype == np.uint8 else (alpha >> 8).astype(np.uint8), orientation)
        return shown_over(viewed, opacity, copied)

    def _in_sidecar(self, data: bytes) -> Marked:
        try:
            sidecar = sidecar_from(data)
            mask = mask_of_regions(sidecar.regions, self._picture.viewed_size, drawn_on=sidecar.size)
        except RegionError as error:
            if error.is_cut_short:
                raise IncompleteError(f"the sidecar is not complete: {error.reason}") from error
            code: FailureCode = "mask_mismatch" if error.field == "size" else "mask_undecodable"
            raise RefusedError(code, f"the sidecar cannot be used: {error.reason}", error.remedy) from error
        return Marked("sidecar", self._stored(mask))

    def _in_strokes(self) -> Marked | None:
        alpha = self._picture.alpha(self._pixels)
        visible = None if alpha is None else alpha > 0
        rgb = rgb_of(self._picture, self._pixels)
        for colour in marker_colours(_rgb_colour(self._marking.colour), self._picture.icc_profile):
            strokes = find_strokes(rgb, colour, visible)
            if strokes is not None:
                return Marked("colour", strokes)
        return None

    def _in_regions(self) -> Marked | None:
        try:
            mask = mask_of_regions(self._marking.regions, self._picture.viewed_size, outside="nothing")
        except RegionError as error:
            reason = f"the recipe's regions cannot be used: {error.reason}"
            raise RefusedError("mask_undecodable", reason, error.remedy) from error
        stored = self._stored(mask)
        notes: tuple[str, ...] = ()
        if self._marking.region_mask is not None:
            file = self._read_region_mask(self._marking.region_mask)
            stored = stored | file.mask
            notes = () if file.note is None else (file.note,)
        return Marked("regions", stored, notes=notes) if stored.any() else None

    def _read_region_mask(self, path: str) -> MaskFile:
        max_pixels, invert = self._limits.max_pixels, self._marking.invert
        try:
            file = read_file(path, None, max_bytes=self._limits.max_file_bytes, what="file")
            return read_mask(file.data, self._picture, max_pixels=max_pixels, invert=invert)
        except (IncompleteError, RefusedError) as error:
            code: FailureCode = "mask_undecodable"  # the picture is neither incomplete nor gone
            if isinstance(error, RefusedError) and error.code in {"too_large", "mask_mismatch"}:
                code = error.code
            reason = f"the recipe's `region_mask` cannot be used: {error.reason}"
            raise RefusedError(code, reason, _REGION_MASK_REMEDY) from error

    def _stored(self, viewed: Mask) -> Mask:
        return np.ascontiguousarray(to_stored(viewed, self._picture.orientation))


def _note_of_coarseness(copied: NDArray[np.uint8], picture: Picture) -> str | None:
    """Say that a mark is coarse since its copy is; None for a copy of about the picture's size."""
    times = picture.viewed_size[0] / copied.shape[1]
    if times < _COARSE_TIMES:
        return None
    return f"the marked copy is {times:.1f} times smaller than the picture, and its mark is as coarse as that"


def _rgb_colour(text: str) -> tuple[int, int, int]:
    """Return a colour written `#RRGGBB`."""
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue
