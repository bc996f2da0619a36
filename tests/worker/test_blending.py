"""Seams: the ramp in the grown rim, and the offset that is taken out of a fill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.worker.bench import FILL, FlatEngine, photo, rectangle, save_mask
from tests.worker.steps import step_at
from watcher.wire import EngineChoice
from watcher.worker.engines.patchmatch import PatchmatchEngine
from watcher.worker.engines.protocol import Crop
from watcher.worker.imaging.blending import ALL_FILL, blended, fill_share, levelled
from watcher.worker.imaging.crops import Rect
from watcher.worker.imaging.masks import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tests.worker.bench import Bench

SIDE = 160
WHOLE = Rect(0, 0, SIDE, SIDE)
MARK = rectangle(SIDE, SIDE, (60, 60, 100, 100))


@pytest.mark.parametrize("grow", [1, 2, 4, 8, 20])
def test_only_the_outer_part_of_what_was_grown_is_blended(grow: int) -> None:
    hole = grown(MARK, grow)
    share = fill_share(MARK, hole, WHOLE)
    assert share is not None
    assert (share[MARK] == ALL_FILL).all()
    row = share[80, 100 : 100 + grow].astype(int)
    assert (np.diff(row) <= 0).all(), "less and less towards the border"
    inner = max(grow // 2, grow - 4)
    assert (row[:inner] == ALL_FILL).all(), "the inner half may still hold what was to go"
    assert row[-1] > 0
    assert np.count_nonzero(share[hole] < ALL_FILL) > 0 or grow == 1


def test_nothing_is_blended_where_nothing_was_grown() -> None:
    assert fill_share(MARK, MARK, WHOLE) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 90), st.integers(0, 90), st.integers(20, 70), st.integers(20, 70))
def test_a_box_has_the_shares_of_the_whole(top: int, left: int, height: int, width: int) -> None:
    hole = grown(MARK, 6)
    whole = fill_share(MARK, hole, WHOLE)
    box = Rect(top, left, top + height, left + width)
    part = fill_share(MARK, hole, box)
    assert whole is not None
    inside = hole[box.slices]
    assert np.array_equal(
        whole[box.slices][inside], np.full(inside.sum(), ALL_FILL) if part is None else part[inside]
    )


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_blending_goes_from_the_one_to_the_other(kind: Any) -> None:
    most = np.iinfo(kind).max
    before: NDArray[Any] = np.array([[0], [most], [100]], kind)
    fill: NDArray[Any] = np.array([[most], [0], [100]], kind)
    assert blended(before, fill, np.array([255, 255, 7], np.uint8)).tolist() == [[most], [0], [100]]
    assert blended(before, fill, np.array([0, 0, 200], np.uint8)).tolist() == before.tolist()


def step(pixels: NDArray[np.uint8], hole: NDArray[np.bool_]) -> float:
    """The mean difference of luma between 3 px inside and 3 px outside of the border."""
    inside, outside = hole & grown(~hole, 3), ~hole & grown(hole, 3)
    luma = pixels.astype(float).mean(axis=2)
    return abs(float(luma[inside].mean() - luma[outside].mean()))


@pytest.mark.kind("PB5")
@pytest.mark.parametrize("offset", [-15, -8, 8, 15])
def test_an_offset_along_a_calm_border_is_taken_out(offset: int) -> None:
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    truth = np.clip(np.stack([60 + x // 2, 80 + x // 3, 100 + y // 4], axis=-1), 0, 255).astype(np.uint8)
    hole = grown(MARK, 4)
    filled = truth.copy()
    filled[hole] = np.clip(truth[hole].astype(int) + offset, 0, 255)
    result = levelled(Crop(truth, hole), filled)
    joined = np.where(hole[..., np.newaxis], filled, truth)
    after = np.where(hole[..., np.newaxis], result, truth)
    assert step(joined, hole) > 0.8 * abs(offset)
    assert step(after, hole) < 2
    assert np.abs(after.astype(int) - truth)[hole].mean() < 0.35 * abs(offset)


def test_a_real_edge_along_the_border_stays() -> None:
    truth = photo(SIDE, SIDE)
    hole = grown(MARK, 4)
    filled = truth.copy()
    filled[hole] = (250, 240, 230)
    assert np.array_equal(levelled(Crop(truth, hole), filled), filled)


def test_what_fits_is_left_alone() -> None:
    grey = np.full((SIDE, SIDE, 3), 90, np.uint8)
    assert levelled(Crop(grey, MARK), grey) is grey
    assert (one_brighter := grey + np.uint8(1)) is levelled(Crop(grey, MARK), one_brighter)


def test_between_rough_textures_an_offset_is_a_matter_of_chance() -> None:
    random = np.random.default_rng(4)
    rough = np.kron(random.integers(40, 220, (SIDE // 4, SIDE // 4, 1)), np.ones((4, 4, 3))).astype(np.uint8)
    other = np.roll(rough, (37, 53), axis=(0, 1))
    assert np.abs(levelled(Crop(rough, MARK), other).astype(int) - other).max() <= 2


def test_what_is_transparent_has_no_tone_to_go_by() -> None:
    truth = np.full((SIDE, SIDE, 3), 90, np.uint8)
    hole = grown(MARK, 4)
    clear = np.zeros_like(hole)
    clear[:, 104:] = True
    truth[clear] = 99  # what stands in for no colour
    filled = np.full_like(truth, 90)
    assert np.abs(levelled(Crop(truth, hole), filled).astype(int) - 90).max() > 4
    assert levelled(Crop(truth, hole), filled, clear) is filled


# --- through the front door --------------------------------------------------------------------------------

SAMPLES = Path(__file__).parents[2] / "sample_inbox"


@dataclass
class OffTone(FlatEngine):
    """Gives back a picture that it knows, brighter or darker all over."""

    truth: NDArray[np.uint8] | None = None
    offset: tuple[int, int, int] = (0, 0, 0)

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        super().fill(crops, progress=progress)
        assert self.truth is not None
        assert [crop.pixels.shape for crop in crops] == [self.truth.shape], "the crop is all of the picture"
        return [np.clip(self.truth.astype(int) + self.offset, 0, 255).astype(np.uint8)]


@pytest.mark.kind("PB5")
@pytest.mark.parametrize(
    "offset", [(-12, -12, -12), (10, 10, 10), (9, -8, 4)], ids=["dark", "bright", "tinted"]
)
def test_a_fill_of_another_tone_does_not_show_in_a_picture(
    bench: Bench, offset: tuple[int, int, int]
) -> None:
    with Image.open(SAMPLES / "rocket.jpg") as image:
        truth = np.asarray(image.convert("RGB"))[:240, :240]
    source, mark = bench.folder / "a.png", rectangle(240, 240, (40, 60, 180, 180))
    painted = truth.copy()
    painted[mark] = (255, 0, 255)
    Image.fromarray(painted).save(source)
    bench.engine = OffTone(truth=truth, offset=offset)
    _, staged = bench.done(source, save_mask(bench.folder / "a.png.mask.png", mark))
    with Image.open(staged) as image:
        after = np.asarray(image)
    hole = grown(mark, 4)
    hard = truth.copy()
    hard[hole] = np.clip(truth[hole].astype(int) + offset, 0, 255)
    plain, worse, better = (step_at(pixels, hole).border for pixels in (truth, hard, after))
    assert worse > plain + 6
    assert better < plain + 2
    assert np.array_equal(after[~hole], truth[~hole])


@pytest.mark.kind("PB5")
@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("cat.jpg", (60, 60, 110, 100)),
        ("coffee.jpg", (250, 30, 330, 70)),
        ("gravel.webp", (200, 200, 290, 260)),
        ("rocket.jpg", (40, 40, 120, 110)),
    ],
)
def test_patchmatch_leaves_no_step(bench: Bench, name: str, box: tuple[int, int, int, int]) -> None:
    engine = PatchmatchEngine(EngineChoice(name="patchmatch", device="cpu"))
    engine.load()
    bench.engine = engine  # type: ignore[assignment] # the bench's own is made to be watched
    with Image.open(SAMPLES / name) as image:
        pixels = np.asarray(image.convert("RGB"))
    mark = rectangle(pixels.shape[1], pixels.shape[0], box)
    source = bench.folder / "a.png"
    Image.fromarray(np.where(mark[..., np.newaxis], np.uint8(0), pixels)).save(source)
    _, staged = bench.done(source, save_mask(bench.folder / "a.png.mask.png", mark))
    with Image.open(staged) as image:
        assert step_at(np.asarray(image), grown(mark, 4)).excess < 3


# --- what is no colour is mixed with none ------------------------------------------------------------------

W, H = 80, 60
SPOT = rectangle(W, H, (30, 20, 50, 40))
SPOT_HOLE = grown(SPOT, 6)
RIM = SPOT_HOLE & ~SPOT
PIXELS = photo(W, H)


def served(bench: Bench, image: Image.Image, container: str, **options: Any) -> NDArray[Any]:
    source = bench.folder / f"a.{container.lower()}"
    image.save(source, container, **options)
    _, staged = bench.done(source, save_mask(bench.folder / "mask.png", SPOT), grow_px=6)
    with Image.open(staged) as after:
        return np.asarray(after)


def between(before: NDArray[Any], after: NDArray[Any], fill: NDArray[Any]) -> NDArray[np.bool_]:
    low, high = np.minimum(before, fill), np.maximum(before, fill)
    return np.asarray((low <= after) & (after <= high))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "I;16", "CMYK"])
def test_every_depth_and_colour_is_mixed_in_its_own_samples(bench: Bench, mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray((PIXELS[..., 0].astype(np.uint16) << 8) + PIXELS[..., 1])
    else:
        image = Image.fromarray(PIXELS).convert(mode)
    before = np.asarray(image).astype(int)
    after = served(bench, image, "TIFF" if mode == "CMYK" else "PNG").astype(int)
    assert np.array_equal(before[~SPOT_HOLE], after[~SPOT_HOLE])
    fills = np.unique(after[SPOT].reshape(int(SPOT.sum()), -1), axis=0)
    assert len(fills) == 1, "what was marked is all fill"
    wide = (before[RIM].reshape(int(RIM.sum()), -1), after[RIM].reshape(int(RIM.sum()), -1))
    assert between(*wide, fills[0]).all()
    mixed = (wide[1] != fills[0]).any(axis=1) & (wide[1] != wide[0]).any(axis=1)
    assert 0.3 < mixed.mean() < 0.8, "about the outer half"


def test_under_full_transparency_nothing_is_mixed_in_and_alpha_stays(bench: Bench) -> None:
    clear = np.arange(W) >= 52  # a part of the rim
    alpha = np.where(clear, 0, 255).astype(np.uint8)[np.newaxis].repeat(H, axis=0)
    hidden = PIXELS.copy()
    hidden[:, clear] = (1, 254, 3)
    after = served(bench, Image.fromarray(np.dstack([hidden, alpha])), "PNG")
    assert np.array_equal(after[..., 3], alpha)
    assert (after[RIM & (alpha == 0)][:, :3] == FILL).all()
    assert (after[RIM & (alpha > 0)][:, :3] != FILL).any()


def test_a_fill_beside_transparency_keeps_its_tone(bench: Bench) -> None:
    clear = np.arange(W) >= 56
    alpha = np.where(clear, 0, 255).astype(np.uint8)[np.newaxis].repeat(H, axis=0)
    dark = (np.arange(H) < 8) | (np.arange(H) >= 52)  # so that the mean colour is another
    tones = np.where(dark, 150, 200).astype(np.uint8)[:, np.newaxis].repeat(W, axis=1)
    picture = np.dstack([tones, tones, tones, alpha])
    bench.engine = FlatEngine(colour=(200, 200, 200))
    after = served(bench, Image.fromarray(picture), "PNG")
    assert (after[SPOT_HOLE][:, :3] == 200).all()


def test_erased_pixels_come_back_opaque_and_of_the_fill_alone(bench: Bench) -> None:
    hidden = PIXELS.copy()
    hidden[SPOT] = (1, 254, 3)
    alpha = np.where(SPOT, 0, 255).astype(np.uint8)
    source = bench.folder / "a.png"
    Image.fromarray(np.dstack([hidden, alpha])).save(source)
    _, staged = bench.done(source, sources=("alpha",), grow_px=6)
    with Image.open(staged) as image:
        after = np.asarray(image)
    assert (after[..., 3] == 255).all()
    assert (after[SPOT][:, :3] == FILL).all()
    assert between(PIXELS[RIM], after[RIM][:, :3], np.array(FILL)).all()
    assert (after[RIM][:, :3] != FILL).any()


def test_the_colour_that_means_transparent_is_neither_mixed_in_nor_made(bench: Bench) -> None:
    key = (100, 100, 100)
    pixels = np.full((H, W, 3), (0, 140, 180), np.uint8)  # half way to the fill lies the key
    pixels[:, 52:] = key
    after = served(bench, Image.fromarray(pixels), "PNG", transparency=key)
    was_key = (pixels == key).all(axis=2)
    assert np.array_equal((after == key).all(axis=2), was_key)
    assert between(pixels[RIM & ~was_key], after[RIM & ~was_key], np.array(FILL)).mean() > 0.99


@pytest.mark.parametrize("mode", ["1", "P"])
def test_where_there_is_nothing_between_two_colours_nothing_is_mixed(bench: Bench, mode: str) -> None:
    image = Image.fromarray(PIXELS)
    image = image.convert("1") if mode == "1" else image.quantize(32)
    before = np.asarray(image.convert("RGB"))
    source = bench.folder / "a.png"
    image.save(source)
    _, staged = bench.done(source, save_mask(bench.folder / "mask.png", SPOT), grow_px=6)
    with Image.open(staged) as opened:
        after = np.asarray(opened.convert("RGB"))
    assert len(np.unique(after[SPOT_HOLE], axis=0)) == 1
    assert np.array_equal(before[~SPOT_HOLE], after[~SPOT_HOLE])
