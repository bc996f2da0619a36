"""HEIF, the container of HEIC and AVIF: one picture of coded items, put back into its own file.

Rules of this module:
- The file's own boxes stay: the coded picture is replaced, and with it only what its coding determines. So
  turns (`irot`, `imir`), colour profiles, EXIF and XMP come out as they went in.
- Stored is how the picture is coded; the decoder never sees the turns. An orientation in EXIF says nothing
  here: the format gives it no meaning (ISO/IEC 23008-12, annex A).
- Pictures that only serve the first (thumbnail, depth, gain map, matte) would still show what was removed:
  they are left out and named. Further pictures, films and sequences are refused.
- A tiled picture stays tiled. All tiles are coded anew, for all must share one decoder configuration
  (ISO/IEC 23000-22, 7.3.11.4); otherwise the untouched ones could have stayed.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from watcher.worker.imaging.formats.heif.isobmff import (
    Property,
    box_bytes,
    read_items,
    without_brand,
    write_items,
)
from watcher.worker.imaging.formats.heif.roles import Roles, printable, roles_of
from watcher.worker.imaging.metadata import exif_without_pictures, xmp_without_pictures
from watcher.worker.imaging.orientation import to_viewed
from watcher.worker.imaging.picture import ALPHA_MODES, Encoded, Picture, animated, damaged
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from PIL import Image

    from watcher.wire import Outside
    from watcher.worker.imaging.formats.heif.isobmff import Item, ItemFile
    from watcher.worker.imaging.picture import Encoding, Filled, Pixels

_TURNS = (b"irot", b"imir")
_CODING = (b"ispe", b"clap")
_ZERO_TAIL_BYTES = 512
_MOST_NAMES = 20
"""So many parts of a kind are named; a file that an enemy made may have thousands."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How pictures of a file are coded.

    Attributes:
        grey: there is no colour.
        depth: bits a sample.
        subsampling: "4:2:0", "4:2:2", "4:4:4", or "4:0:0" for grey.
        quality: that gives the same quantiser, 0 to 100; None where that cannot be told.
        lossless: it was coded without loss.
        coded_pixels: size of the coded picture, or 0 where that cannot be told.
    """

    grey: bool
    depth: int
    subsampling: str
    quality: int | None
    lossless: bool
    coded_pixels: int


@dataclass(frozen=True, slots=True)
class Order:
    """How a picture is to be coded.

    Attributes:
        depth: bits a sample.
        subsampling: as `Coding.subsampling`.
        quality: 0 to 100.
        lossless: without loss, whatever the quality.
        colour: primaries, transfer, matrix and full range (ISO/IEC 23091-2) of the source; None for none.
    """

    depth: int
    subsampling: str
    quality: int
    lossless: bool = False
    colour: tuple[int, int, int, bool] | None = None


class HeifPicture(Picture):
    """A picture of a HEIF file."""

    coded_kind: ClassVar[bytes]
    configuration_kind: ClassVar[bytes]
    smallest_tile: ClassVar[int] = 1
    """Smaller tiles, and odd ones if this is more than 1, do not come out of the encoder as they are."""
    default_quality: ClassVar[int]

    def __init__(self, data: bytes, image: Image.Image, file: ItemFile, roles: Roles, coding: Coding) -> None:
        mode = "L" if coding.grey else "RGB"
        if roles.alpha:
            mode += "A"
        if coding.depth > 8:  # noqa: PLR2004 - bits
            mode = "I;16" if mode == "L" else f"{mode};16"
        picture = file.items[file.primary]
        super().__init__(data, image, mode=mode, orientation=orientation_of(picture))
        self.icc_profile = _profile(file, roles)
        self._file = file
        self._roles = roles
        self._coding = coding
        self._alpha: Pixels | None = None

    @classmethod
    def open(cls, data: bytes, *, fresh: bool) -> HeifPicture:  # noqa: ARG003 - boxes tell their length
        """Judge the structure and read the header."""
        cls.check_support()
        file = read_items(data, cls.container)
        if b"moov" in file.others or file.file_type[8:12] in _SEQUENCES:
            raise animated(cls.container)
        roles = roles_of(file, cls.container, cls.coded_kind)
        _refuse_zero_tail(file, roles, cls.container)
        coding = cls._coding_of(file, roles)
        return cls(data, cls.header(bare(file, roles)), file, roles, coding)

    @classmethod
    def check_support(cls) -> None:
        """See that the decoder is there.

        Raises:
            RefusedError: it is not (unsupported).
        """

    @classmethod
    @abstractmethod
    def header(cls, data: bytes) -> Image.Image:
        """Let the decoder's library read the header of a bare file."""

    @classmethod
    @abstractmethod
    def judge(cls, item: Item) -> Coding:
        """Tell how a coded item is coded, from its configuration.

        Raises:
            IndexError: the configuration is too short.
        """

    @abstractmethod
    def decode(self, data: bytes) -> Pixels:
        """Decode a bare file: (height, width) or (height, width, channels), deep samples in the high bits."""

    @abstractmethod
    def encode_picture(self, pixels: Pixels, order: Order) -> bytes:
        """Encode colour (height, width, 3) or grey (height, width) as a file of one item.

        Args:
            pixels: uint8, or uint16 with the sample in the high bits.
            order: how.
        """

    @classmethod
    def _coding_of(cls, file: ItemFile, roles: Roles) -> Coding:
        try:
            codings = [cls.judge(file.items[number]) for number in (*roles.coded, *roles.alpha_coded)]
        except IndexError as error:
            raise damaged(cls.container, "it does not say how it is coded") from error
        first = codings[0]
        if any(_form(coding) != _form(first) for coding in codings[: len(roles.coded)]):
            raise damaged(cls.container, "its tiles are of different kinds")
        for number, coding in zip((*roles.coded, *roles.alpha_coded), codings, strict=True):
            width, height = roles.sizes[number]
            if coding.coded_pixels > 2 * (width + 128) * (height + 128):
                raise damaged(cls.container, "it is coded far larger than it says to be")
        if roles.grid is not None:
            _refuse_tiles(roles.sizes[roles.coded[0]], cls.smallest_tile, cls.container)
        return first

    def load(self) -> Pixels:
        """Decode the pixels: own mode, stored orientation."""
        pixels = self._own(self.decode(bare(self._file, self._roles)))
        if pixels.shape[:2] != (self.height, self.width):
            raise damaged(self.container, "its header tells another size than its data")
        if self.mode in ALPHA_MODES:
            self._alpha = pixels[..., -1].copy()
        return pixels

    def _own(self, pixels: Pixels) -> Pixels:
        """Bring decoded pixels into the picture's own mode: decoders spread grey over R, G and B."""
        if not self._coding.grey or pixels.ndim == 2 or pixels.shape[2] == 2:  # noqa: PLR2004 - grey, or grey and alpha
            return pixels
        return np.ascontiguousarray(pixels[..., [0, 3]] if self._roles.alpha else pixels[..., 0])

    def encode(self, filled: Filled, how: Encoding) -> Encoded:
        """Return a filled picture in this container."""
        dropped: list[str] = []
        file = _without_companions(self._file, self._roles, dropped, keep=how.keep_metadata)
        order = self.order(how)
        pixels = filled.pixels
        if self.mode in ALPHA_MODES:
            colour, alpha = pixels[..., :-1], pixels[..., -1]
            self._replace(file, self._roles.coded, colour[..., 0] if self._coding.grey else colour, order)
            if not np.array_equal(alpha, self._alpha if self._alpha is not None else alpha):
                self._replace_alpha(file, alpha)
        else:
            self._replace(file, self._roles.coded, pixels, order)
        _name_lost_colour(self._file, file, self._roles, dropped)
        data = write_items(file)
        same = order.lossless and self._is_same_outside(file, filled)
        outside: Outside = "identical" if same else "reencoded"
        return Encoded(data, outside, tuple(dict.fromkeys(dropped)))

    def _is_same_outside(self, file: ItemFile, filled: Filled) -> bool:
        """Whether a result coded without loss has the same pixels: it has not if colours were converted."""
        pixels = self._own(self.decode(bare(file, self._roles)))
        differs = pixels != filled.pixels
        return not (differs.any(axis=-1) if differs.ndim == 3 else differs)[~filled.hole].any()  # noqa: PLR2004 - (height, width, channels)

    def order(self, how: Encoding) -> Order:
        """Say how a result is to be coded: as its source was, or as its recipe wants."""
        own = self._coding
        lossless = own.lossless and how.quality is None
        quality = how.quality
        if quality is None:
            quality = self.default_quality if own.quality is None else own.quality
        return Order(own.depth, own.subsampling, quality, lossless, _colour(self._file, self._roles))

    def _replace_alpha(self, file: ItemFile, alpha: Pixels) -> None:
        depth = self.judge(file.items[self._roles.alpha_coded[0]]).depth
        order = Order(depth, "4:0:0", 100, lossless=True)
        self._replace(file, self._roles.alpha_coded, alpha, order)

    def _replace(self, file: ItemFile, coded: tuple[int, ...], pixels: Pixels, order: Order) -> None:
        """Encode a picture in its tiles, and put each in the place of the old one."""
        deep = pixels.dtype == np.uint16
        if deep and order.depth <= 8:  # noqa: PLR2004 - alpha may have fewer bits than colour
            pixels = (pixels >> 8).astype(np.uint8)
        grid = self._roles.grid
        tile_size = self._roles.sizes[coded[0]] if grid is not None and len(coded) > 1 else None
        for number, tile in zip(coded, _tiles(pixels, tile_size, len(coded)), strict=True):
            made = read_items(self.encode_picture(tile, order), self.container)
            new = made.items[made.primary]
            item = file.items[number]
            item.data = new.data
            item.within_meta = False
            item.properties = self._properties(item, new)
        if order.subsampling != "4:0:0" or self._coding.grey:
            self._say_colour(file, coded, new)

    def _properties(self, item: Item, new: Item) -> list[Property]:
        """Return an item's properties with what its coding determines taken from the new one."""
        coding = (*_CODING, self.configuration_kind)
        taken = [entry for entry in new.properties if entry.kind in coding]
        kept = [entry for entry in item.properties if entry.kind not in coding]
        # Transformations are done in order: what the encoder cuts off comes before the turns.
        turns = [entry for entry in kept if entry.kind in _TURNS]
        return [*(entry for entry in kept if entry.kind not in _TURNS), *taken, *turns]

    def _say_colour(self, file: ItemFile, coded: tuple[int, ...], new: Item) -> None:
        """Where the file says how colours are coded, let it say how they are now."""
        made = _colour_boxes(new)
        if not made:
            return
        for number in {file.primary, *coded}:
            item = file.items[number]
            item.properties = [
                Property(box_bytes(b"colr", entry.body[:8] + made[0].body[8:11]), entry.essential)
                if entry in _colour_boxes(item)
                else entry
                for entry in item.properties
            ]


def _name_lost_colour(source: ItemFile, result: ItemFile, roles: Roles, dropped: list[str]) -> None:
    """Name it where the encoder could not code colours as the source's were."""
    before, after = _colour(source, roles), _colour(result, roles)
    if before is not None and after != before:
        dropped.append(f"colour coding {_colour_words(before)}")


def _colour_words(colour: tuple[int, int, int, bool]) -> str:
    primaries, transfer, matrix, full = colour
    return f"{primaries}/{transfer}/{matrix}/{'full' if full else 'limited'}"


_GAIN_MAP_BRAND = b"tmap"
_SEQUENCES = frozenset({b"hevc", b"hevx", b"hevm", b"hevs", b"msf1", b"avis"})


def _form(coding: Coding) -> tuple[bool, int, str]:
    return coding.grey, coding.depth, coding.subsampling


def bare(file: ItemFile, roles: Roles) -> bytes:
    """Return a file of the picture and its alpha alone, without turns: what a decoder is given."""
    found = file.only(roles.served)
    for item in found.items.values():
        item.properties = [entry for entry in item.properties if entry.kind not in _TURNS]
    return write_items(found)


def orientation_of(item: Item) -> int:
    """Return the EXIF orientation, 1 to 8, that an item's turns amount to."""
    corner = np.arange(6).reshape(2, 3)
    viewed: NDArray[np.int_] = corner
    for entry in item.properties:
        if entry.kind == b"irot" and entry.body:
            viewed = np.rot90(viewed, entry.body[0] & 3)  # against the clock (ISO/IEC 23008-12, 6.5.10)
        elif entry.kind == b"imir" and entry.body:
            viewed = viewed[:, ::-1] if entry.body[0] & 1 else viewed[::-1]  # 6.5.12
    return next(turn for turn in range(1, 9) if np.array_equal(to_viewed(corner, turn), viewed))


def _colour_boxes(item: Item) -> list[Property]:
    return [entry for entry in item.all_of(b"colr") if entry.body[:4] == b"nclx" and len(entry.body) >= 11]  # noqa: PLR2004 - ISO/IEC 14496-12, 12.1.5


def _colour(file: ItemFile, roles: Roles) -> tuple[int, int, int, bool] | None:
    for number in (file.primary, roles.coded[0]):
        for entry in _colour_boxes(file.items[number]):
            primaries, transfer, matrix, flags = struct.unpack_from(">HHHB", entry.body, 4)
            return primaries, transfer, matrix, bool(flags & 0x80)
    return None


def _profile(file: ItemFile, roles: Roles) -> bytes:
    for number in (file.primary, roles.coded[0]):
        for entry in file.items[number].all_of(b"colr"):
            if entry.body[:4] in (b"prof", b"rICC"):
                return entry.body[4:]
    return b""


def _refuse_tiles(size: tuple[int, int], smallest: int, name: str) -> None:
    if min(size) < smallest or (smallest > 1 and (size[0] & 1 or size[1] & 1)):
        raise RefusedError(
            "unsupported",
            f"this {name} is made of tiles of {size[0]}x{size[1]} pixels, which cannot be written back",
            "export it as JPEG or PNG and drop that",
        )


def _refuse_zero_tail(file: ItemFile, roles: Roles, name: str) -> None:
    for number in (*roles.coded, *roles.alpha_coded):
        data = file.items[number].data
        tail = data[-_ZERO_TAIL_BYTES:]
        if not data or not (tail if len(data) > _ZERO_TAIL_BYTES else data).strip(b"\x00"):
            raise IncompleteError(f"the {name}'s picture data ends in zeros")


def _tiles(pixels: Pixels, size: tuple[int, int] | None, count: int) -> Iterator[Pixels]:
    """Cut a picture into tiles by rows; those over its edge are filled with the edge's pixels."""
    if size is None:
        yield pixels
        return
    width, height = size
    columns = -(-pixels.shape[1] // width)
    for number in range(count):
        top, left = number // columns * height, number % columns * width
        tile = pixels[top : top + height, left : left + width]
        margins = [(0, height - tile.shape[0]), (0, width - tile.shape[1]), (0, 0)]
        yield np.pad(tile, margins[: tile.ndim], mode="edge")


def _without_companions(file: ItemFile, roles: Roles, dropped: list[str], *, keep: bool) -> ItemFile:
    """Return the file less what would show the removed, or what the recipe does not want."""
    dropped += roles.companions[:_MOST_NAMES]
    numbers = list(roles.served)
    unknown: dict[str, None] = {}
    for number, name in roles.metadata:
        if keep and name is not None:
            numbers.append(number)
        elif name is not None:
            dropped.append(name)
        else:
            unknown.setdefault(_item_name(file.items[number]))
    dropped += list(unknown)[:_MOST_NAMES]
    kept = without_brand(file, _GAIN_MAP_BRAND).only(sorted(numbers, key=list(file.items).index))
    for number, _ in roles.metadata:
        if (item := kept.items.get(number)) is not None:
            _clean(item, dropped, companions_lost=bool(roles.companions))
    return kept


def _item_name(item: Item) -> str:
    return f"item '{printable(item.content_type or item.kind)}'"


def _clean(item: Item, dropped: list[str], *, companions_lost: bool) -> None:
    if item.kind == b"Exif" and len(item.data) > 4:  # noqa: PLR2004 - the offset of the block (annex A.2.1)
        start = min(4 + int.from_bytes(item.data[:4], "big"), len(item.data))
        if item.data[start : start + 2] not in (b"II", b"MM"):
            start = 4
        item.data = item.data[:start] + exif_without_pictures(item.data[start:], dropped)
    elif item.kind == b"mime":
        item.data = xmp_without_pictures(item.data, dropped, companions_lost=companions_lost)
