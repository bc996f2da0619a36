"""A TIFF's colour map: its colours out, and the colours of entries that the fill was given in.

Rules of this module:
- An entry whose colour did not change keeps its 16 bits.
- A colour map is always full: 2**bits entries, used or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.formats.tiff import tags
from watcher.worker.imaging.formats.tiff.structure import broken

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.formats.tiff.edit import TiffEdit
    from watcher.worker.imaging.ifd import Ifd
    from watcher.worker.imaging.picture import Palette

_BYTE = 256
_DEPTHS_RATIO = 257
"""65,535 / 255: what turns 8 bits into 16."""


def tiff_palette(data: bytes, ifd: Ifd, bits: int) -> NDArray[np.uint8]:
    """Return the colours of a colour map: RGB, (2**bits, 3).

    Raises:
        RefusedError: it has not as many as its pixels can ask for (undecodable).
    """
    table = _table(data, ifd, bits)
    return (table // _scale(table)).astype(np.uint8).T


def put_palette(edit: TiffEdit, data: bytes, ifd: Ifd, palette: Palette, bits: int) -> None:
    """Write the entries that changed."""
    table = _table(data, ifd, bits)
    scale = _scale(table)
    known = min(len(palette.colours), 1 << bits)
    old, new = table[:, :known], palette.colours[:known].T.astype(np.int64)
    changed = (old // scale != new).any(axis=0)
    if changed.any():
        table[:, :known][:, changed] = new[:, changed] * (_DEPTHS_RATIO if scale == _BYTE else 1)
        edit.set_numbers(tags.COLOUR_MAP, table.ravel())


def _table(data: bytes, ifd: Ifd, bits: int) -> NDArray[np.int64]:
    """Return the map as it is stored: reds, greens, blues, (3, 2**bits)."""
    table = ifd.numbers(data, tags.COLOUR_MAP)
    if len(table) != 3 << bits:
        raise broken(f"its colour map has {len(table)} numbers of {3 << bits}")
    return table.reshape(3, -1)


def _scale(table: NDArray[np.int64]) -> int:
    """Return what a stored number has to be divided by; some writers store 8 bits, and not 16."""
    return _BYTE if int(table.max()) >= _BYTE else 1
