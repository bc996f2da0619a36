"""Which items of a HEIF file are the picture, which belong to it, and which only show it again.

Rules of this module:
- Every item gets exactly one role; what has none is a further picture, and the file is refused.
- A picture that a reader may not show without knowing more than is known here is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from watcher.worker.imaging.picture import damaged
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from watcher.worker.imaging.formats.heif.isobmff import Item, ItemFile
    from watcher.worker.imaging.sniffing import Container

_ALPHA = frozenset(
    {
        b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha",
        b"urn:mpeg:hevc:2015:auxid:1",
        b"urn:mpeg:avc:2015:auxid:1",
    }
)
_AUXILIARIES: tuple[tuple[bytes, str], ...] = (
    (b"hdrgainmap", "gain map"),
    (b"auxid:2", "depth map"),
    (b"depth", "depth map"),
    (b"disparity", "depth map"),
    (b"matte", "matte"),
)
_METADATA: dict[bytes, str] = {b"Exif": "EXIF", b"iptc": "IPTC"}
_XMP = b"application/rdf+xml"
_KNOWN_PROPERTIES = frozenset(
    {b"ispe", b"pixi", b"colr", b"irot", b"imir", b"clap", b"hvcC", b"av1C", b"auxC", b"pasp"}
)
"""What a property may be that a reader must know: the rest of the known ones are never essential."""
_LAYERS = frozenset({b"lhvC", b"oinf", b"tols", b"lsel", b"a1lx", b"a1op"})
_EXPORT = "export it as JPEG or PNG and drop that"


@dataclass(frozen=True, slots=True)
class Grid:
    """The tiles of a picture."""

    rows: int
    columns: int
    width: int
    height: int


@dataclass(slots=True)
class Roles:
    """What the items of a file are for.

    Attributes:
        coded: the picture, or its tiles by rows.
        alpha: the item that holds its alpha, or nothing.
        alpha_coded: that item, or its tiles.
        grid: of the picture, if it is tiled.
        served: all of these.
        metadata: each item that says something of them, and its name; None for what is not known to be
            free of pictures.
        companions: names of the pictures and other parts that are left out.
        sizes: of coded items, by number: width and height.
    """

    coded: tuple[int, ...]
    alpha: tuple[int, ...] = ()
    alpha_coded: tuple[int, ...] = ()
    grid: Grid | None = None
    served: tuple[int, ...] = ()
    metadata: list[tuple[int, str | None]] = field(default_factory=list)
    companions: list[str] = field(default_factory=list)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)


def roles_of(file: ItemFile, name: Container, coded_kind: bytes) -> Roles:
    """Find out what each item is for.

    Args:
        file: the items.
        name: of the format, for reasons.
        coded_kind: type of the items that can be decoded.

    Raises:
        RefusedError: the file holds several pictures, or one that is not served (unsupported), or contradicts
            itself (undecodable).
    """
    coded, grid = _coded(file, file.primary, name, coded_kind)
    roles = Roles(coded, grid=grid)
    _find_alpha(file, roles, name, coded_kind)
    roles.served = tuple(dict.fromkeys((file.primary, *coded, *roles.alpha, *roles.alpha_coded)))
    for number in roles.served:
        _refuse_unknown(file.items[number], name)
        if file.targets(number, b"prem"):
            raise _unsupported(name, "multiplies its colours by its alpha")
    for number in (*coded, *roles.alpha_coded):
        roles.sizes[number] = _size(file.items[number], name)
    _refuse_uneven(file, roles, name)
    companions = _companions(file, roles)
    _find_metadata(file, roles, companions)
    others = file.items.keys() - set(roles.served) - companions.keys() - dict(roles.metadata).keys()
    if others:
        count = 1 + _independent(file, others)
        raise RefusedError(
            "unsupported",
            f"this {name} holds {count} pictures (stereo, burst), and only one would stay",
            "split it into single pictures and drop those",
        )
    roles.companions = [text for text in companions.values() if text]
    roles.companions += [_NAMED_BOXES.get(kind, f"box '{printable(kind)}'") for kind in file.others]
    return roles


_NAMED_BOXES = {
    b"mpvd": "motion photo clip",
    b"sefd": "Samsung's data behind the picture",
    b"uuid": "data of the program that wrote it",
}
_NAME_CHARACTERS = 40


def printable(name: bytes) -> str:
    """Return a name out of a file so that it can stand in a record and on a screen."""
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in name[:_NAME_CHARACTERS])  # noqa: PLR2004 - ASCII


def _unsupported(name: str, does: str) -> RefusedError:
    return RefusedError("unsupported", f"this {name} {does}, which is not served", _EXPORT)


def _coded(
    file: ItemFile, number: int, name: Container, coded_kind: bytes
) -> tuple[tuple[int, ...], Grid | None]:
    item = file.items[number]
    if item.kind == coded_kind:
        return (number,), None
    if item.kind != b"grid":
        raise _unsupported(name, f"is made in another way (item type '{printable(item.kind)}')")
    grid = _grid(item, name)
    tiles = tuple(file.targets(number, b"dimg"))
    if len(tiles) != grid.rows * grid.columns or len(set(tiles)) != len(tiles):
        raise damaged(name, f"{len(tiles)} tiles for {grid.rows} rows of {grid.columns}")
    if any(tile not in file.items or file.items[tile].kind != coded_kind for tile in tiles):
        raise _unsupported(name, "is made of tiles of another kind")
    return tiles, grid


def _grid(item: Item, name: Container) -> Grid:
    """Read a grid's description (ISO/IEC 23008-12, 6.6.2.3)."""
    try:
        _, flags, rows, columns = struct.unpack_from(">BBBB", item.data)
        width, height = struct.unpack_from(">II" if flags & 1 else ">HH", item.data, 4)
    except struct.error as error:
        raise damaged(name, "it does not say how its tiles lie") from error
    return Grid(rows + 1, columns + 1, width, height)


def _find_alpha(file: ItemFile, roles: Roles, name: Container, coded_kind: bytes) -> None:
    for number in _auxiliaries(file, file.primary):
        if _auxiliary_type(file.items[number]) in _ALPHA:
            roles.alpha = (number,)
            roles.alpha_coded, grid = _coded(file, number, name, coded_kind)
            if grid != roles.grid and grid is not None:
                raise _unsupported(name, "has its alpha in tiles of its own")
            return
    for tile in roles.coded:
        if any(_auxiliary_type(file.items[number]) in _ALPHA for number in _auxiliaries(file, tile)):
            raise _unsupported(name, "has alpha in each of its tiles")


def _auxiliaries(file: ItemFile, number: int) -> list[int]:
    return [source for source in file.sources(number, b"auxl") if source in file.items]


def _auxiliary_type(item: Item) -> bytes:
    for entry in item.all_of(b"auxC"):
        return entry.body[4:].split(b"\x00")[0]
    return b""


def _refuse_unknown(item: Item, name: Container) -> None:
    for entry in item.properties:
        if entry.kind in _LAYERS:
            raise _unsupported(name, "is coded in layers")
        if entry.essential and entry.kind not in _KNOWN_PROPERTIES:
            raise _unsupported(name, f"has a property that is not known (type '{printable(entry.kind)}')")


def _size(item: Item, name: Container) -> tuple[int, int]:
    for entry in item.all_of(b"ispe"):
        if len(entry.body) >= 12:  # noqa: PLR2004 - version, width, height
            width, height = struct.unpack_from(">II", entry.body, 4)
            if width and height:
                return width, height
    raise damaged(name, "it does not say how large it is")


def _refuse_uneven(file: ItemFile, roles: Roles, name: Container) -> None:
    """See that tiles are plain, of one size, and cover the picture."""
    grid = roles.grid
    if grid is None:
        return
    width, height = roles.sizes[roles.coded[0]]
    if any(roles.sizes[tile] != (width, height) for tile in roles.coded):
        raise damaged(name, "its tiles are of different sizes")
    covered = (grid.columns - 1) * width < grid.width <= grid.columns * width
    if not covered or not (grid.rows - 1) * height < grid.height <= grid.rows * height:
        raise damaged(name, "its tiles do not cover it")
    turned = {b"irot", b"imir", b"clap"}
    if any(entry.kind in turned for tile in roles.coded for entry in file.items[tile].properties):
        raise _unsupported(name, "turns or cuts its tiles")
    if file.items[file.primary].all_of(b"clap"):
        raise _unsupported(name, "is cut out of its tiles")


def _companions(file: ItemFile, roles: Roles) -> dict[int, str]:
    """Return the items that only show the picture again, or parts of it: number to name, parts without."""
    served = set(roles.served)
    found: dict[int, str] = {}
    for reference in file.references:
        number = reference.source
        if number in served or number not in file.items:
            continue
        if reference.kind == b"thmb" and served & set(reference.targets):
            found[number] = "thumbnail"
        elif reference.kind == b"auxl" and served & set(reference.targets):
            found[number] = _auxiliary_name(_auxiliary_type(file.items[number]))
        elif file.items[number].kind == b"tmap" and file.primary in reference.targets:
            found[number] = "gain map"
    for number in _alternatives(file) & file.items.keys() - served:
        found.setdefault(number, "alternative picture")
    _add_dependants(file, found, served)
    return found


def _alternatives(file: ItemFile) -> set[int]:
    """Return what a reader may show instead of the picture, and that is no other one of a burst or pair."""
    found: set[int] = set()
    others: set[int] = set()
    for group in file.groups:
        if file.primary in group.members:
            (found if group.kind == b"altr" else others).update(group.members)
    return found - others


def _auxiliary_name(kind: bytes) -> str:
    return next((name for part, name in _AUXILIARIES if part in kind), "auxiliary picture")


def _add_dependants(file: ItemFile, found: dict[int, str], served: set[int]) -> None:
    """Add what companions are made of, and what only serves companions."""
    grown = True
    while grown:
        before = len(found)
        for reference in file.references:
            if reference.source in found and reference.kind == b"dimg":
                for number in set(reference.targets) & file.items.keys() - served:
                    found.setdefault(number, "")
            elif (
                reference.kind in (b"thmb", b"auxl", b"cdsc")
                and reference.source in file.items.keys() - served
                and found.keys() >= set(reference.targets) & file.items.keys()
            ):
                found.setdefault(reference.source, "")
        grown = len(found) > before


def _find_metadata(file: ItemFile, roles: Roles, companions: dict[int, str]) -> None:
    for number, item in file.items.items():
        if number in companions or number in roles.served or item.all_of(b"ispe"):
            continue
        if item.kind == b"mime" and item.content_type == _XMP:
            roles.metadata.append((number, "XMP"))
        elif item.kind not in (b"hvc1", b"av01", b"grid", b"iden", b"iovl", b"jpeg"):
            roles.metadata.append((number, _METADATA.get(item.kind)))


def _independent(file: ItemFile, numbers: Iterable[int]) -> int:
    """Count the pictures that are no parts of others."""
    parts = {
        target
        for reference in file.references
        if reference.kind in (b"dimg", b"thmb", b"auxl")
        for target in (reference.targets if reference.kind == b"dimg" else (reference.source,))
    }
    return max(1, len(set(numbers) - parts))
