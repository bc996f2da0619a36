"""What is known by its content and not served: each kind says what it is and what to do."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import Bench, photo
from watcher.wire import ItemFailed, ItemHeld, ItemIncomplete
from watcher.worker.imaging.sniffing import RECOGNISED

if TYPE_CHECKING:
    from watcher.wire import FromWorker

PICTURE = Image.fromarray(photo(40, 32))
REST = bytes(range(1, 256)) * 3


def by_pillow(container: str, **options: object) -> bytes:
    target = io.BytesIO()
    PICTURE.save(target, container, **options)
    return target.getvalue()


def zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")
    return target.getvalue()


def tarred() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    return target.getvalue()


def brands(*names: bytes) -> bytes:
    names = (names[0], b"\x00\x00\x00\x00", *names[1:])
    return struct.pack(">I4s", 8 + 4 * len(names), b"ftyp") + b"".join(names) + REST


SAMPLES: dict[str, list[bytes]] = {
    "a Canon RAW file": [
        b"II*\x00\x10\x00\x00\x00CR\x02\x00" + REST,
        b"II\x1a\x00\x00\x00HEAPCCDR\x02\x00" + REST,
        brands(b"crx ", b"crx ", b"isom"),
    ],
    "an Olympus RAW file": [b"IIRO\x08\x00\x00\x00" + REST, b"IIRS\x08\x00" + REST, b"MMOR\x00\x00" + REST],
    "a Panasonic or Leica RAW file": [b"IIU\x00\x18\x00\x00\x00" + REST],
    "a Fujifilm RAW file": [b"FUJIFILMCCD-RAW 0201FF383501" + REST],
    "a Sigma RAW file": [b"FOVb\x03\x00\x02\x00" + REST],
    "a Minolta RAW file": [b"\x00MRM\x00\x05\x86\xd8\x00PRD" + REST],
    "a Phase One RAW file": [
        b"IIII\x00waR" + REST,
        b"MMMMRaw\x00" + REST,
        b"II*\x00\x10\x00\x00\x00IIII\x00waR" + REST,
        b"MM\x00*\x00\x00\x00\x10MMMMRaw\x00" + REST,
    ],
    "a BigTIFF": [b"II+\x00\x08\x00\x00\x00" + REST, b"MM\x00+\x00\x08\x00\x00" + REST],
    "a JPEG XL picture": [b"\xff\x0a\xfa\x1f" + REST, b"\x00\x00\x00\x0cJXL \r\n\x87\n" + REST],
    "a JPEG 2000 picture": [by_pillow("JPEG2000"), b"\xff\x4f\xff\x51\x00\x2f" + REST],
    "a JPEG-LS picture": [b"\xff\xd8\xff\xf7\x00\x0b\x08" + REST],
    "a JPEG XR picture": [b"II\xbc\x01\x20\x00\x00\x00" + REST],
    "an OpenEXR picture": [b"\x76\x2f\x31\x01\x02\x00\x00\x00" + REST],
    "a Radiance HDR picture": [b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n" + REST, b"#?RGBE\n" + REST],
    "a QOI picture": [b"qoif\x00\x00\x00\x10\x00\x00\x00\x10\x03\x00" + REST],
    "a FLIF picture": [b"FLIF31" + REST],
    "a BPG picture": [b"BPG\xfb\x20\x00" + REST],
    "a farbfeld picture": [b"farbfeld\x00\x00\x00\x01" + REST],
    "a FITS picture": [b"SIMPLE  =                    T" + REST],
    "a DICOM picture": [bytes(128) + b"DICM\x02\x00" + REST, b"x" * 128 + b"DICM" + REST],
    "a picture of the Netpbm family": [
        by_pillow("PPM"), b"P4\n# made by\n8 1\n\xff", b"P7\nWIDTH 1\n", b"Pf\n1 1\n"],
    "a PCX picture": [by_pillow("PCX")],
    "a Sun raster picture": [b"\x59\xa6\x6a\x95\x00\x00\x00\x10" + REST],
    "an SGI picture": [by_pillow("SGI")],
    "an IFF picture": [b"FORM\x00\x00\x10\x00ILBMBMHD" + REST],
    "a DirectDraw texture": [by_pillow("DDS")],
    "a KTX texture": [b"\xabKTX 20\xbb\r\n\x1a\n" + REST],
    "a Windows icon or cursor": [by_pillow("ICO"), b"\x00\x00\x02\x00\x01\x00\x20\x20" + REST],
    "an animated cursor": [b"RIFF\x00\x10\x00\x00ACONanih" + REST],
    "a macOS icon": [by_pillow("ICNS")],
    "a TGA picture": [by_pillow("TGA")],
    "a Photoshop document": [b"8BPS\x00\x01" + REST],
    "a GIMP document": [b"gimp xcf v011\x00" + REST],
    "an EPS or PostScript document": [by_pillow("EPS"), b"\xc5\xd0\xd3\xc6\x20\x00\x00\x00" + REST],
    "a PDF document": [by_pillow("PDF")],
    "a DjVu document": [b"AT&TFORM\x00\x00\x10\x00DJVU" + REST],
    "a Windows metafile": [
        b"\xd7\xcd\xc6\x9a\x00\x00" + REST, b"\x01\x00\x00\x00" + REST[:36] + b" EMF" + REST],
    "an SVG drawing": [
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        b'<?xml version="1.0"?>\n<!-- made by hand -->\n<svg width="1"/>',
        b'\xef\xbb\xbf<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "svg11.dtd">\n<svg/>',
    ],
    "a film (AVI)": [b"RIFF\x00\x10\x00\x00AVI LIST" + REST],
    "a film (Matroska or WebM)": [b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81" + REST],
    "a film (QuickTime)": [
        b"\x00\x00\x00\x08wide\x00\x01\x00\x00mdat" + REST, b"\x00\x00\x10\x00moov" + REST],
    "a film or a sound (MP4, QuickTime)": [
        brands(b"mp42", b"isom"), brands(b"qt  ", b"qt  "), brands(b"M4A ")],
    "a film (MPEG)": [b"\x00\x00\x01\xba\x44\x00" + REST],
    "a film (Windows Media)": [b"\x30\x26\xb2\x75\x8e\x66\xcf\x11" + REST],
    "a film (Flash)": [b"FLV\x01\x05\x00" + REST],
    "a HEIF picture of a kind that is not known here": [brands(b"mif1", b"miaf", b"jpeg"), brands(b"msf1")],
    "a web page": [b"<!DOCTYPE html>\n<html>", b"\n <HTML lang='en'>", b"\xef\xbb\xbf<!doctype HTML>"],
    "a ZIP archive or an office document": [zipped()],
    "an old office document": [b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + REST],
    "a gzip archive": [b"\x1f\x8b\x08\x00" + REST],
    "a 7-Zip archive": [b"7z\xbc\xaf\x27\x1c\x00\x04" + REST],
    "a RAR archive": [b"Rar!\x1a\x07\x01\x00" + REST],
    "an xz archive": [b"\xfd7zXZ\x00\x00\x04" + REST],
    "a bzip2 archive": [b"BZh91AY&SY" + REST],
    "a tar archive": [tarred()],
}  # fmt: skip


def serve(bench: Bench, data: bytes) -> FromWorker:
    source = bench.folder / "a.jpg"
    source.write_bytes(data)
    return bench.serve(source)


def test_every_known_kind_has_a_sample() -> None:
    assert SAMPLES.keys() == {found.name for found in RECOGNISED}


@pytest.mark.kind("PA15")
@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, samples in SAMPLES.items() for number in range(len(samples))],
)
def test_a_known_kind_says_what_it_is_and_what_to_do(bench: Bench, name: str, number: int) -> None:
    report = serve(bench, SAMPLES[name][number])

    assert isinstance(report, ItemFailed), report
    assert name in report.reason
    is_picture = next(found.is_picture for found in RECOGNISED if found.name == name)
    assert report.code == ("unsupported" if is_picture else "undecodable")
    assert "drop" in report.remedy


@pytest.mark.parametrize(
    "data",
    [
        b"just a text, of some length, that somebody called a picture",
        b"\xef\xbb\xbfanother one, of an editor that marks its texts",
        b'{"json": true}',
        b"<?xml version='1.0'?><note>no drawing</note>",
        b"Private file of somebody, and no portable anything",
        b"BZ is no archive of bzip2",
        b"\x7fELF\x02\x01\x01" + REST,
        b"MZ\x90\x00" + REST,
        b"OggS\x00\x02" + REST,
        b"ID3\x04\x00" + REST,
        bytes(17) + b"\x01" + bytes(200) + REST,
    ],
)
def test_what_is_no_picture_says_so(bench: Bench, data: bytes) -> None:
    report = serve(bench, data)

    assert isinstance(report, ItemFailed), report
    assert report.code == "undecodable"
    assert "HEIC" in report.remedy, "all that is served is named"


@pytest.mark.parametrize("container", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "AVIF"])
def test_what_lies_deeper_in_a_picture_makes_it_nothing_else(bench: Bench, container: str) -> None:
    """Signatures that do not stand at the front must not take a served picture for something else."""
    pixels = np.full((32, 40, 3), 117, np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, container)
    data = bytearray(target.getvalue())
    for place, sign in ((128, b"DICM"), (257, b"ustar"), (-18, b"TRUEVISION-XFILE")):
        data[place : place + len(sign) if place >= 0 else -2] = sign
    report = serve(bench, bytes(data))

    if isinstance(report, ItemFailed):
        assert container in report.reason or container.lower() in report.reason.lower()
    else:
        assert isinstance(report, ItemHeld | ItemIncomplete)


# --- camera RAW that is a TIFF by its signature ------------------------------------------------------------


def directory(order: str, *entries: tuple[int, int, int, int]) -> bytes:
    """A TIFF of one directory of numbers: tag, type, count, value."""
    head = (b"II*\x00" if order == "<" else b"MM\x00*") + struct.pack(f"{order}IH", 8, len(entries))
    body = b"".join(
        struct.pack(f"{order}HHIHH" if kind == 3 and count == 1 else f"{order}HHII", tag, kind, count,
                    *((value, 0) if kind == 3 and count == 1 else (value,)))
        for tag, kind, count, value in entries
    )  # fmt: skip
    return head + body + struct.pack(f"{order}I", 0) + REST * 20


SIZE = ((256, 4, 1, 160), (257, 4, 1, 120))
STRIPS = ((273, 4, 1, 200), (277, 3, 1, 3), (278, 4, 1, 120), (279, 4, 1, 2000))
RAW_FILES: dict[str, bytes] = {
    # Preview first, the sensor's data in a sub-directory.
    "NEF, NRW (Nikon)": directory(">", (254, 4, 1, 1), *SIZE, (259, 3, 1, 1), (262, 3, 1, 2), *STRIPS[:2],
                                  *STRIPS[2:], (330, 4, 1, 400)),
    "ARW, SR2 (Sony)": directory("<", (254, 4, 1, 1), (259, 3, 1, 6), (262, 3, 1, 6), *STRIPS,
                                 (330, 4, 1, 400), (513, 4, 1, 500), (514, 4, 1, 900)),
    "ERF (Epson), KDC, DCR (Kodak)": directory(">", (254, 4, 1, 1), *SIZE, (259, 3, 1, 1), (262, 3, 1, 2),
                                               *STRIPS, (330, 4, 1, 400)),
    "3FR (Hasselblad)": directory("<", (254, 4, 1, 1), *SIZE, (259, 3, 1, 1), (262, 3, 1, 2), *STRIPS,
                                  (330, 4, 1, 400)),
    # The sensor's data first.
    "PEF (Pentax)": directory(">", (254, 4, 1, 0), *SIZE, (258, 3, 1, 12), (259, 3, 1, 0xFFFF),
                              (262, 3, 1, 32803), *STRIPS),
    "linear RAW": directory("<", *SIZE, (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 34892), *STRIPS),
    # Known by its version alone.
    "DNG (Adobe)": directory("<", (254, 4, 1, 0), *SIZE, (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 2),
                             *STRIPS, (50706, 1, 4, 0x00000401)),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW_FILES)
def test_camera_raw_in_a_tiff_is_refused_and_its_preview_not_filled(bench: Bench, name: str) -> None:
    report = serve(bench, RAW_FILES[name])

    assert isinstance(report, ItemFailed), report
    assert report.code == "unsupported", report.reason
    assert "RAW" in report.reason
    assert "drop" in report.remedy
