"""The limit on what decoding may take: it holds, it ends, and it blames nobody for a machine that is full."""

from __future__ import annotations

import io
import json
import lzma
import os
import resource
import struct
import subprocess
import sys
import textwrap
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import ROOT, Bench, photo, rectangle, save_mask
from watcher.wire import ItemDone, ItemFailed
from watcher.worker.imaging import memory_limit as module
from watcher.worker.imaging.decode import load_pixels, open_picture
from watcher.worker.imaging.memory_limit import memory_limit
from watcher.worker.imaging.picture import guarded
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is limited elsewhere")
MB = 1 << 20
MUCH = 512 * MB


def limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_DATA)


@pytest.fixture(autouse=True)
def _same_limits_afterwards() -> Iterator[None]:
    before = limits()
    yield
    assert limits() == before


def take(size: int) -> int:
    """Have memory for a moment."""
    return np.empty(size, np.uint8).size


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, whose large blocks are always new and go back when freed."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": str(256 << 10)},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_what_is_within_the_room_is_given_and_what_is_not_is_refused_in_words() -> None:
    with memory_limit(MUCH):
        assert take(MUCH // 2) == MUCH // 2
    with pytest.raises(RefusedError) as caught, memory_limit(MUCH // 2):
        take(MUCH)
    assert caught.value.code == "too_large"
    assert "256 MiB" in caught.value.reason
    assert caught.value.remedy
    assert take(MUCH) == MUCH, "it ends with its block"


def test_other_errors_pass_as_they_are_and_end_the_limit() -> None:
    with pytest.raises(ValueError, match="as it is"), memory_limit(MUCH):
        raise ValueError("as it is")


@pytest.mark.parametrize(
    "words", ["decoder error -9", "Insufficient memory (case 4)", "out of memory", "not enough memory"]
)
def test_decoders_that_say_it_in_their_own_words_are_understood(words: str) -> None:
    def decoder() -> None:
        raise OSError(words)

    with pytest.raises(RefusedError) as caught, memory_limit(MUCH):
        guarded(decoder, lambda error: RefusedError("undecodable", f"damaged: {error}", "mend it"))
    assert caught.value.code == "too_large"


def test_a_machine_that_has_no_more_is_not_the_files_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_machine_has", lambda _: False)
    with pytest.raises(MemoryError), memory_limit(MUCH // 2):
        take(MUCH)


def test_a_lower_limit_of_somebody_else_stays_and_is_not_the_files_fault() -> None:
    """In a process of its own: an administrator's soft limit, and a hard limit above it."""
    script = """
        import resource
        import numpy as np
        from watcher.worker.imaging.memory_limit import _used_bytes, memory_limit

        room = _used_bytes() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (room, 2 * room))
        with memory_limit(1 << 30):
            assert resource.getrlimit(resource.RLIMIT_DATA) == (room, 2 * room)
        with memory_limit(1 << 20):
            assert resource.getrlimit(resource.RLIMIT_DATA)[0] < room
        assert resource.getrlimit(resource.RLIMIT_DATA) == (room, 2 * room)
        try:
            with memory_limit(1 << 30):
                np.empty(256 << 20, np.uint8)
        except MemoryError:
            print("nobody's fault")
        resource.setrlimit(resource.RLIMIT_DATA, (room, room))
        with memory_limit(1 << 30):
            assert resource.getrlimit(resource.RLIMIT_DATA) == (room, room)
    """
    done = run(textwrap.dedent(script))
    assert done.stdout == "nobody's fault\n"


def test_nothing_is_limited_where_the_kernel_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_used_bytes", lambda: None)
    with memory_limit(1):
        assert take(MUCH) == MUCH
    with pytest.raises(MemoryError), memory_limit(1):
        raise MemoryError


def test_a_limit_inside_a_limit_is_never_higher() -> None:
    with memory_limit(MUCH):
        outer = limits()[0]
        with memory_limit(8 * MUCH):
            assert limits()[0] == outer
        assert limits()[0] == outer


def test_threads_of_decoders_have_room_on_large_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    few = module.room_to_open(0)
    monkeypatch.setattr(module, "THREADS", module.THREADS + 256)
    stack = soft if soft != resource.RLIM_INFINITY else 8 * MB
    assert module.room_to_open(0) - few == 256 * stack
    assert module.room_to_decode(10, 30, 0) > module.room_to_open(0)


# --- pictures have room ------------------------------------------------------------------------------------

WIDE, HIGH = 2000, 1500


def encoded(container: str, mode: str, **options: Any) -> bytes:
    target = io.BytesIO()
    small = Image.fromarray(photo(WIDE // 8, HIGH // 8))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(small.resize((WIDE, HIGH)).convert("L")).astype(np.uint16) * 257)
    else:
        image = small.resize((WIDE, HIGH)).convert(mode)
    image.save(target, container, **options)
    return target.getvalue()


LARGE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "JPEG": ("JPEG", "RGB", {}),
    "progressive JPEG": ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    "progressive CMYK JPEG": ("JPEG", "CMYK", {"progressive": True}),
    "PNG": ("PNG", "RGBA", {"compress_level": 1}),
    "bilevel PNG": ("PNG", "1", {}),
    "16-bit PNG": ("PNG", "I;16", {"compress_level": 1}),
    "WebP": ("WEBP", "RGB", {"method": 0}),
    "lossless WebP": ("WEBP", "RGBA", {"lossless": True, "method": 0, "quality": 0}),
    "TIFF": ("TIFF", "RGB", {}),
    "LZW TIFF": ("TIFF", "RGBA", {"compression": "tiff_lzw"}),
    "JPEG TIFF": ("TIFF", "RGB", {"compression": "jpeg"}),
    "fax TIFF": ("TIFF", "1", {"compression": "group4"}),
    "BMP": ("BMP", "RGB", {}),
    "GIF": ("GIF", "P", {}),
}


ROOM = 4 * MB
"""Instead of 256 for what does not grow with the picture: tables, buffers, stacks."""


def serve_large() -> None:
    """Decode all of them under a limit and print what became of each; runs in a process of its own."""
    module.ROOM_BYTES, module.THREADS = ROOM, 0
    for name, (container, mode, options) in LARGE.items():
        data = encoded(container, mode, **options)
        try:
            shape: tuple[int, ...] | str = load_pixels(open_picture(data, max_pixels=WIDE * HIGH)).shape
        except RefusedError as refusal:
            shape = refusal.reason
        sys.stdout.write(json.dumps([name, shape]) + "\n")


@pytest.fixture(scope="module")
def large() -> dict[str, Any]:
    """What became of each large picture, where freed memory goes back and does not count as had."""
    done = run("from tests.worker.test_memory_limit import serve_large; serve_large()")
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", LARGE)
def test_a_picture_has_room_without_the_part_that_is_for_everything_else(
    name: str, large: dict[str, Any]
) -> None:
    assert large[name][:2] == [HIGH, WIDE], large[name]


# --- files that want more ----------------------------------------------------------------------------------


GIGABYTES, TWO_MEGABYTES = 37, 18


def greedy_tiff(dictionary: int) -> bytes:
    """A small TIFF whose LZMA data asks for a large dictionary.

    Args:
        dictionary: the byte that codes its size (xz 1.2.1, 5.3.1).
    """
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2 * MB}]
    packed = bytearray(lzma.compress(photo(64, 64)[..., 0].tobytes(), lzma.FORMAT_XZ, filters=filters))
    assert packed[16] == TWO_MEGABYTES
    packed[16] = dictionary
    struct.pack_into("<I", packed, 20, zlib.crc32(packed[12:20]))  # of the block's header
    entries = [(256, 64), (257, 64), (258, 8), (259, 34925), (262, 1), (273, 122), (277, 1), (278, 64)]
    directory = b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*entries, (279, len(packed))]
    )
    return b"II*\x00" + struct.pack("<IH", 8, 9) + directory + struct.pack("<I", 0) + packed


def test_a_file_that_wants_gigabytes_for_a_few_pixels_is_refused_and_the_next_one_served(
    bench: Bench,
) -> None:
    source, hole = (
        bench.folder / "a.tif",
        save_mask(bench.folder / "m.png", rectangle(64, 64, (9, 9, 15, 15))),
    )
    source.write_bytes(greedy_tiff(GIGABYTES))
    report = bench.serve(source, hole)
    assert isinstance(report, ItemFailed), report
    assert report.code in {"too_large", "undecodable"}
    assert report.reason
    assert report.remedy

    source.write_bytes(greedy_tiff(TWO_MEGABYTES))
    assert isinstance(bench.serve(source, hole), ItemDone)
