"""Files whose reading would take time or memory out of all proportion to their pixels and bytes.

Each row was seen to do harm before it was bounded (the number is what it took then). Rules of this file:
- A bound is in processor time, so that a busy machine changes nothing, and generous: what is bounded takes a
  fraction of it, what is not takes a multiple.
- The file is a whole one, as its format has it: that it is refused is not because of damage.
"""

from __future__ import annotations

import io
import struct
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import Bench, photo, rectangle, save_mask
from watcher.wire import ItemDone, ItemFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from watcher.wire import FromWorker

BOUND_S = 4.0
BOUND_MB = 300
MB = 1_000_000


def by_pillow(container: str) -> bytes:
    target = io.BytesIO()
    Image.fromarray(photo(64, 64)).save(target, container)
    return target.getvalue()


# --- JPEG --------------------------------------------------------------------------------------------------


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def jpeg_with(*segments: bytes) -> bytes:
    """A small JPEG with segments behind its start."""
    data = by_pillow("JPEG")
    return b"".join([data[:2], *segments, data[2:]])


def xmp_of_jpeg(packet: bytes) -> bytes:
    return segment(0xE1, b"http://ns.adobe.com/xap/1.0/\x00" + packet)


def many_scans(width: int, height: int, scans: int) -> bytes:
    """A grey progressive JPEG that goes over the whole picture again and again, with ten bytes each time."""
    tables = segment(0xDB, b"\x00" + b"\x01" * 64)
    frame = segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00")
    codes = segment(0xC4, b"\x00" + b"\x01" + bytes(15) + b"\x00")
    codes += segment(0xC4, b"\x10" + b"\x01" + bytes(15) + b"\xe0")
    first = segment(0xDA, b"\x01\x01\x00\x00\x00\x00") + bytes(width * height // 512 + 1)
    return (
        b"\xff\xd8"
        + tables
        + frame
        + codes
        + first
        + segment(0xDA, b"\x01\x01\x00\x01\x3f\x00") * scans
        + b"\xff\xd9"
    )


# --- PNG, WebP, TIFF, GIF, BMP -----------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_with(*chunks: bytes) -> bytes:
    """A small PNG with chunks behind its header."""
    data = by_pillow("PNG")
    return b"".join([data[:33], *chunks, data[33:]])


def expanding(size: int) -> bytes:
    """A zlib stream of so many zeros, in whole blocks of 16 MiB."""
    block, count = 1 << 24, -(-size >> 24)
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    part = deflater.compress(bytes(block)) + deflater.flush(zlib.Z_FULL_FLUSH)
    checksum = (count * block % 65521) << 16 | 1  # Adler-32 of zeros
    return b"\x78\xda" + part * count + b"\x03\x00" + struct.pack(">I", checksum)


def webp_with(chunks: bytes, flags: int) -> bytes:
    """A small WebP with more chunks."""
    header = b"VP8X" + struct.pack("<II", 10, flags) + struct.pack("<I", 63)[:3] * 2
    body = header + by_pillow("WEBP")[12:] + chunks
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def webp_chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) & 1)


def tiff(entries: dict[int, int | tuple[int, ...]], data: bytes) -> bytes:
    """One directory of 4-byte values; -1 stands for where `data` begins."""
    directory_bytes = 2 + 12 * len(entries) + 4
    lists = sum(4 * len(value) for value in entries.values() if isinstance(value, tuple))
    start = 8 + directory_bytes + lists
    behind, parts = 8 + directory_bytes, []
    body = b""
    for tag, value in sorted(entries.items()):
        if isinstance(value, tuple):
            parts.append(struct.pack("<HHII", tag, 4, len(value), behind + len(body)))
            body += np.where(np.array(value) < 0, start, np.array(value)).astype("<u4").tobytes()
        else:
            parts.append(struct.pack("<HHII", tag, 4, 1, start if value < 0 else value))
    return b"II*\x00" + struct.pack("<IH", 8, len(parts)) + b"".join(parts) + bytes(4) + body + data


def shared_strip(rows: int, size: int) -> bytes:
    """A strip a row, all of them the same bytes, of which a row needs the first few."""
    data = zlib.compress(bytes(range(1, 11))) + b"\x01" * size
    return tiff(
        {
            256: 10,
            257: rows,
            258: 8,
            259: 8,
            262: 1,
            273: (-1,) * rows,
            277: 1,
            278: 1,
            279: (len(data),) * rows,
        },
        data,
    )


def many_strips(count: int) -> bytes:
    """A strip a row, of one pixel each."""
    data = zlib.compress(b"a")
    places = (-1,) * count
    return tiff(
        {256: 1, 257: count, 258: 8, 259: 8, 262: 1, 273: places, 277: 1, 278: 1, 279: (len(data),) * count},
        data,
    )


def huge_tile(side: int) -> bytes:
    data = expanding(side * side)
    return tiff(
        {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: -1, 325: len(data)},
        data,
    )


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def boxes(data: bytes) -> dict[bytes, bytes]:
    """The boxes of a file or of another box's content, by type, in order."""
    found, place = {}, 0
    while place < len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        found[kind] = data[place + 8 : place + size]
        place += size
    return found


def heif(entries: list[bytes], references: bytes) -> bytes:
    """An AVIF with more items and references than Pillow writes, and the same picture."""
    outer = boxes(by_pillow("AVIF"))
    meta = boxes(outer[b"meta"][4:])
    (count,) = struct.unpack_from(">H", meta[b"iinf"], 4)
    every = struct.pack(">H", count + len(entries)) + meta[b"iinf"][6:] + b"".join(entries)
    meta[b"iinf"] = meta[b"iinf"][:4] + every
    meta[b"iref"] = meta.get(b"iref", bytes(4)) + references
    head, data = box(b"ftyp", outer[b"ftyp"]), outer[b"mdat"]
    start = len(head) + len(box(b"meta", bytes(4), *(box(*part) for part in meta.items()))) + 8
    place = meta[b"iloc"].rindex(struct.pack(">I", len(data)))  # before its size stands where it begins
    meta[b"iloc"] = meta[b"iloc"][: place - 4] + struct.pack(">I", start) + meta[b"iloc"][place:]
    return head + box(b"meta", bytes(4), *(box(*part) for part in meta.items())) + box(b"mdat", data)


def many_items(count: int) -> bytes:
    """Each says something of the picture."""
    numbers = range(10, 10 + count)
    entries = [box(b"infe", b"\x02\x00\x00\x00", struct.pack(">HH", n, 0), b"mime\x00a\x00") for n in numbers]
    return heif(entries, b"".join(box(b"cdsc", struct.pack(">HHH", n, 1, 1)) for n in numbers))


def run_length_bmp(side: int) -> bytes:
    """One pixel a row, and the end of the row."""
    data = b"\x01\x01\x00\x00" * (side + 1)
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(data), 0, 0, 256, 0)
    return struct.pack("<2sIHHI", b"BM", 1078 + len(data), 0, 0, 1078) + header + bytes(1024) + data


def gif_with(extensions: bytes) -> bytes:
    data = by_pillow("GIF")
    place = 13 + (3 << ((data[10] & 7) + 1))
    return data[:place] + extensions + data[place:]


class Bomb(NamedTuple):
    """How to make it, the size of its picture, and whether it is served all the same."""

    make: Callable[[], bytes]
    size: tuple[int, int] = (64, 64)
    served: bool = False


BOMBS = {
    "2000 scans (3 min)": Bomb(lambda: many_scans(10_000, 10_000, 2_000), (10_000, 10_000)),
    "a million segments (16 GB a GB)": Bomb(lambda: jpeg_with(segment(0xFE, b"") * 1_000_000)),
    "100 MB of EXIF (1 min)": Bomb(
        lambda: jpeg_with(segment(0xE1, b"Exif\x00\x00II*\x00" + bytes(65_000)) * 1_500)
    ),
    "fill in picture data (h)": Bomb(lambda: by_pillow("JPEG")[:-2] + b"\xff" * (20 * MB) + b"\x00\xff\xd9"),
    "fill before a marker (10 s)": Bomb(lambda: jpeg_with(b"\xff" * (20 * MB))),
    "JPEG: thumbnails without an end (2 min)": Bomb(
        lambda: jpeg_with(xmp_of_jpeg(b"<xmp:Thumbnails " * 4_000) * 60), served=True
    ),
    "JPEG: motion photos without an end (1 min)": Bomb(
        lambda: jpeg_with(xmp_of_jpeg(b"<GCamera:MotionPhoto>" * 3_000) * 60) + b"trailer", served=True
    ),
    "JPEG: starts of previews in EXIF (10 s)": Bomb(
        lambda: jpeg_with(segment(0xE1, b"Exif\x00\x00II*\x00" + b"\xff\xd8\xff" * 21_000) * 60), served=True
    ),
    "PNG: thumbnails without an end (h)": Bomb(
        lambda: png_with(chunk(b"iTXt", b"XML:com.adobe.xmp" + bytes(5) + b"<xmp:Thumbnails " * 200_000)),
        served=True,
    ),
    "PNG: starts of previews in EXIF (2 min)": Bomb(
        lambda: png_with(chunk(b"eXIf", b"II*\x00" + b"\xff\xd8\xff" * MB)), served=True
    ),
    "PNG: tables of previews in EXIF (h)": Bomb(
        lambda: png_with(chunk(b"eXIf", b"II*\x00\xff\xd8\xff" + b"\xff\xdb" * MB)), served=True
    ),
    "PNG: a text of 2 GB": Bomb(lambda: png_with(chunk(b"zTXt", b"a\x00\x00" + expanding(1 << 31)))),
    "PNG: a profile of 2 GB": Bomb(lambda: png_with(chunk(b"iCCP", b"a\x00\x00" + expanding(1 << 31)))),
    "PNG: a million chunks (30 GB a GB)": Bomb(lambda: png_with(chunk(b"prIv", b"") * MB)),
    "PNG: picture data that goes on (2 GB)": Bomb(
        lambda: (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", expanding(1 << 31))
            + chunk(b"IEND", b"")
        ),
        served=True,
    ),
    "WebP: thumbnails without an end (h)": Bomb(
        lambda: webp_with(webp_chunk(b"XMP ", b"<xmp:Thumbnails " * 200_000), 4), served=True
    ),
    "WebP: starts of previews in EXIF (2 min)": Bomb(
        lambda: webp_with(webp_chunk(b"EXIF", b"II*\x00" + b"\xff\xd8\xff" * MB), 8), served=True
    ),
    "WebP: a million chunks": Bomb(lambda: webp_with(webp_chunk(b"priv", b"") * MB, 0)),
    "GIF: a million extensions": Bomb(lambda: gif_with(b"\x21\xfe\x01a\x00" * MB)),
    "BMP: 100 MP of run lengths (15 s)": Bomb(lambda: run_length_bmp(10_000), (10_000, 10_000)),
    "TIFF: strips that share a megabyte (20 GB to look at)": Bomb(
        lambda: shared_strip(20_000, MB), (10, 20_000), served=True
    ),
    "TIFF: a million strips (16 s)": Bomb(lambda: many_strips(MB), (1, MB)),
    "HEIF: 20,000 items (7 s, and with their square)": Bomb(lambda: many_items(20_000)),
    "TIFF: a tile far larger than the picture (1.6 GB)": Bomb(lambda: huge_tile(40_000)),
}


def peak_mb(work: Callable[[], FromWorker]) -> tuple[FromWorker, float]:
    """Run it; also return how far resident memory rose meanwhile."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    before = status_mb("VmRSS")
    report = work()
    return report, status_mb("VmHWM") - before


def status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith(field))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_answered_at_once_and_in_little_memory(bench: Bench, name: str) -> None:
    bomb = BOMBS[name]
    width, height = bomb.size if bomb.served else (64, 64)  # what is refused is refused before its mask
    hole = save_mask(bench.folder / "m.png", rectangle(width, height, (2, 2, 8, 8)))
    source = bench.folder / "bomb"
    source.write_bytes(bomb.make())
    item = bench.item(source, hole)
    began_s = time.process_time()
    report, grown_mb = peak_mb(lambda: bench.serve_item(item))
    spent_s = time.process_time() - began_s

    assert spent_s < BOUND_S, report
    assert grown_mb < BOUND_MB + source.stat().st_size / MB, report
    if bomb.served:
        assert isinstance(report, ItemDone), report
    else:
        assert isinstance(report, ItemFailed), report
        assert report.code in {"too_large", "undecodable"}
        assert report.remedy
    source.write_bytes(by_pillow("PNG"))
    small = save_mask(bench.folder / "s.png", rectangle(64, 64, (20, 20, 28, 28)))
    assert isinstance(bench.serve(source, small), ItemDone), "the next one is served"
