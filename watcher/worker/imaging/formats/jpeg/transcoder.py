"""A program of its own: gives a JPEG new blocks where they are asked for, and leaves all others as they are.

What this module owns: libjpeg's interface to quantised DCT coefficients, which no Python package has whole.
`blocks` starts it for one picture, with the libjpeg that Pillow brings. Rules of this program:
- The standard library only, and nothing of watcher: so it starts in some 20 ms.
- libjpeg ends its process on an error (its default, which is kept): that is why this is a process. What it
  says goes to stderr, and the exit status tells.
- The structures below are those of libjpeg 6.2, the interface that libjpeg-turbo has kept since, on systems
  with 64 bits. Only what is used is spelt out. The library itself refuses structures of another size.
- Nothing is published that was not read back: the blocks of the result are compared with what was meant.

From stdin it reads a line of JSON and the bytes that the line announces (see `blocks`); to stdout it
writes a line of JSON and the new JPEG.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION = 62
_BLOCK_COEFFICIENTS, _BLOCK_BYTES = 64, 128
"""Of 16 bits each."""
_GREY, _RGB, _CMYK = 1, 2, 4
_COLOUR_SPACES = {1: _GREY, 3: _RGB, 4: _CMYK}
"""Of the pixels that come in, by their number of channels (J_COLOR_SPACE)."""
_PREMATURE = "premature end"
_FORGIVEN_MCUS = 2
"""So many may lack at the end of a picture's data: encoders exist that lose the last bits."""
_PR_SET_PDEATHSIG = 1
_TOLD_WARNINGS = 10

_pointer, _int, _uint, _long = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_ulong


class _Component(ctypes.Structure):
    """`jpeg_component_info`."""

    _fields_ = (
        ("component_id", _int),
        ("component_index", _int),
        ("h_samp_factor", _int),
        ("v_samp_factor", _int),
        ("quant_tbl_no", _int),
        ("dc_tbl_no", _int),
        ("ac_tbl_no", _int),
        ("width_in_blocks", _uint),
        ("height_in_blocks", _uint),
        ("private", ctypes.c_byte * 44),
        ("quant_table", _pointer),
        ("dct_table", _pointer),
    )


class _Memory(ctypes.Structure):
    """`jpeg_memory_mgr`, of which one method is called."""

    _fields_ = (("before", _pointer * 8), ("access_virt_barray", _pointer), ("after", _pointer * 4))


_EMIT = ctypes.CFUNCTYPE(None, _pointer, _int)
_FORMAT = ctypes.CFUNCTYPE(None, _pointer, ctypes.c_char_p)
_ACCESS = ctypes.CFUNCTYPE(ctypes.POINTER(_pointer), _pointer, _pointer, _uint, _uint, _int)
_MESSAGE_BYTES = 200
"""JMSG_LENGTH_MAX."""


class _Errors(ctypes.Structure):
    """`jpeg_error_mgr`."""

    _fields_ = (
        ("error_exit", _pointer),
        ("emit_message", _EMIT),
        ("output_message", _pointer),
        ("format_message", _FORMAT),
        ("private", ctypes.c_byte * 136),
    )


_COMMON: tuple[tuple[str, Any], ...] = (
    ("err", ctypes.POINTER(_Errors)),
    ("mem", ctypes.POINTER(_Memory)),
    ("progress", _pointer),
    ("client_data", _pointer),
    ("is_decompressor", _int),
    ("global_state", _int),
    ("stream", _pointer),
    ("image_width", _uint),
    ("image_height", _uint),
)


class _Decompress(ctypes.Structure):
    """`jpeg_decompress_struct`: 632 bytes."""

    _fields_ = (
        *_COMMON,
        ("num_components", _int),
        ("jpeg_color_space", _int),
        ("output", ctypes.c_byte * 128),
        ("coef_bits", ctypes.POINTER(_int)),
        ("quant_tbl_ptrs", _pointer * 4),
        ("huffman_tables", _pointer * 8),
        ("data_precision", _int),
        ("comp_info", ctypes.POINTER(_Component)),
        ("progressive_mode", _int),
        ("arith_code", _int),
        ("arithmetic", ctypes.c_byte * 48),
        ("restart_interval", _uint),
        ("private", ctypes.c_byte * 260),
    )


class _Compress(ctypes.Structure):
    """`jpeg_compress_struct`: 520 bytes."""

    _fields_ = (
        *_COMMON,
        ("input_components", _int),
        ("in_color_space", _int),
        ("input_gamma", ctypes.c_double),
        ("data_precision", _int),
        ("num_components", _int),
        ("jpeg_color_space", _int),
        ("comp_info", ctypes.POINTER(_Component)),
        ("tables", _pointer * 12),
        ("arithmetic", ctypes.c_byte * 48),
        ("num_scans", _int),
        ("scan_info", _pointer),
        ("raw_data_in", _int),
        ("arith_code", _int),
        ("optimize_coding", _int),
        ("CCIR601_sampling", _int),
        ("smoothing_factor", _int),
        ("dct_method", _int),
        ("restart_interval", _uint),
        ("restart_in_rows", _int),
        ("write_JFIF_header", _int),
        ("JFIF", ctypes.c_byte * 8),
        ("write_Adobe_marker", _int),
        ("private", ctypes.c_byte * 216),
    )


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "jpeg_std_error": (ctypes.POINTER(_Errors), _pointer),
    "jpeg_CreateDecompress": (None, _pointer, _int, ctypes.c_size_t),
    "jpeg_mem_src": (None, _pointer, ctypes.c_char_p, _long),
    "jpeg_read_header": (_int, _pointer, _int),
    "jpeg_read_coefficients": (ctypes.POINTER(_pointer), _pointer),
    "jpeg_CreateCompress": (None, _pointer, _int, ctypes.c_size_t),
    "jpeg_mem_dest": (None, _pointer, _pointer, _pointer),
    "jpeg_copy_critical_parameters": (None, _pointer, _pointer),
    "jpeg_simple_progression": (None, _pointer),
    "jpeg_write_coefficients": (None, _pointer, _pointer),
    "jpeg_start_compress": (None, _pointer, _int),
    "jpeg_write_scanlines": (_uint, _pointer, _pointer, _uint),
    "jpeg_finish_compress": (None, _pointer),
    "jpeg_destroy_compress": (None, _pointer),
    "jpeg_destroy_decompress": (None, _pointer),
}
"""Result type, then argument types."""


def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_FRAME = ("component_id", "h_samp_factor", "v_samp_factor", "width_in_blocks", "height_in_blocks")


class _Coefficients:
    """The quantised coefficients of a JPEG in memory, decoded no further, and what libjpeg warned of."""

    def __init__(self, library: ctypes.CDLL, data: bytes) -> None:
        self._library = library
        self._errors = _Errors()
        self.info = _Decompress()
        self.warnings: set[str] = set()
        self.info.err = library.jpeg_std_error(ctypes.byref(self._errors))
        self._emit = _EMIT(self._heard)
        self._errors.emit_message = self._emit
        library.jpeg_CreateDecompress(ctypes.byref(self.info), _VERSION, ctypes.sizeof(_Decompress))
        library.jpeg_mem_src(ctypes.byref(self.info), data, len(data))
        library.jpeg_read_header(ctypes.byref(self.info), 1)
        self.restart_interval = self.info.restart_interval  # of the first scan; later ones may have their own
        self.arrays = library.jpeg_read_coefficients(ctypes.byref(self.info))
        self._access = _ACCESS(self.info.mem.contents.access_virt_barray)

    def _heard(self, info: int, level: int) -> None:
        if level < 0:  # a warning; others are traces
            text = ctypes.create_string_buffer(_MESSAGE_BYTES)
            self._errors.format_message(info, text)
            self.warnings.add(text.value.decode("ascii", "replace"))

    @property
    def components(self) -> list[_Component]:
        return list(self.info.comp_info[: self.info.num_components])

    def row(self, component: int, row: int, *, write: bool = False) -> int:
        """Return the address of a component's row of blocks."""
        rows = self._access(ctypes.addressof(self.info), self.arrays[component], row, 1, int(write))
        return int(rows[0])

    def row_bytes(self, component: int, row: int) -> bytes:
        width = self.components[component].width_in_blocks
        return ctypes.string_at(self.row(component, row), width * _BLOCK_BYTES)

    def digest(self) -> list[tuple[int | bytes, ...]]:
        """Return what stands for all that decides the pixels: each component's frame, table and blocks."""
        digests: list[tuple[int | bytes, ...]] = []
        for number, component in enumerate(self.components):
            check = 0
            for row in range(component.height_in_blocks):
                check = zlib.crc32(self.row_bytes(number, row), check)
            frame = (getattr(component, name) for name in _FRAME)
            digests.append((*frame, ctypes.string_at(component.quant_table, _BLOCK_BYTES), check))
        return digests

    def free(self) -> None:
        """Give the memory back."""
        self._library.jpeg_destroy_decompress(ctypes.byref(self.info))

    def is_cut_off(self) -> bool:
        """Tell whether the picture's data ends before the picture does.

        libjpeg warns of data that ends early, and leaves what it lacks at zero. In a progressive file a whole
        pass over the picture is cut; in others it takes more than a few blocks at the very end that hold
        nothing, since that warning also comes for a damaged part between two restart markers. A progressive
        file cut between two passes gives no warning; decoders smooth what was never refined.
        """
        if self.info.progressive_mode and not self._is_refined():
            return True
        if not any(_PREMATURE in warning.lower() for warning in self.warnings):
            return False
        if self.info.progressive_mode and not self.restart_interval:
            return True
        first = self.components[0]
        last_row = self.row_bytes(0, first.height_in_blocks - 1)
        empty = (len(last_row) - len(last_row.rstrip(b"\0"))) // _BLOCK_BYTES
        return bool(empty > min(_FORGIVEN_MCUS * first.h_samp_factor, first.width_in_blocks - 1))

    def _is_refined(self) -> bool:
        """Whether the passes of a progressive file have told all bits of all coefficients (0 are left)."""
        known = self.info.coef_bits[: self.info.num_components * _BLOCK_COEFFICIENTS]
        return not any(known)


class _Encoder:
    """A JPEG in the making that shares another's tables, sampling and colour space."""

    def __init__(self, library: ctypes.CDLL, like: _Coefficients) -> None:
        self._library = library
        self._errors = _Errors()
        self._buffer, self._size = _pointer(), _long()
        self.info = _Compress()
        self.info.err = library.jpeg_std_error(ctypes.byref(self._errors))
        library.jpeg_CreateCompress(ctypes.byref(self.info), _VERSION, ctypes.sizeof(_Compress))
        library.jpeg_mem_dest(ctypes.byref(self.info), ctypes.byref(self._buffer), ctypes.byref(self._size))
        library.jpeg_copy_critical_parameters(ctypes.byref(like.info), ctypes.byref(self.info))

    def finish(self) -> bytes:
        """Return the JPEG, and give the memory back."""
        self._library.jpeg_finish_compress(ctypes.byref(self.info))
        data = ctypes.string_at(self._buffer.value or 0, self._size.value)
        self._library.jpeg_destroy_compress(ctypes.byref(self.info))
        ctypes.CDLL(None).free(self._buffer)
        return data


def _encoded(
    library: ctypes.CDLL, like: _Coefficients, pixels: bytes, size: tuple[int, int], channels: int
) -> bytes:
    """Encode pixels (height, width, channels) as a small JPEG of its own."""
    width, height = size
    encoder = _Encoder(library, like)
    info = encoder.info
    info.image_width, info.image_height = width, height
    info.input_components, info.in_color_space = channels, _COLOUR_SPACES[channels]
    library.jpeg_start_compress(ctypes.byref(info), 1)
    place = ctypes.cast(ctypes.c_char_p(pixels), _pointer).value or 0
    rows = (_pointer * height)(*range(place, place + len(pixels), width * channels))
    done = 0
    while done < height:
        done += library.jpeg_write_scanlines(
            ctypes.byref(info), ctypes.byref(rows, done * ctypes.sizeof(_pointer)), height - done
        )
    return encoder.finish()


def _runs(marks: bytes) -> Iterator[tuple[int, int]]:
    """Walk the runs of ones: start and stop."""
    start = marks.find(1)
    while start >= 0:
        stop = marks.find(0, start)
        stop = len(marks) if stop < 0 else stop
        yield start, stop
        start = marks.find(1, stop)


def _transplant(
    source: _Coefficients, new: _Coefficients, places: list[dict[str, int]], marks: list[bytes]
) -> None:
    """Copy the marked blocks of a small JPEG to their places in the source's coefficients.

    Args:
        source: is changed.
        new: covers a rectangle of the source.
        places: of each component, in blocks: where the rectangle lies, its rows and columns.
        marks: of each component, a byte a block, row by row: 1 is copied.
    """
    for component, (place, marked) in enumerate(zip(places, marks, strict=True)):
        for row in range(place["rows"]):
            runs = list(_runs(marked[row * place["columns"] : (row + 1) * place["columns"]]))
            if not runs:
                continue
            origin = new.row(component, row)
            target = source.row(component, place["top"] + row, write=True) + place["left"] * _BLOCK_BYTES
            for start, stop in runs:
                length = (stop - start) * _BLOCK_BYTES
                ctypes.memmove(target + start * _BLOCK_BYTES, origin + start * _BLOCK_BYTES, length)


def _written(library: ctypes.CDLL, source: _Coefficients) -> bytes:
    """Write the coefficients as a JPEG of the source's kind, without any application segment."""
    encoder = _Encoder(library, source)
    info = encoder.info
    info.arith_code = source.info.arith_code
    info.optimize_coding = int(not source.info.arith_code)
    info.restart_interval = source.restart_interval
    info.write_JFIF_header = info.write_Adobe_marker = 0
    if source.info.progressive_mode:
        library.jpeg_simple_progression(ctypes.byref(info))
    library.jpeg_write_coefficients(ctypes.byref(info), source.arrays)
    return encoder.finish()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _with_new_blocks(library: ctypes.CDLL, source: _Coefficients, request: dict[str, Any]) -> bytes:
    given, channels = sys.stdin.buffer, request["channels"]
    for box in request["boxes"]:
        places = box["components"]
        if len(places) != source.info.num_components:
            sys.exit("libjpeg sees another number of components than the header says")
        width, height = box["size"]
        pixels = given.read(width * height * channels)
        marks = [given.read(place["rows"] * place["columns"]) for place in places]
        new = _Coefficients(library, _encoded(library, source, pixels, (width, height), channels))
        _transplant(source, new, places, marks)
        new.free()
    data, meant = _written(library, source), source.digest()
    source.free()
    written = _Coefficients(library, data)
    if written.warnings or written.digest() != meant:
        sys.exit("what was written does not read back as it was meant")
    return data


def main() -> None:
    """Serve one request."""
    _end_with_parent()
    request = json.loads(sys.stdin.buffer.readline())
    library = _library(request["library"])
    source = _Coefficients(library, sys.stdin.buffer.read(request["source_bytes"]))
    answer = {"cut_off": source.is_cut_off(), "warnings": sorted(source.warnings)[:_TOLD_WARNINGS]}
    data = b""
    if request["boxes"] and not answer["cut_off"]:
        data = _with_new_blocks(library, source, request)
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
