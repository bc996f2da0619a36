"""Pictures of any size, from one pixel to strips of thousands: size, mode and all outside the hole stay."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.worker import independent
from tests.worker.bench import Bench, FlatEngine, save_mask
from tests.worker.comparison import lost
from tests.worker.rows import ROWS, Scene
from watcher.wire import ItemDone, ItemFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from watcher.worker.engines.protocol import Crop

LONG_PX, SHORT_PX = 5000, 40
COVERED_LIMIT = 0.95
SLOW = ("heic", "avif", "lzw", "directory-last", "440", "411", "uneven-chroma", "restarts", "2x2")
"""Parts of the names of rows whose files take long to make at this size; the matrix has them."""
NAMES = [name for name in ROWS if not any(part in name for part in SLOW)]
NUMBER = itertools.count()


class NoiseEngine(FlatEngine):
    """Fills with noise, which no encoder makes small: what is written needs more room than what was there."""

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        random = np.random.default_rng(7)
        filled = super().fill(crops, progress=progress)
        return [random.integers(0, 256, result.shape, np.uint8) for result in filled]


SIZES = st.one_of(
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.tuples(st.integers(1, LONG_PX), st.integers(1, SHORT_PX)),
    st.tuples(st.integers(1, SHORT_PX), st.integers(1, LONG_PX)),
)
CORNER = st.tuples(st.floats(0, 1), st.floats(0, 1))


def between(one: float, other: float, length: int) -> slice:
    """Return a stretch of at least one pixel, whose ends are given as shares of a length."""
    first, last = sorted(int(share * (length - 1)) for share in (one, other))
    return slice(first, last + 1)


@pytest.mark.kind("PB1", "PB12")
@settings(
    max_examples=90,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from(NAMES), SIZES, st.sampled_from(range(1, 9)), CORNER, CORNER)
@example("jpeg-420", (LONG_PX, SHORT_PX), 6, (0.1, 0.2), (0.2, 0.7))
@example("png-rgba8", (SHORT_PX, LONG_PX), 5, (0.3, 0.4), (0.9, 0.5))
@example("png-rgb8", (1, 1), 1, (0.0, 0.0), (1.0, 1.0))
@example("jpeg-420", (1, 2), 7, (0.0, 0.0), (0.0, 0.0))
@example("jpeg-444", (2, 1), 1, (0.9, 0.0), (1.0, 1.0))
def test_a_picture_of_any_size_comes_back_as_it_went_in_but_for_the_hole(
    tmp_path: Path,
    name: str,
    size: tuple[int, int],
    orientation: int,
    one: tuple[float, float],
    other: tuple[float, float],
) -> None:
    row, bench = ROWS[name], Bench(tmp_path, NoiseEngine())
    source = bench.folder / f"{next(NUMBER)}-{name}"
    source.write_bytes(row.encode(Scene(*size), orientation if orientation in row.orientations else 1))
    before = independent.look(source.read_bytes())
    height, width = before.viewed.shape[:2]
    hole = np.zeros((height, width), np.bool_)
    hole[between(one[0], other[0], height), between(one[1], other[1], width)] = True
    report = bench.serve(source, save_mask(bench.folder / "mask.png", hole), grow_px=0)
    if hole.mean() > COVERED_LIMIT:
        assert isinstance(report, ItemFailed)
        assert report.code == "mask_covers_all"
        return
    assert isinstance(report, ItemDone), report
    after = independent.look((bench.folder / "staging" / f"{source.name}.staged").read_bytes())
    told = list(lost(row, report.image, before, after, hole))
    assert not told, told
