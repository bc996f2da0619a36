"""PNG: which of the ancillary chunks go into the result, and as what."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from watcher.worker.imaging.formats.png.layout import PngChunk, compressed_part, expanded
from watcher.worker.imaging.metadata import (
    EXIF_PREFIX,
    JPEG_START,
    XMP_PREFIX,
    exif_orientation,
    exif_without_pictures,
    kept_exif,
    photoshop_without_thumbnails,
    xmp_without_pictures,
)

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.png.layout import PngLayout

_COLOUR = frozenset({b"cHRM", b"gAMA", b"iCCP", b"sBIT", b"sRGB", b"cICP", b"mDCV", b"cLLI"})
_KEPT = frozenset(
    {b"pHYs", b"tIME", b"sPLT", b"oFFs", b"pCAL", b"sCAL", b"sTER", b"tEXt", b"zTXt", b"iTXt", b"bKGD"}
    | {b"acTL", b"fcTL"}  # of an animation of one frame, which is the picture
)
_STALE = {
    b"hIST": "palette histogram",
    b"dSIG": "digital signature",
    b"caBX": "content credentials (C2PA)",
    b"iDOT": "",  # Apple's offsets into the picture data; they describe the old bytes
}
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_XMP_KEYWORD = b"XML:com.adobe.xmp"
_LOOKED_INTO_BYTES = 1 << 24
"""A longer text that may hold a picture of the picture is not passed on."""


def png_orientation(layout: PngLayout) -> int:
    """Return the EXIF orientation, 1 to 8; a damaged block, which decoders leave out, says nothing."""
    blocks = (chunk.data for chunk in layout.chunks if chunk.kind == b"eXIf" and chunk.intact)
    return exif_orientation(next(blocks, b""))


def kept_chunk(chunk: PngChunk, dropped: list[str], *, keep: bool) -> PngChunk | None:
    """Return an ancillary chunk as it goes into the result, or None.

    Args:
        chunk: the source's.
        dropped: names of what is left out are appended.
        keep: off leaves only what decides how the pixels look.
    """
    kind, name = chunk.kind, _name(chunk)
    if not chunk.intact:
        dropped.append(f"{name} (damaged)")
        return None
    if kind in _STALE:
        dropped += [_STALE[kind]] if _STALE[kind] else []
        return None
    if kind in _COLOUR:
        return chunk
    if kind == b"eXIf":
        return PngChunk(kind, _exif(chunk.data, dropped, keep=keep))
    # For unknown chunks the format itself says whether they survive a change of the pixels (PNG 5.4, bit 5
    # of the fourth letter).
    if not keep or not (kind in _KEPT or kind[3:4].islower()):
        dropped.append(name)
        return None
    return _text(chunk, dropped) if kind in _TEXTS else chunk


def _name(chunk: PngChunk) -> str:
    name = chunk.kind.decode("ascii")
    if chunk.kind in _TEXTS:
        keyword = chunk.data.split(b"\x00", 1)[0].decode("latin-1")
        return f"{name} {keyword}"
    return name


def _exif(block: bytes, dropped: list[str], *, keep: bool) -> bytes:
    # Some programs write the prefix that only JPEG has.
    prefix = b"" if block.startswith(EXIF_PREFIX) else EXIF_PREFIX
    kept = kept_exif(prefix + block, dropped, keep=keep)
    return kept[len(prefix) :] if keep else kept[len(EXIF_PREFIX) :]


# --- texts -------------------------------------------------------------------------------------------------

_RAW_PROFILE = re.compile(rb"Raw profile type (exif|app1|8bim|iptc|xmp)\Z", re.IGNORECASE)


def _text(chunk: PngChunk, dropped: list[str]) -> PngChunk | None:
    """Take pictures of the picture out of a text; a text that cannot be looked into is not passed on."""
    keyword = chunk.data.partition(b"\x00")[0]
    raw_profile = _RAW_PROFILE.match(keyword)
    if keyword != _XMP_KEYWORD and raw_profile is None:
        return chunk
    stream = compressed_part(chunk)
    text = _plain_part(chunk) if stream is None else expanded(stream, _LOOKED_INTO_BYTES)
    if raw_profile:
        cleaned = None if text is None else _raw_profile(raw_profile[1].lower(), text, dropped)
    else:
        cleaned = None if text is None else xmp_without_pictures(text, dropped)
    if text is None or cleaned is None:
        dropped.append(_name(chunk))
        return None
    if cleaned == text:
        return chunk
    head = chunk.data[: len(chunk.data) - len(text if stream is None else stream)]
    return PngChunk(chunk.kind, head + (cleaned if stream is None else zlib.compress(cleaned)))


def _plain_part(chunk: PngChunk) -> bytes | None:
    """Return the text of an uncompressed tEXt or iTXt chunk; None where its structure is broken."""
    rest = chunk.data.partition(b"\x00")[2]
    if chunk.kind == b"tEXt":
        return rest
    parts = rest[2:].split(b"\x00", 2)
    whole = chunk.kind == b"iTXt" and rest[:1] == b"\x00" and len(parts) == 3  # noqa: PLR2004 - language, keyword, text
    return parts[2] if whole else None


_LINE_DIGITS = 72


def _raw_profile(name: bytes, text: bytes, dropped: list[str]) -> bytes | None:
    """Take pictures of the picture out of a block as ImageMagick writes it: name, size, hexadecimal digits.

    Returns:
        The text as it goes into the result; None where it cannot be looked into.
    """
    try:
        block = bytes.fromhex(text.decode("latin-1").split("\n", 3)[-1])
    except ValueError:
        return None
    cleaned = _block_without_pictures(name, block, dropped)
    if JPEG_START in cleaned:
        return None
    if cleaned == block:
        return text
    digits = cleaned.hex().encode()
    lines = [digits[at : at + _LINE_DIGITS] for at in range(0, len(digits), _LINE_DIGITS)]
    return b"\n".join([b"", name, b"%8d" % len(cleaned), *lines, b""])


def _block_without_pictures(name: bytes, block: bytes, dropped: list[str]) -> bytes:
    if name == b"xmp" or block.startswith(XMP_PREFIX):
        return xmp_without_pictures(block, dropped)
    if name in (b"exif", b"app1"):
        return exif_without_pictures(block, dropped)
    return photoshop_without_thumbnails(block, dropped) if block.startswith(b"8BIM") else block
