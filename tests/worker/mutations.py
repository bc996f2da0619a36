"""Picture files that somebody or something has damaged, in every way that files are damaged or forged.

What this module owns: the seeds (one whole file of each row of `rows`), the mutators, and drawing one damaged
file after the other. Rules of this module:
- A number and a draw give the same bytes on every run.
- A mutator that knows a format's parts (segments, chunks, entries, boxes) keeps the rest whole, and sets
  checksums and sizes right behind it, so that what is damaged is reached.
- It imports nothing of `watcher`: how a file is cut into parts must not depend on what is tested.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.worker.rows import ROWS, scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.random import Generator

WIDE, HIGH = 48, 40
"""Small: most of a file is structure then, and not picture data."""
SUFFIXES: Final = {
    "JPEG": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "TIFF": "tif",
    "GIF": "gif",
    "BMP": "bmp",
    "HEIF": "heic",
}
VALUES: Final = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
"""Where counts, signs and sizes overflow."""


@dataclass(frozen=True)
class Seed:
    """A whole file, the container that it is in, and the size as a person sees it."""

    name: str
    container: str
    size: tuple[int, int]
    data: bytes


@dataclass(frozen=True)
class Mutant:
    """A damaged file.

    Attributes:
        seed: what it was made from.
        mutators: what was done to it, in order.
        data: its bytes.
    """

    seed: Seed
    mutators: tuple[str, ...]
    data: bytes

    def __str__(self) -> str:
        """Return how it was made, for people."""
        return f"{self.seed.name}: {' + '.join(self.mutators) or 'whole'}"


def hole(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """What a mask marks (left, top, right, bottom): the middle, however a picture is turned."""
    width, height = size
    return width // 2 - 4, height // 2 - 4, width // 2 + 4, height // 2 + 4


def seeds() -> list[Seed]:
    """Every row, each in one of the orientations that its container can say."""
    found = []
    for number, row in enumerate(ROWS.values()):
        orientation = row.orientations[number % len(row.orientations)]
        size = (HIGH, WIDE) if orientation >= 5 else (WIDE, HIGH)
        found.append(Seed(row.name, row.container, size, row.encode(scene(WIDE, HIGH), orientation)))
    return found


def mutants(corpus: Sequence[Seed], number: int) -> Iterator[Mutant]:
    """Draw damaged files without an end; the containers come equally often.

    Args:
        corpus: whole files.
        number: of the draw.
    """
    random = np.random.default_rng(number)
    by_container: dict[str, list[Seed]] = {}
    for seed in corpus:
        by_container.setdefault(seed.container, []).append(seed)
    containers = sorted(by_container)
    while True:
        family = by_container[containers[int(random.integers(len(containers)))]]
        seed, other = (family[int(random.integers(len(family)))] for _ in range(2))
        data, done = seed.data, []
        for _ in range(1 + int(random.integers(3) == 0)):
            name = list(MUTATORS)[int(random.integers(len(MUTATORS)))]
            data = MUTATORS[name](random, seed.container, data, other.data)
            done.append(name)
        yield Mutant(seed, tuple(done), data)


# --- parts of a file ---------------------------------------------------------------------------------------


def parts_of(container: str, data: bytes) -> list[bytes]:
    """Cut a whole or damaged file into its parts; joined they are the file."""
    cut = _CUTTERS.get(container, _cut_nothing)
    places = [0, *sorted({place for place in cut(data) if 0 < place < len(data)}), len(data)]
    return [data[start:stop] for start, stop in pairwise(places)]


def _cut_nothing(_: bytes) -> Iterator[int]:
    yield from ()


def _cut_jpeg(data: bytes) -> Iterator[int]:
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        yield place
        place += 2 + struct.unpack_from(">H", data, place + 2)[0]
        if data[place - 2 : place] == b"\x3f\x00":  # behind the header of a scan
            yield place
            following = data.find(b"\xff\xc4", place)
            place = following if following >= 0 else len(data)
    yield len(data) - 2


def _cut_png(data: bytes) -> Iterator[int]:
    place = 8
    while place + 12 <= len(data):
        yield place
        place += 12 + struct.unpack_from(">I", data, place)[0]


def _cut_riff(data: bytes) -> Iterator[int]:
    place = 12
    while place + 8 <= len(data):
        yield place
        size = struct.unpack_from("<I", data, place + 4)[0]
        place += 8 + size + (size & 1)


def _cut_tiff(data: bytes) -> Iterator[int]:
    order = "<" if data[:2] == b"II" else ">"
    if len(data) < 8:
        return
    (place,) = struct.unpack_from(f"{order}I", data, 4)
    if place + 2 > len(data):
        return
    (count,) = struct.unpack_from(f"{order}H", data, place)
    for number in range(count + 1):
        yield place + 2 + 12 * number


def _cut_gif(data: bytes) -> Iterator[int]:
    if len(data) < 13:
        return
    place = 13 + (3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0)
    while place < len(data):
        yield place
        if data[place] == 0x2C and place + 10 <= len(data):
            flags = data[place + 9]
            place += 11 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
        else:
            place += 2
        while place < len(data) and data[place]:
            place += 1 + data[place]
        place += 1


def _cut_boxes(data: bytes) -> Iterator[int]:
    yield from _boxes(data, 0, len(data))


_HOLDERS: Final = {b"meta": 12, b"iprp": 8, b"ipco": 8, b"iinf": 14, b"iref": 12}
"""Boxes that hold boxes, and how long their own header is."""


def _boxes(data: bytes, place: int, stop: int) -> Iterator[int]:
    while place + 8 <= stop:
        yield place
        size, kind = struct.unpack_from(">I4s", data, place)
        if size < 8:
            return
        if kind in _HOLDERS:
            yield from _boxes(data, place + _HOLDERS[kind], min(place + size, stop))
        place += size


def _cut_bmp(_: bytes) -> Iterator[int]:
    yield from (14, 54)


_CUTTERS: Final[Mapping[str, Callable[[bytes], Iterator[int]]]] = {
    "JPEG": _cut_jpeg,
    "PNG": _cut_png,
    "WEBP": _cut_riff,
    "TIFF": _cut_tiff,
    "GIF": _cut_gif,
    "BMP": _cut_bmp,
    "HEIF": _cut_boxes,
}


def mended(container: str, data: bytes) -> bytes:
    """Set right what says how long a file is and what sums it up, where its format has that."""
    if container == "PNG":
        return b"".join(_mended_chunk(part) for part in parts_of(container, data))
    if container == "WEBP" and len(data) >= 12:
        return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    if container == "TIFF" and len(data) >= 8:
        return _with_count(data)
    return data


def _mended_chunk(part: bytes) -> bytes:
    if len(part) < 12 or part.startswith(b"\x89PNG"):
        return part
    body = part[4:-4]
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def _with_count(data: bytes) -> bytes:
    order = "<" if data[:2] == b"II" else ">"
    (place,) = struct.unpack_from(f"{order}I", data, 4)
    if place + 2 > len(data):
        return data
    left = min(0xFFFF, (len(data) - place - 2) // 12)
    (count,) = struct.unpack_from(f"{order}H", data, place)
    return data[:place] + struct.pack(f"{order}H", min(count, left)) + data[place + 2 :]


# --- mutators ----------------------------------------------------------------------------------------------


def _place(random: Generator, data: bytes) -> int:
    """Draw a place, more often near the start, where the structure is."""
    if random.integers(2):
        return int(random.integers(min(len(data), 512)))
    return int(random.integers(len(data)))


def _flip(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    changed = bytearray(data)
    for _number in range(int(random.integers(1, 17))):
        changed[_place(random, data)] ^= 1 << int(random.integers(8))
    return bytes(changed)


def _put_value(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    """Put a telling number somewhere, as 16 or 32 bits of either order."""
    kind = ("<H", ">H", "<I", ">I")[int(random.integers(4))]
    size = struct.calcsize(kind)
    value = (*VALUES, len(data), len(data) // 2)[int(random.integers(len(VALUES) + 2))]
    place = min(_place(random, data), max(0, len(data) - size))
    return data[:place] + struct.pack(kind, value & ((1 << 8 * size) - 1)) + data[place + size :]


_LENGTHS: Final = {
    "JPEG": (2, ">H"),
    "PNG": (0, ">I"),
    "WEBP": (4, "<I"),
    "TIFF": (4, "<I"),
    "HEIF": (0, ">I"),
}
"""Where in a part its length or count stands."""


def _put_length(random: Generator, container: str, data: bytes, other: bytes) -> bytes:
    """Change what a part says of its own length."""
    parts = parts_of(container, data)
    place, kind = _LENGTHS.get(container, (0, ">B"))
    chosen = int(random.integers(len(parts)))
    part, size = parts[chosen], struct.calcsize(kind)
    if len(part) < place + size:
        return _put_value(random, container, data, other)
    if container == "TIFF" and data[:2] == b"MM":
        kind = ">I"
    (length,) = struct.unpack_from(kind, part, place)
    choices = (length - 1, length + 1, length * 2, length // 2, *VALUES)
    value = choices[int(random.integers(len(choices)))] & ((1 << 8 * size) - 1)
    parts[chosen] = part[:place] + struct.pack(kind, value) + part[place + size :]
    return b"".join(parts)


def _truncate(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    return data[: max(1, int(random.integers(len(data))))]


_ENDS: Final = {"JPEG": b"\xff\xd9", "PNG": b"\x00\x00\x00\x00IEND\xaeB`\x82", "GIF": b"\x00;"}


def _truncate_with_end(random: Generator, container: str, data: bytes, other: bytes) -> bytes:
    """Cut it, and put its end behind the cut."""
    return mended(container, _truncate(random, container, data, other) + _ENDS.get(container, b""))


def _edit_parts(random: Generator, container: str, data: bytes, other: bytes) -> bytes:
    """Repeat, remove, exchange or take over parts."""
    parts = parts_of(container, data)
    one, two = (int(random.integers(len(parts))) for _ in range(2))
    foreign = parts_of(container, other)
    match int(random.integers(5)):
        case 0:
            parts[one:one] = [parts[one]] * int(random.integers(1, 40))
        case 1:
            del parts[one]
        case 2:
            parts[one], parts[two] = parts[two], parts[one]
        case 3:
            parts.insert(one, foreign[int(random.integers(len(foreign)))])
        case _:
            parts[one] = foreign[int(random.integers(len(foreign)))]
    return b"".join(parts) or data


def _inside_a_part(random: Generator, container: str, data: bytes, other: bytes) -> bytes:
    """Damage what one part holds, and set its checksum right."""
    parts = parts_of(container, data)
    chosen = int(random.integers(len(parts)))
    head, tail = (8, 4) if container == "PNG" else (min(4, len(parts[chosen]) // 2), 0)
    body = parts[chosen][head : len(parts[chosen]) - tail]
    if not body:
        return _flip(random, container, data, other)
    damage = (_flip, _put_value, _zeros, _truncate)[int(random.integers(4))]
    changed = damage(random, container, body, other)
    parts[chosen] = parts[chosen][:head] + changed + parts[chosen][len(parts[chosen]) - tail :]
    return mended(container, b"".join(parts))


def _splice(random: Generator, _: str, data: bytes, other: bytes) -> bytes:
    """Go on as another file of the same format."""
    return data[: _place(random, data)] + other[_place(random, other) :] or data


def _zeros(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    start = _place(random, data)
    stop = min(len(data), start + int(random.integers(1, 1 + max(1, len(data) // 4))))
    return data[:start] + bytes(stop - start) + data[stop:]


def _noise(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    start = _place(random, data)
    stop = min(len(data), start + int(random.integers(1, 1 + max(1, len(data) // 4))))
    return data[:start] + random.bytes(stop - start) + data[stop:]


def _append(random: Generator, _: str, data: bytes, other: bytes) -> bytes:
    tail = (random.bytes(int(random.integers(1, 4096))), other, data, bytes(4096))[int(random.integers(4))]
    return data + tail


def _insert(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    start = _place(random, data)
    return data[:start] + random.bytes(int(random.integers(1, 64))) + data[start:]


def _remove(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    start = _place(random, data)
    return data[:start] + data[start + int(random.integers(1, 64)) :] or data


def _texts(random: Generator, _: str, data: bytes, __: bytes) -> bytes:
    """Put what means something to terminals, logs, pages and shells into the file."""
    text = HOSTILE_TEXTS[int(random.integers(len(HOSTILE_TEXTS)))].encode("utf-8", "surrogateescape")
    start = _place(random, data)
    return data[:start] + text + data[start + len(text) :]


HOSTILE_TEXTS: Final = (
    'a\nb\r\n{"event": "job.finished"}',
    "\x1b[2J\x1b]0;title\x07",
    "<script>alert(1)</script>",
    "../../../etc/passwd\x00",
    "%s%n{0.__class__}",
    "\u202egpj.exe\u2066",
    "$(touch owned)`id`",
)

MUTATORS: Final[Mapping[str, Callable[[Generator, str, bytes, bytes], bytes]]] = {
    "bit flips": _flip,
    "values": _put_value,
    "lengths": _put_length,
    "cut": _truncate,
    "cut, with an end": _truncate_with_end,
    "parts": _edit_parts,
    "inside a part": _inside_a_part,
    "splice": _splice,
    "zeros": _zeros,
    "noise": _noise,
    "append": _append,
    "insert": _insert,
    "remove": _remove,
    "texts": _texts,
}
