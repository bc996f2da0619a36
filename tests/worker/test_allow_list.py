"""Only the decoders of the formats that are served can be reached, whatever a file says that it is.

Rules of this file: that no other decoder is reached is seen in a process of its own, in which Pillow's ways
to choose a decoder by itself raise; and in the source, where none of them is called.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image, ImageFile

from tests.worker.bench import ROOT, Bench, photo, rectangle, save_mask
from tests.worker.mutations import hole, seeds
from watcher.wire import ItemDone, ItemFailed, ItemIncomplete

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.worker.mutations import Seed

SIDE = 64
SERVED = frozenset(
    {"JpegImagePlugin", "PngImagePlugin", "WebPImagePlugin", "TiffImagePlugin", "BmpImagePlugin"}
    | {"GifImagePlugin", "AvifImagePlugin"}
)
PILLOWS_OWN = frozenset({"PpmImagePlugin"})
"""Loaded by Pillow's own code when it saves: in memory, and out of reach."""
SIGNATURES = {
    "nothing": b"",
    "JPEG": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "GIF": b"GIF89a",
    "TIFF": b"II*\x00\x08\x00\x00\x00",
    "BMP": b"BM",
    "WebP": b"RIFF\x00\x10\x00\x00WEBP",
    "HEIF": b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic",
}


def by_pillow(container: str, mode: str = "RGB", **options: Any) -> bytes:
    target = io.BytesIO()
    Image.fromarray(photo(SIDE, SIDE)).convert(mode).save(target, container, **options)
    return target.getvalue()


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n(/etc/passwd) (r) file\nshowpage\n%%EOF\n"
FOREIGN = {
    "EPS": by_pillow("EPS"),
    "EPS with a preview": b"\xc5\xd0\xd3\xc6" + (30).to_bytes(4, "little") + bytes(22) + POSTSCRIPT,
    "PostScript": POSTSCRIPT,
    "PDF": by_pillow("PDF"),
    "PSD": b"8BPS\x00\x01"
    + bytes(6)
    + b"\x00\x03"
    + bytes(3)
    + b"\x40"
    + bytes(3)
    + b"\x40\x00\x08\x00\x03"
    + bytes(400),
    "ICNS": by_pillow("ICNS"),
    "ICO": by_pillow("ICO"),
    "CUR": b"\x00\x00\x02\x00" + by_pillow("ICO")[4:],
    "PCX": by_pillow("PCX"),
    "DCX": b"\xb1\x68\xde\x3a" + by_pillow("PCX"),
    "FLI": bytes(4) + b"\x11\xaf\x01\x00\x40\x00\x40\x00\x08\x00\x03\x00" + bytes(200),
    "WMF": b"\xd7\xcd\xc6\x9a" + bytes(18) + b"\x01\x00\x09\x00" + bytes(200),
    "EMF": b"\x01\x00\x00\x00" + bytes(36) + b" EMF" + bytes(200),
    "XBM": by_pillow("XBM", "1"),
    "XPM": b'/* XPM */\nstatic char *a[] = {\n"1 1 1 1",\n"a c #000000",\n"a"};\n',
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='/etc/passwd'/></svg>",
    "MVG": b"push graphic-context\nimage over 0,0 0,0 'https://127.0.0.1/x'\npop graphic-context\n",
    "TGA": by_pillow("TGA"),
    "PPM": by_pillow("PPM"),
    "SGI": by_pillow("SGI"),
    "DDS": by_pillow("DDS"),
    "IM": b"Image type: RGB image\r\nImage size (x*y): 64*64\r\n".ljust(511, b"\x00") + b"\x1a" + bytes(200),
    "MSP": by_pillow("MSP", "1"),
    "SPIDER": by_pillow("SPIDER", "F"),
    "JPEG 2000": by_pillow("JPEG2000"),
    "JPEG 2000 codestream": by_pillow("JPEG2000", no_jp2=True),
    "MPEG": b"\x00\x00\x01\xb3\x04\x00\x40" + bytes(200),
    "Sun raster": b"\x59\xa6\x6a\x95" + b"\x00\x00\x00\x40" * 2 + bytes(200),
    "QOI": b"qoif\x00\x00\x00\x40\x00\x00\x00\x40\x03\x00" + bytes(200),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(200),
    "FITS": b"SIMPLE  =                    T" + b" " * 2850,
    "GIMP brush": b"\x00\x00\x00\x1c\x00\x00\x00\x02"
    + b"\x00\x00\x00\x40" * 2
    + b"\x00\x00\x00\x01GIMP"
    + bytes(200),
    "executable": b"\x7fELF\x02\x01\x01" + bytes(200),
}
SUFFIXES = (".png", ".jpg", ".eps", ".psd", "")


def whole() -> list[Seed]:
    """Some of what is served, each container among it."""
    every = seeds()
    first = {seed.container: seed for seed in reversed(every)}
    return list({seed.name: seed for seed in (*first.values(), *every[::6])}.values())


def serve_everything() -> None:
    """Serve each seed and each foreign file where nothing may choose a decoder; prints what was seen."""

    def chosen(*_: object, **__: object) -> None:
        raise AssertionError("a decoder was chosen by Pillow")

    results: dict[str, tuple[str, str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        files = [(seed.name, seed.size, seed.data) for seed in whole()]
        for name, data in FOREIGN.items():
            files += [(f"{start} + {name}", (SIDE, SIDE), head + data) for start, head in SIGNATURES.items()]
        Image.open = Image.init = chosen  # type: ignore[assignment]  # from here on nobody may
        for number, (name, size, data) in enumerate(files):
            source = bench.folder / f"file{SUFFIXES[number % len(SUFFIXES)]}"
            source.write_bytes(data)
            mask = save_mask(bench.folder / "mask.png", rectangle(*size, hole(size)))
            report = bench.serve(source, mask)
            code = report.code if isinstance(report, ItemFailed) else ""
            results[name] = (type(report).__name__, code, str(getattr(report, "reason", "")))
    loaded = [name.rpartition(".")[2] for name in sys.modules if name.startswith("PIL.")]
    found = {"results": results, "plugins": [name for name in loaded if name.endswith("ImagePlugin")]}
    sys.stdout.write(json.dumps(found) + "\n")


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What a process has done that served whole pictures of every kind, and files of many other formats."""
    script = "from tests.worker.test_allow_list import serve_everything; serve_everything()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_whole_pictures_are_served_without_pillow_choosing_a_decoder(seen: dict[str, Any]) -> None:
    for seed in whole():
        assert seen["results"][seed.name][0] == ItemDone.__name__, seen["results"][seed.name]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_format_that_is_not_served_is_refused_whatever_it_begins_with(
    name: str, seen: dict[str, Any]
) -> None:
    for start in SIGNATURES:
        kind, code, reason = seen["results"][f"{start} + {name}"]
        assert "chosen" not in reason
        if start == "nothing":
            assert kind == ItemFailed.__name__, reason
        assert kind in {ItemFailed.__name__, ItemIncomplete.__name__}, start
        assert code in {"", "undecodable", "unsupported", "too_large"}, (start, reason)


def test_no_decoder_of_another_format_is_ever_loaded() -> None:
    """In a process that does what a worker does, and imports nothing of the tests."""
    script = """
import sys
from watcher.worker.imaging import decode
from watcher.worker.items import ItemServer
print(*(name.rpartition(".")[2] for name in sys.modules if name.startswith("PIL.")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    plugins = {name for name in done.stdout.split() if name.endswith("ImagePlugin")}
    assert plugins <= SERVED | PILLOWS_OWN
    assert "JpegImagePlugin" in plugins


# --- the source --------------------------------------------------------------------------------------------

FORBIDDEN = {
    "Image.open": "chooses a decoder by the file's bytes",
    "Image.init": "loads every decoder",
    "Image.preinit": "loads decoders",
    "Image.register_open": "adds a decoder",
    "ImageFile.Parser": "chooses a decoder by the file's bytes",
    "cv2.imread": "chooses a decoder by the file's bytes",
    "cv2.imdecodemulti": "chooses a decoder by the file's bytes",
    "register_heif_opener": "adds a decoder",
    "ImageFile.LOAD_TRUNCATED_IMAGES": "makes pictures of half files",
    "ImageGrab": "runs programs",
    "ImageShow": "runs programs",
}
BY_SIGNATURE = {"png/samples.py", "heif/avif.py"}
"""Files that hand OpenCV bytes whose signature they have checked or written themselves."""


def names_of(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that a file uses, from its last two parts on, and every name alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
            if isinstance(node.value, ast.Name | ast.Attribute):
                yield f"{node.value.id if isinstance(node.value, ast.Name) else node.value.attr}.{node.attr}"
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{(node.module or '').rpartition('.')[2]}.{name.name}" for name in node.names)


FILES = sorted((ROOT / "watcher").rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_lets_a_library_choose_a_decoder(file: Path) -> None:
    used = set(names_of(ast.parse(file.read_text("utf-8"))))
    assert not {name: why for name, why in FORBIDDEN.items() if name in used}
    assert "cv2.imdecode" not in used or f"{file.parent.name}/{file.name}" in BY_SIGNATURE


def _last_name(target: ast.expr) -> str:
    return target.attr if isinstance(target, ast.Attribute) else ""


def test_limits_of_pillow_are_never_lifted() -> None:
    """One place sets the bound on pixels, from the configuration, which has no way to say none."""
    places = [
        (file.name, ast.unparse(node.value))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Assign) and "MAX_IMAGE_PIXELS" in {*map(_last_name, node.targets)}
    ]
    assert places == [("loop.py", "configure.limits.max_pixels")]
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
