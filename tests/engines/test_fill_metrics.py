"""What fills are judged by: blur is told from texture, and each number is what its name says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import fill_metrics, known_holes
from benchmarks.fill_quality import (
    OPENCV,
    TEXTURES,
    Task,
    fills_table,
    rows_of,
    stand_ins,
    wins_table,
    write_page,
)
from benchmarks.fill_quality import Row as FillRow
from watcher.worker.engines import patchmatch

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@pytest.fixture(scope="module")
def scenes() -> dict[str, known_holes.Scene]:
    return {scene.name: scene for scene in known_holes.sample_scenes()}


def middle(rgb: NDArray[np.uint8], side: int = 64) -> NDArray[np.bool_]:
    hole = np.zeros(rgb.shape[:2], np.bool_)
    top, left = (rgb.shape[0] - side) // 2, (rgb.shape[1] - side) // 2
    hole[top : top + side, left : left + side] = True
    return hole


def pasted(truth: NDArray[np.uint8], source: NDArray[np.uint8], hole: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.where(hole[:, :, None], source, truth)


@pytest.mark.parametrize("name", TEXTURES)
def test_another_patch_of_a_texture_is_better_than_a_blurred_truth(
    scenes: dict[str, known_holes.Scene], name: str
) -> None:
    """In a patch of smooth bricks the joints lie elsewhere, so little blur is nearer there; else none is."""
    truth = scenes[name].rgb
    hole = known_holes.mark(scenes[name], "large blob")
    measured = {
        label: fill_metrics.measure(pasted(truth, source, hole), truth, hole)
        for label, source in stand_ins(truth, hole).items()
    }
    other = [quality for label, quality in measured.items() if label.startswith("another patch")]
    worst = max(quality.texture for quality in other)
    blurred = [measured[f"the truth blurred, sigma {sigma}"] for sigma in (1, 2, 4)]
    assert blurred[0].texture < blurred[1].texture < blurred[2].texture < measured["its mean colour"].texture
    assert worst < blurred[2 if name == "brick" else 0].texture
    assert worst < min(
        measured["its pixels in disorder"].texture, measured["noise of its mean and spread"].texture
    )
    # closeness says the opposite, which is why it cannot judge alone
    assert max(quality.psnr_db for quality in other) < blurred[2].psnr_db


def test_the_truth_is_at_no_distance(scenes: dict[str, known_holes.Scene]) -> None:
    truth = scenes["cat"].rgb
    assert fill_metrics.measure(truth, truth, middle(truth)) == fill_metrics.Quality(99.0, 1.0, 0.0, 0.0)


def test_psnr_is_of_the_hole_alone() -> None:
    truth = np.full((64, 64, 3), 100, np.uint8)
    hole = middle(truth, 16)
    filled = pasted(truth, truth + np.uint8(16), hole)
    assert fill_metrics.measure(filled, truth, hole).psnr_db == pytest.approx(10 * np.log10(255**2 / 16**2))


@pytest.mark.parametrize(("offset", "step"), [(0, 0), (10, 10), (-10, 10)])
def test_a_step_at_the_border_is_told_in_grey_levels(offset: int, step: int) -> None:
    truth = np.full((64, 64, 3), 100, np.uint8)
    hole = middle(truth, 16)
    filled = pasted(truth, np.full_like(truth, 100 + offset), hole)
    assert fill_metrics.measure(filled, truth, hole).step == pytest.approx(step, abs=1e-3)


@pytest.mark.parametrize("kind", [*known_holes.KINDS, known_holes.line_of(3)])
def test_marks_are_the_same_each_time_and_other_ones_at_other_places(
    scenes: dict[str, known_holes.Scene], kind: str
) -> None:
    scene = scenes["rocket"]
    mark = known_holes.mark(scene, kind)
    assert np.array_equal(mark, known_holes.mark(scene, kind))
    assert not np.array_equal(mark, known_holes.mark(scene, kind, repeat=1))
    assert not np.array_equal(mark, known_holes.mark(scene, kind, seed=1))
    assert 0.0005 < mark.mean() < 0.12


def test_fills_are_measured_behind_the_front_door(
    scenes: dict[str, known_holes.Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cv2.setNumThreads", lambda _count: None)  # this process is not a benchmark's
    scene = known_holes.Scene("gravel", scenes["gravel"].rgb[:224, :224], shown=True)
    engines = (*OPENCV, "patchmatch")
    settings = (("patchmatch", "MIN_MARGIN_PX", 32),)
    rows = rows_of(Task(scene, ("small blob", "hairline"), engines, repeats=1, seed=0, settings=settings))
    assert [(row.kind, row.engine) for row in rows] == [
        (kind, engine) for kind in ("small blob", "hairline") for engine in engines
    ]
    for telea, navier_stokes, copied in (rows[:3], rows[3:]):
        assert copied.quality.texture < min(telea.quality.texture, navier_stokes.quality.texture)
        assert copied.hole_px == telea.hole_px > 0
        assert copied.engine_s > 0
    assert patchmatch.MIN_MARGIN_PX == 64


def test_tables_say_medians_and_who_won() -> None:
    def row(engine: str, repeat: int, texture: float) -> FillRow:
        quality = fill_metrics.Quality(psnr_db=20 + texture, ssim=0.5, texture=texture, step=-1.0)
        return FillRow("rocket", "border", repeat, engine, 100, 0.25, quality)

    rows = [row("a", 0, 0.1), row("b", 0, 0.3), row("a", 1, 0.2), row("b", 1, 0.1)]
    table = fills_table(rows, ("a", "b"))
    assert table[2] == "| border | 2 | 0.15 / 0.20 | 20.1 / 20.2 | 0.50 / 0.50 | -1.0 / -1.0 | 0.25 / 0.25 |"
    assert wins_table(rows, "a", ("b",))[2] == "| border | 2 | 1 | 1 | 0 |"


def test_only_tables_of_a_page_are_renewed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: fills -->\nold\n<!-- end -->\nbetween\n<!-- end -->\n", "utf-8")
    write_page(page, {"fills": ["| new \\1 |"]})
    expected = "before\n<!-- measured: fills -->\n| new \\1 |\n<!-- end -->\nbetween\n<!-- end -->\n"
    assert page.read_text("utf-8") == expected
    with pytest.raises(SystemExit, match="no place"):
        write_page(page, {"margins": []})
