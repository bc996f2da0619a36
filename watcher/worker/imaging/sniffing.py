"""Telling picture formats apart by content; a name says nothing.

Rules of this module:
- A missing end is `IncompleteError`; a recognised format that is not served is `RefusedError` (unsupported)
  with a remedy; anything else is undecodable. What is not listed here is never handed to a decoder.
"""

from __future__ import annotations

from typing import Literal

from watcher.worker.imaging.refusals import IncompleteError, RefusedError

Container = Literal["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"]

_RIFF_HEADER_BYTES = 12
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIGNATURES: tuple[tuple[bytes, Container], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (PNG_SIGNATURE, "PNG"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
)
_EXPORT = "export it as JPEG, PNG, WebP or TIFF and drop that"
DEVELOP = "develop it in a RAW converter and drop the JPEG or TIFF"
_RECOGNISED: tuple[tuple[bytes, str, str], ...] = (
    (b"II+\x00", "BigTIFF", "save it as a classic TIFF"),
    (b"MM\x00+", "BigTIFF", "save it as a classic TIFF"),
    (b"IIRO", "an Olympus RAW file", DEVELOP),
    (b"IIRS", "an Olympus RAW file", DEVELOP),
    (b"IIU\x00", "a Panasonic RAW file", DEVELOP),
    (b"FUJIFILMCCD-RAW", "a Fujifilm RAW file", DEVELOP),
    (b"8BPS", "a Photoshop document", _EXPORT),
    (b"%PDF", "a PDF document", _EXPORT),
    (b"\xff\x0a", "a JPEG XL picture", _EXPORT),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "a JPEG XL picture", _EXPORT),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "a JPEG 2000 picture", _EXPORT),
)
_BRANDS: tuple[tuple[tuple[bytes, ...], str, str], ...] = (
    (
        (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"),
        "a HEIC/HEIF picture",
        _EXPORT,
    ),
    ((b"avif", b"avis"), "an AVIF picture", _EXPORT),
    ((b"crx ",), "a Canon RAW file", DEVELOP),
)


def sniff(data: bytes) -> Container:
    """Return the container format of a file's bytes.

    Raises:
        IncompleteError: the file is empty, a prefix of a signature, or zeros as far as one can see.
        RefusedError: recognised but not served (`unsupported`), or not a picture at all (`undecodable`).
    """
    head = data[:32]
    if not head.strip(b"\x00"):
        raise IncompleteError("the file is empty or holds only zeros so far")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    for signature, container in _SIGNATURES:
        if head.startswith(signature):
            return container
    if any(signature.startswith(data) for signature, _ in _SIGNATURES) or (
        len(data) < _RIFF_HEADER_BYTES and (data[:4] == b"RIFF" or b"RIFF".startswith(data))
    ):
        raise IncompleteError(f"the file ends after {len(data)} bytes, inside its signature")
    _refuse_recognised(head)
    raise RefusedError(
        "undecodable",
        "this is not a picture in any format that is known here, whatever its name says",
        "drop a JPEG, PNG, WebP, TIFF, BMP or single-frame GIF",
    )


def _refuse_recognised(head: bytes) -> None:
    for signature, name, remedy in _RECOGNISED:
        if head.startswith(signature):
            raise RefusedError("unsupported", f"this is {name}, which is not served", remedy)
    if head[4:8] == b"ftyp":
        for brands, name, remedy in _BRANDS:
            if head[8:12] in brands:
                raise RefusedError("unsupported", f"this is {name}, which is not served", remedy)
