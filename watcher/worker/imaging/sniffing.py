"""Telling picture formats apart by content; a name says nothing.

Rules of this module:
- A missing end is `IncompleteError`; a recognised format that is not served is `RefusedError` (unsupported)
  with a remedy; anything else is undecodable. What is not listed here is never handed to a decoder.
- Camera RAW that has the signature of TIFF is TIFF here: its directory tells, and `formats/tiff` reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from watcher.worker.imaging.formats.heif.isobmff import brands_of
from watcher.worker.imaging.refusals import IncompleteError, RefusedError

Container = Literal["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "HEIC", "AVIF"]

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
_CLASSIC = "save it as a classic TIFF and drop that"
_FRAME = "export the frame that you want as a PNG and drop that"
_PAGE = "export the page or picture that you want as a PNG and drop that"
_TAKE_OUT = "take the picture out of it and drop that"


@dataclass(frozen=True, slots=True)
class Recognised:
    """A format that is known, and not served.

    Attributes:
        name: with its article.
        remedy: what a person can do.
        pattern: regular expression for a file's first bytes.
        is_picture: it is one, or shows some; what is none is undecodable, and not merely unsupported.
    """

    name: str
    remedy: str
    pattern: bytes
    is_picture: bool = True

    def matches(self, head: bytes) -> bool:
        """Whether a file begins like this."""
        return re.match(self.pattern, head, re.DOTALL) is not None


_AMBIGUOUS: tuple[Recognised, ...] = (
    # Their first bytes are those of a format that is served.
    Recognised("a Canon RAW file", DEVELOP, rb"II\*\x00.{4}CR"),  # CR2
    Recognised("a Phase One RAW file", DEVELOP, rb"II\*\x00.{4}IIII|MM\x00\*.{4}MMMM"),  # IIQ
    Recognised("a JPEG-LS picture", _EXPORT, rb"\xff\xd8\xff\xf7"),
)
_DISTINCT: tuple[Recognised, ...] = (
    # Camera RAW with a signature of its own.
    Recognised("a Canon RAW file", DEVELOP, rb"II.{4}HEAPCCDR"),  # CRW
    Recognised("an Olympus RAW file", DEVELOP, rb"IIR[OS]|MMOR"),
    Recognised("a Panasonic or Leica RAW file", DEVELOP, rb"IIU\x00"),
    Recognised("a Fujifilm RAW file", DEVELOP, rb"FUJIFILMCCD-RAW"),
    Recognised("a Sigma RAW file", DEVELOP, rb"FOVb"),
    Recognised("a Minolta RAW file", DEVELOP, rb"\x00MRM"),
    Recognised("a Phase One RAW file", DEVELOP, rb"IIII|MMMM"),
    # Pictures.
    Recognised("a BigTIFF", _CLASSIC, rb"II\+\x00|MM\x00\+"),
    Recognised("a JPEG XL picture", _EXPORT, rb"\xff\x0a|\x00\x00\x00\x0cJXL \r\n\x87\n"),
    Recognised("a JPEG 2000 picture", _EXPORT, rb"\xff\x4f\xff\x51|\x00\x00\x00\x0cjP  \r\n\x87\n"),
    Recognised("a JPEG XR picture", _EXPORT, rb"II\xbc"),
    Recognised("an OpenEXR picture", _EXPORT, rb"\x76\x2f\x31\x01"),
    Recognised("a Radiance HDR picture", _EXPORT, rb"#\?(RADIANCE|RGBE)"),
    Recognised("a QOI picture", _EXPORT, rb"qoif"),
    Recognised("a FLIF picture", _EXPORT, rb"FLIF"),
    Recognised("a BPG picture", _EXPORT, rb"BPG\xfb"),
    Recognised("a farbfeld picture", _EXPORT, rb"farbfeld"),
    Recognised("a FITS picture", _EXPORT, rb"SIMPLE  ="),
    Recognised("a picture of the Netpbm family", _EXPORT, rb"P[1-7fF][\s#]"),
    Recognised("a PCX picture", _EXPORT, rb"\x0a[\x00-\x05]\x01[\x01\x02\x04\x08]"),
    Recognised("a Sun raster picture", _EXPORT, rb"\x59\xa6\x6a\x95"),
    Recognised("an SGI picture", _EXPORT, rb"\x01\xda[\x00\x01][\x01\x02]"),
    Recognised("an IFF picture", _EXPORT, rb"FORM.{4}(ILBM|PBM |ACBM|RGB8)"),
    Recognised("a DirectDraw texture", _EXPORT, rb"DDS "),
    Recognised("a KTX texture", _EXPORT, rb"\xabKTX "),
    Recognised("a Windows icon or cursor", _EXPORT, rb"\x00\x00[\x01\x02]\x00(?!\x00\x00)"),
    Recognised("an animated cursor", _EXPORT, rb"RIFF.{4}ACON"),
    Recognised("a macOS icon", _EXPORT, rb"icns"),
    # Documents and drawings.
    Recognised("a Photoshop document", _EXPORT, rb"8BPS"),
    Recognised("a GIMP document", _EXPORT, rb"gimp xcf"),
    Recognised("an EPS or PostScript document", _PAGE, rb"%!PS|\xc5\xd0\xd3\xc6"),
    Recognised("a PDF document", _PAGE, rb"%PDF"),
    Recognised("a DjVu document", _PAGE, rb"AT&TFORM"),
    Recognised("a Windows metafile", _PAGE, rb"\xd7\xcd\xc6\x9a|\x01\x00\x00\x00.{36} EMF"),
    Recognised("an SVG drawing", _PAGE, rb"(\xef\xbb\xbf)?\s*(<(\?xml|!--|!DOCTYPE svg).{0,400}?)?<svg\b"),
    # Films.
    Recognised("a film (AVI)", _FRAME, rb"RIFF.{4}AVI "),
    Recognised("a film (Matroska or WebM)", _FRAME, rb"\x1a\x45\xdf\xa3"),
    Recognised("a film (QuickTime)", _FRAME, rb".{4}(moov|mdat|wide|pnot|skip)"),
    Recognised("a film (MPEG)", _FRAME, rb"\x00\x00\x01[\xb3\xba]"),
    Recognised("a film (Windows Media)", _FRAME, rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    Recognised("a film (Flash)", _FRAME, rb"FLV\x01"),
    # What is no picture, and is often put in a picture's place.
    Recognised("a web page", _TAKE_OUT, rb"(\xef\xbb\xbf)?\s*<(?i:!doctype\s+html|html)\b", is_picture=False),
    Recognised("a ZIP archive or an office document", _TAKE_OUT, rb"PK(\x03\x04|\x05\x06)", is_picture=False),
    Recognised("an old office document", _TAKE_OUT, rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", is_picture=False),
    Recognised("a gzip archive", _TAKE_OUT, rb"\x1f\x8b\x08", is_picture=False),
    Recognised("a 7-Zip archive", _TAKE_OUT, rb"7z\xbc\xaf\x27\x1c", is_picture=False),
    Recognised("a RAR archive", _TAKE_OUT, rb"Rar!\x1a\x07", is_picture=False),
    Recognised("an xz archive", _TAKE_OUT, rb"\xfd7zXZ\x00", is_picture=False),
    Recognised("a bzip2 archive", _TAKE_OUT, rb"BZh[1-9]", is_picture=False),
    Recognised("a tar archive", _TAKE_OUT, rb".{257}ustar", is_picture=False),
)
_DICOM = Recognised("a DICOM picture", _EXPORT, rb".{128}DICM")
# Told by their brands, which stand behind `ftyp`.
_CANON_RAW = Recognised("a Canon RAW file", DEVELOP, rb".{4}ftypcrx ")  # CR3
_OTHER_HEIF = Recognised("a HEIF picture of a kind that is not known here", _EXPORT, rb".{4}ftyp(mi|ms|un)")
_FILM = Recognised("a film or a sound (MP4, QuickTime)", _FRAME, rb".{4}ftyp")
_TGA = Recognised("a TGA picture", _EXPORT, rb"(?!)")
RECOGNISED = (*_AMBIGUOUS, *_DISTINCT, _DICOM, _CANON_RAW, _OTHER_HEIF, _FILM, _TGA)
"""A TGA is told by its last bytes. Old ones and raw sensor dumps have no signature: they are undecodable."""

_HEVC = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_AV1 = frozenset({b"avif", b"avis"})
_GENERAL = frozenset({b"mif1", b"mif2", b"msf1", b"miaf", b"unif"})
_TGA_FOOTER = b"TRUEVISION-XFILE"
_HEAD_BYTES = 512


def sniff(data: bytes) -> Container:
    """Return the container format of a file's bytes.

    Raises:
        IncompleteError: the file is empty, a prefix of a signature, or zeros as far as one can see.
        RefusedError: recognised but not served (`unsupported`), or not a picture at all (`undecodable`).
    """
    head = data[:_HEAD_BYTES]
    if not head[:32].strip(b"\x00"):
        _refuse((_DICOM,), head)  # most begin with 128 zeros
        raise IncompleteError("the file is empty or holds only zeros so far")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp":
        return _by_brands(data)
    _refuse(_AMBIGUOUS, head)
    for signature, container in _SIGNATURES:
        if head.startswith(signature):
            return container
    if any(signature.startswith(data) for signature, _ in _SIGNATURES) or (
        len(data) < _RIFF_HEADER_BYTES and (data[:4] == b"RIFF" or b"RIFF".startswith(data))
    ):
        raise IncompleteError(f"the file ends after {len(data)} bytes, inside its signature")
    _refuse((*_DISTINCT, _DICOM), head)
    if data[-18:-2] == _TGA_FOOTER:
        raise _refusal(_TGA)
    raise RefusedError(
        "undecodable",
        "this is not a picture in any format that is known here, whatever its name says",
        "drop a JPEG, PNG, WebP, TIFF, HEIC, AVIF, BMP or single-frame GIF",
    )


def _by_brands(data: bytes) -> Container:
    """Tell files of ISO base media apart; a major brand that says enough goes before the others."""
    brands = brands_of(data)
    if not brands:
        raise IncompleteError("the file stops inside its first box")
    for brand in brands if brands[0] in _GENERAL else brands[:1]:
        if brand in _HEVC:
            return "HEIC"
        if brand in _AV1:
            return "AVIF"
    if _CANON_RAW.matches(data[:_HEAD_BYTES]):
        raise _refusal(_CANON_RAW)
    raise _refusal(_OTHER_HEIF if brands[0] in _GENERAL else _FILM)


def _refuse(kinds: tuple[Recognised, ...], head: bytes) -> None:
    for found in kinds:
        if found.matches(head):
            raise _refusal(found)


def _refusal(found: Recognised) -> RefusedError:
    if not found.is_picture:
        return RefusedError("undecodable", f"this is {found.name}, and no picture", found.remedy)
    return RefusedError("unsupported", f"this is {found.name}, which is not served", found.remedy)
