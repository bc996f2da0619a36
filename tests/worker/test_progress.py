"""Progress: each phase and crop is told when it is over, with its time, what begins, and how much that is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, get_args

import msgspec
import numpy as np
import pytest
from PIL import Image

from tests.worker.bench import OVERHEAD_PX, photo, rectangle, save_mask
from watcher.wire import ItemDone, ItemHeld, ItemProgressed, Limits, Phase
from watcher.worker.faults import Faults, read_plan
from watcher.worker.imaging.crops import MIN_BUDGET, plan_crops, waves
from watcher.worker.imaging.masks import grow

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.worker.bench import Bench

WIDTH, HEIGHT = 1200, 500


def far_apart() -> NDArray[np.bool_]:
    """Three holes, one wave of three crops."""
    return (
        rectangle(WIDTH, HEIGHT, (40, 40, 70, 70))
        | rectangle(WIDTH, HEIGHT, (600, 240, 660, 300))
        | rectangle(WIDTH, HEIGHT, (1100, 400, 1140, 440))
    )


def a_wall() -> NDArray[np.bool_]:
    """A hole that is cut into cells which see each other's fill: several waves."""
    return rectangle(WIDTH, HEIGHT, (10, 240, 1190, 260))


def put(bench: Bench, mask: NDArray[np.bool_]) -> tuple[Path, Path]:
    source = bench.folder / "picture.png"
    Image.fromarray(photo(WIDTH, HEIGHT)).save(source)
    return source, save_mask(bench.folder / "picture.png.mask.png", mask)


def progress_of(bench: Bench) -> list[ItemProgressed]:
    return [report for report in bench.reports if isinstance(report, ItemProgressed)]


@pytest.mark.parametrize("mask", [far_apart(), a_wall()], ids=["one wave", "several waves"])
def test_the_times_that_are_told_tile_the_item(bench: Bench, mask: NDArray[np.bool_]) -> None:
    bench.limits = Limits(crop_pixels=MIN_BUDGET)
    done, _ = bench.done(*put(bench, mask))
    told = progress_of(bench)
    spent_ns = sum(report.spent_ns for report in told)
    assert spent_ns + done.segments.encode_ns == done.times.finished_ns - done.times.started_ns
    for name in ("read", "decode", "mask", "preprocess", "inference", "composite"):
        of_phase = sum(report.spent_ns for report in told if report.phase == name)
        assert of_phase == getattr(done.segments, f"{name}_ns"), name
    assert [report.phase for report in told[1:]] == [report.next for report in told[:-1]], "no gap, no jump"
    assert (told[0].phase, told[-1].next) == ("read", "encode")


@pytest.mark.parametrize("mask", [far_apart(), a_wall()], ids=["one wave", "several waves"])
def test_what_begins_is_told_with_how_much_it_is(bench: Bench, mask: NDArray[np.bool_]) -> None:
    bench.limits = Limits(crop_pixels=MIN_BUDGET)
    source, mask_file = put(bench, mask)
    done, _ = bench.done(source, mask_file)
    told = progress_of(bench)
    units: dict[str | None, set[int]] = {}
    for report in told:
        units.setdefault(report.next, set()).add(report.units)
    assert units["read"] == {source.stat().st_size + mask_file.stat().st_size}
    assert units["decode"] == {WIDTH * HEIGHT * 3}, "what is decoded, however small its file is"
    for name in ("mask", "preprocess", "composite"):
        assert units[name] == {WIDTH * HEIGHT}, name
    assert units["encode"] == {WIDTH * HEIGHT * 16}, "a PNG is dearer than a JPEG"

    plans = plan_crops(grow(mask, None), crop_pixels=MIN_BUDGET)
    assert done.image.crops == len(plans) > 2
    assert [report.units for report in told if report.next == "inference"] == [
        p.model_px + OVERHEAD_PX for p in plans
    ]
    over = [report.crop for report in told if report.crop is not None]
    assert over == list(range(len(plans))), "each crop is told once"
    assert {report.phase for report in told if report.crop is not None} == {"inference"}
    assert len([report for report in told if report.next == "preprocess"]) == len(waves(plans))


def test_a_held_picture_tells_what_it_did(bench: Bench) -> None:
    source, _ = put(bench, far_apart())
    held = bench.serve(source)
    assert isinstance(held, ItemHeld)
    assert [(report.phase, report.next, report.units) for report in progress_of(bench)] == [
        ("read", "read", source.stat().st_size),
        ("read", "decode", 0),
        ("decode", "mask", 0),
    ]


def test_a_copy_is_not_taken_for_an_encoding(bench: Bench) -> None:
    source, mask_file = put(bench, np.zeros((HEIGHT, WIDTH), np.bool_))
    done, _ = bench.done(source, mask_file)
    assert done.outcome == "unchanged"
    last = progress_of(bench)[-1]
    assert (last.phase, last.next, last.units) == ("mask", "encode", 0)


@pytest.mark.parametrize(
    ("mode", "bytes_per_pixel"), [("1", 1), ("P", 1), ("LA", 2), ("RGBA", 4), ("I;16", 2)]
)
def test_what_is_decoded_is_told_in_bytes_of_pixels(bench: Bench, mode: str, bytes_per_pixel: int) -> None:
    source = bench.folder / "picture.png"
    Image.new(mode, (96, 80)).save(source)
    bench.serve(source, save_mask(bench.folder / "picture.png.mask.png", rectangle(96, 80, (30, 30, 50, 45))))
    (decode,) = (report for report in progress_of(bench) if report.next == "decode")
    assert decode.units == 96 * 80 * bytes_per_pixel


def test_a_picture_that_is_gone_has_nothing_to_read(bench: Bench) -> None:
    source, mask_file = put(bench, far_apart())
    item = bench.item(source, mask_file)
    source.unlink()
    bench.serve_item(item)
    assert [(report.next, report.units) for report in progress_of(bench)] == [
        ("read", mask_file.stat().st_size)
    ]


def test_a_planted_slow_phase_is_slow_where_it_says(bench: Bench) -> None:
    plan = read_plan("slow_phase=encode:0.05,slow_phase=inference:0.02,slow_item=0.03", one_shot=False)
    bench.faults = Faults(plan)
    done, _ = bench.done(*put(bench, far_apart()))
    assert isinstance(done, ItemDone)
    assert done.segments.encode_ns >= 50_000_000
    told = progress_of(bench)
    crops = [report.spent_ns for report in told if report.crop is not None]
    assert len(crops) == 3
    assert min(crops) >= 20_000_000
    assert told[0].spent_ns >= 30_000_000, "the planted sleep comes before anything is announced"
    assert done.segments.read_ns >= 30_000_000


class _StoppedClock:
    """A clock that stands still but for the sleeps of planted faults."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.mark.parametrize("phase", get_args(Phase))
def test_a_stretched_phase_takes_so_many_times_as_long_and_no_other_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    everywhere = ",".join(f"slow_phase={each}:0.01" for each in get_args(Phase))
    files = put(bench, far_apart())
    _StoppedClock(monkeypatch)
    spent = []
    for planted in (everywhere, f"{everywhere},stretch={phase}:2.5"):
        bench.faults = Faults(read_plan(planted, one_shot=False))
        done, _ = bench.done(*files)
        spent.append(msgspec.to_builtins(done.segments))
    plain, stretched = spent
    assert min(plain.values()) >= 10_000_000, "every phase takes some time here"
    wanted = {**plain, f"{phase}_ns": plain[f"{phase}_ns"] * 2.5}
    assert stretched == pytest.approx(wanted, abs=10)
