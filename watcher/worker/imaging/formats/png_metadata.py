"""PNG: which of the ancillary chunks go into the result."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from watcher.worker.imaging.formats.png_layout import PngChunk
from watcher.worker.imaging.metadata import EXIF_PREFIX, JPEG_START, kept_exif, xmp_without_pictures

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.png_layout import PngLayout

_PNG_COLOUR = frozenset({b"cHRM", b"gAMA", b"iCCP", b"sBIT", b"sRGB", b"cICP", b"mDCV", b"cLLI"})
_PNG_KEPT = frozenset(
    {b"pHYs", b"tIME", b"sPLT", b"oFFs", b"pCAL", b"sCAL", b"sTER", b"tEXt", b"zTXt", b"iTXt"}
)
_PNG_ENCODERS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
_PNG_STALE = {
    b"hIST": "palette histogram",
    b"acTL": "animation data",
    b"fcTL": "animation data",
    b"fdAT": "animation data",
    b"dSIG": "digital signature",
    b"caBX": "content credentials (C2PA)",
    b"iDOT": "",  # Apple's offsets into the picture data; they describe the old bytes
}
PngPlaces = tuple[list[PngChunk], list[PngChunk], list[PngChunk]]


def png_metadata(layout: PngLayout, dropped: list[str], *, keep: bool, same_depth: bool) -> PngPlaces:
    """Choose the source's ancillary chunks that go into the result.

    Returns:
        Chunks before the palette, between palette and picture data, and behind the picture data.
    """
    before: list[PngChunk] = []
    between: list[PngChunk] = []
    behind: list[PngChunk] = []
    seen_data = False
    for chunk in layout.chunks:
        seen_data = seen_data or chunk.kind == b"IDAT"
        if chunk.kind in _PNG_ENCODERS:
            continue
        chosen = _png_chunk(chunk, dropped, keep=keep, same_depth=same_depth)
        if chosen is None:
            continue
        (before if chunk.kind in _PNG_COLOUR else behind if seen_data else between).append(chosen)
    if layout.interlaced:
        dropped.append("interlacing")
    return before, between, behind


def _png_chunk(  # noqa: PLR0911 - a table of cases, one return each
    chunk: PngChunk, dropped: list[str], *, keep: bool, same_depth: bool
) -> PngChunk | None:
    kind = chunk.kind
    if kind in _PNG_STALE or (kind in (b"bKGD", b"sBIT") and not same_depth):
        name = _PNG_STALE.get(kind, kind.decode("ascii"))
        if name and name not in dropped:
            dropped.append(name)
        return None
    if kind in _PNG_COLOUR:
        return chunk
    if kind == b"eXIf":
        return PngChunk(kind, kept_exif(EXIF_PREFIX + chunk.data, dropped, keep=keep)[len(EXIF_PREFIX) :])
    name = _png_name(chunk)
    if keep and kind == b"iTXt" and chunk.data.startswith(b"XML:com.adobe.xmp\x00"):
        return _png_xmp(chunk, dropped)
    if keep and _raw_profile_has_picture(chunk):
        dropped.append(name)
        return None
    # For unknown chunks the format itself says whether they survive a change of the pixels (PNG 5.4, bit 5
    # of the fourth letter).
    if keep and (kind in _PNG_KEPT or kind == b"bKGD" or kind[3:4].islower()):
        return chunk
    dropped.append(name)
    return None


def _png_name(chunk: PngChunk) -> str:
    name = chunk.kind.decode("ascii")
    if chunk.kind in (b"tEXt", b"zTXt", b"iTXt"):
        keyword = chunk.data.split(b"\x00", 1)[0].decode("latin-1")
        return f"{name} {keyword}"
    return name


def _png_xmp(chunk: PngChunk, dropped: list[str]) -> PngChunk | None:
    header, compressed = chunk.data[:22], chunk.data[18:19] == b"\x01"
    if compressed:  # rare, and a packet that cannot be looked into is not passed on
        dropped.append("XMP (compressed)")
        return None
    return PngChunk(chunk.kind, header + xmp_without_pictures(chunk.data[22:], dropped))


_RAW_PROFILE = re.compile(rb"Raw profile type (?:exif|app1|8bim|iptc)\x00\x00?", re.IGNORECASE)
_RAW_PROFILE_BYTES = 1 << 22


def _raw_profile_has_picture(chunk: PngChunk) -> bool:
    found = _RAW_PROFILE.match(chunk.data)
    if found is None:
        return False
    text = chunk.data[found.end() :]
    try:
        if chunk.kind == b"zTXt":
            text = zlib.decompressobj().decompress(text, _RAW_PROFILE_BYTES)
        blob = bytes.fromhex(text.decode("latin-1").split("\n", 3)[-1])
    except (zlib.error, ValueError):
        return True  # what cannot be looked into is not passed on
    return JPEG_START in blob
