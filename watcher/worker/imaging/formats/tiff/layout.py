"""How a TIFF stores its pixels, as far as they can be reached, and exchanged, without a decoder.

Words: a *piece* is a strip or a tile, a *sample* one channel of one pixel. Rules of this module:
- It reads tags, never pixels, and decides whether a TIFF's pieces may be exchanged one by one.
- What its arithmetic says of sizes is bounded here, before anything is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.formats.tiff.spans import sized, total_bytes, without
from watcher.worker.imaging.formats.tiff.structure import broken, needed_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.ifd import Ifd

UNCOMPRESSED, LZW, ADOBE_DEFLATE, PACKBITS, DEFLATE, LZMA, ZSTD = 1, 5, 8, 32773, 32946, 34925, 50000
RUN_LENGTHS, GROUP_3, GROUP_4 = 2, 3, 4
FAX = frozenset({RUN_LENGTHS, GROUP_3, GROUP_4})
"""Compressions of one bit a pixel (ITU-T T.4 and T.6), which are given by lines and not by bytes."""
EXCHANGED = frozenset({UNCOMPRESSED, LZW, ADOBE_DEFLATE, PACKBITS, DEFLATE, LZMA, ZSTD}) | FAX
"""Compressions whose pieces can be taken out and put in."""
_PREDICTED = frozenset({LZW, ADOBE_DEFLATE, DEFLATE, LZMA, ZSTD})
"""Compressions that know predictors; with others the tag says nothing (TIFF 6.0, section 14)."""

WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, SEPARATED = 0, 1, 2, 3, 5
_COLOURS = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3, PALETTE: 1, SEPARATED: 4}
_ASSOCIATED, _UNASSOCIATED, _COREL_ALPHA = 1, 2, 999
_MAX_SAMPLES = 16
_MAX_PADDING_PX = 1 << 24
"""Tiles may cover four times the picture, and so much more: a 1 x 1 picture in tiles of 65,000 is a bomb."""


@dataclass(frozen=True, slots=True)
class TiffLayout:
    """How a TIFF of integer samples stores its pixels.

    Attributes:
        order: struct's byte-order character.
        width: in pixels, as stored.
        height: in pixels, as stored.
        mode: one of `picture.MODES`.
        bits: a sample; the same for all.
        samples: a pixel, with those that the mode does not know.
        channels: which samples the mode's channels are, in its order.
        inverted: a grey of zero is white.
        premultiplied: colours were multiplied with their alpha.
        planar: each sample in planes of its own.
        compression: one of `EXCHANGED`.
        fax_options: T4Options, of `GROUP_3` alone.
        mirrored: the bits of each stored byte stand in reverse order, of `FAX` alone.
        predictor: rows are stored as differences.
        tiled: in tiles, not in strips.
        piece_width: in pixels.
        piece_height: in pixels; the last strip of a plane may have fewer rows.
        offsets: of the pieces, in their order.
        sizes: of the pieces as they are stored, in bytes.
    """

    order: str
    width: int
    height: int
    mode: str
    bits: int
    samples: int
    channels: tuple[int, ...]
    inverted: bool
    premultiplied: bool
    planar: bool
    compression: int
    fax_options: int
    mirrored: bool
    predictor: bool
    tiled: bool
    piece_width: int
    piece_height: int
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def across(self) -> int:
        """Pieces beside each other."""
        return -(-self.width // self.piece_width)

    @property
    def down(self) -> int:
        """Pieces under each other."""
        return -(-self.height // self.piece_height)

    @property
    def piece_samples(self) -> int:
        """Samples of one pixel that lie together."""
        return 1 if self.planar else self.samples

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a piece, not compressed."""
        return (self.piece_width * self.piece_samples * self.bits + 7) // 8

    @property
    def end(self) -> int:
        """Where the last piece ends in the file."""
        return int((self.offsets + self.sizes).max(initial=0))

    def rows_of(self, down: int) -> int:
        """Return how many rows a piece has that is the `down`-th from above."""
        if self.tiled:
            return self.piece_height
        return min(self.piece_height, self.height - down * self.piece_height)


def tiff_layout(data: bytes, ifd: Ifd) -> TiffLayout | None:
    """Return how a TIFF stores its pixels, or None where its pieces cannot be exchanged one by one.

    Raises:
        RefusedError: the directory contradicts itself (undecodable).
    """
    shape = _Shape(data, ifd)
    if not shape.is_exchanged:
        return None
    layout = shape.layout()
    if layout is None or not _apart(data, ifd, layout):
        return None
    return layout


class _Shape:
    """The tags that say how pixels are stored, each with its default (TIFF 6.0, section 8)."""

    def __init__(self, data: bytes, ifd: Ifd) -> None:
        self._data = data
        self._ifd = ifd
        self.width = self._one(tags.WIDTH, 0)
        self.height = self._one(tags.HEIGHT, 0)
        self.samples = self._one(tags.SAMPLES, 1)
        self.compression = self._one(tags.COMPRESSION, UNCOMPRESSED)
        self.photometric = self._one(tags.PHOTOMETRIC, -1)
        self.planar = self._one(tags.PLANAR, 1) == 2 and self.samples > 1  # noqa: PLR2004 - 1 chunky, 2 planar
        self.predictor = self._one(tags.PREDICTOR, 1) if self.compression in _PREDICTED else 1
        bits = ifd.integers(data, tags.BITS_PER_SAMPLE) or (1,)
        self.bits = bits[0] if len(set(bits)) == 1 else 0
        self.mirrored = self._one(tags.FILL_ORDER, 1) == 2  # noqa: PLR2004 - 1 as always, 2 mirrored
        self.tiled = tags.TILE_OFFSETS in ifd.entries

    def _one(self, tag: int, default: int) -> int:
        values = self._ifd.integers(self._data, tag)
        return values[0] if values else default

    @property
    def is_exchanged(self) -> bool:
        """Whether the samples are integers in a compression that is undone here."""
        formats = set(self._ifd.integers(self._data, tags.SAMPLE_FORMAT)) - {1, 4}  # unsigned, undefined
        return (
            self.compression in EXCHANGED
            and self.photometric in _COLOURS
            and 1 <= self.bits <= 16  # noqa: PLR2004 - depths of `MODES`
            and self.predictor in ((1, 2) if self.bits in (8, 16) else (1,))
            and not (self.mirrored and self.compression not in FAX)
            and not formats
            and self._one(tags.INK_SET, 1) == 1
            and (self.compression not in FAX or self._is_fax)
        )

    @property
    def _is_fax(self) -> bool:
        known = self._one(tags.FAX_OPTIONS, 0) & ~5 == 0  # two dimensions, lines that end on whole bytes
        return self.bits == 1 and (self.samples == 1 or self.planar) and known

    def layout(self) -> TiffLayout | None:
        meaning = self._meaning()
        if meaning is None or self.samples > _MAX_SAMPLES:
            return None
        mode, channels, premultiplied = meaning
        piece_width, piece_height = self._piece_size()
        layout = TiffLayout(
            order=self._ifd.order,
            width=self.width,
            height=self.height,
            mode=mode,
            bits=self.bits,
            samples=self.samples,
            channels=channels,
            inverted=self.photometric == WHITE_IS_ZERO,
            premultiplied=premultiplied,
            planar=self.planar,
            compression=self.compression,
            fax_options=self._one(tags.FAX_OPTIONS, 0) if self.compression == GROUP_3 else 0,
            mirrored=self.mirrored,
            predictor=self.predictor == 2,  # noqa: PLR2004 - horizontal differences
            tiled=self.tiled,
            piece_width=piece_width,
            piece_height=piece_height,
            offsets=self._ifd.numbers(self._data, tags.TILE_OFFSETS if self.tiled else tags.STRIP_OFFSETS),
            sizes=self._ifd.numbers(self._data, tags.TILE_COUNTS if self.tiled else tags.STRIP_COUNTS),
        )
        return _counted(layout)

    def _meaning(self) -> tuple[str, tuple[int, ...], bool] | None:
        """Return mode, the samples that are its channels, and whether colours are premultiplied."""
        colours = _COLOURS[self.photometric]
        extra = self._ifd.integers(self._data, tags.EXTRA_SAMPLES)
        if not extra and self.samples == colours + 1 and self.photometric != SEPARATED:
            extra = (_UNASSOCIATED,)  # what programs take the sample for that they are told nothing about
        alphas = [place for place, kind in enumerate(extra) if kind in _ALPHA_KINDS]
        mode = _mode_of(self.photometric, self.bits, has_alpha=bool(alphas))
        if mode is None or self.samples < colours + (alphas[0] + 1 if alphas else 0):
            return None
        channels = tuple(range(colours))
        if not alphas or mode == "CMYK":
            return mode, channels, False
        return mode, (*channels, colours + alphas[0]), extra[alphas[0]] == _ASSOCIATED

    def _piece_size(self) -> tuple[int, int]:
        if not self.tiled:
            rows = self._one(tags.ROWS_PER_STRIP, self.height)
            if rows < 1:
                raise broken("it has strips of no rows")
            return max(1, self.width), max(1, min(rows, self.height))
        width, height = self._one(tags.TILE_WIDTH, 0), self._one(tags.TILE_HEIGHT, 0)
        if width < 1 or height < 1:
            raise broken("it has tiles of no size")
        covered = -(-self.width // width) * -(-self.height // height) * width * height
        if covered > 4 * self.width * self.height + _MAX_PADDING_PX:
            raise broken(f"its tiles of {width}x{height} pixels are much larger than the picture")
        return width, height


_ALPHA_KINDS = frozenset({_ASSOCIATED, _UNASSOCIATED, _COREL_ALPHA})


def _mode_of(photometric: int, bits: int, *, has_alpha: bool) -> str | None:
    deep = ";16" if bits > 8 else ""  # noqa: PLR2004 - one byte
    if photometric == SEPARATED:
        return "CMYK"
    if photometric == RGB:
        return f"RGBA{deep}" if has_alpha else f"RGB{deep}"
    if photometric == PALETTE:
        return "P" if bits <= 8 and not has_alpha else None  # noqa: PLR2004 - at most 256 entries
    if has_alpha:
        return f"LA{deep}"
    return "1" if bits == 1 else f"I{deep}" if deep else "L"


def _counted(layout: TiffLayout) -> TiffLayout | None:
    """Return a layout with one offset and one size a piece, or None where only a decoder can guess them."""
    needed = layout.across * layout.down * (layout.samples if layout.planar else 1)
    if needed == 0:
        nothing = np.zeros(0, np.int64)
        return replace(layout, offsets=nothing, sizes=nothing)  # it is refused by its size
    if len(layout.offsets) < needed:
        raise broken(f"it has {len(layout.offsets)} parts of {needed}")
    offsets, sizes = layout.offsets[:needed], layout.sizes[:needed]
    if layout.compression == UNCOMPRESSED:
        rows = np.full(layout.down, layout.piece_height, np.int64)
        rows[-1] = layout.rows_of(layout.down - 1)
        per_plane = np.repeat(rows, layout.across) * layout.row_bytes
        sizes = np.tile(per_plane, needed // len(per_plane))  # whatever the file says: programs ignore it
    elif len(sizes) < needed:
        return None
    return replace(layout, offsets=offsets, sizes=sizes)


def _is_old_lzw(data: bytes, layout: TiffLayout) -> bool:
    """Whether codes stand in reverse order, as before TIFF 6.0: decoders take one such piece for all."""
    start = int(layout.offsets[0])
    first, second = data[start : start + 2].ljust(2, b"\x00")
    return first == 0 and bool(second & 1)


def _apart(data: bytes, ifd: Ifd, layout: TiffLayout) -> bool:
    """Whether no piece lies over another, unless it is the same, or over what the directory needs."""
    if len(layout.offsets) == 0:
        return True
    if layout.end > len(data):
        return True  # said when the pixels are read, after the picture's size was judged
    pieces = np.unique(sized(layout.offsets, layout.sizes), axis=0)
    needed = needed_spans(data, ifd)
    if layout.compression == LZW and _is_old_lzw(data, layout):
        return False
    return total_bytes(without(pieces, needed, len(data))) == total_bytes(pieces)
