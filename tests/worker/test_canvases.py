from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from watcher.worker.imaging.composite import canvas_for
from watcher.worker.imaging.crops import Rect
from watcher.worker.imaging.inks import InkConversion

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watcher.worker.imaging.picture import Picture

HEIGHT, WIDTH = 24, 32
BOX = Rect(4, 6, 20, 28)
LOW, HIGH = 9_000, 21_000
"""What the 16-bit pictures below hold outside their hole: a narrow band, as raw scans do."""


@dataclass
class Header:
    """What a canvas asks of a picture."""

    mode: str
    transparency: Any = None
    icc_profile: bytes = b""


def canvas(header: Header, pixels: NDArray[Any], hole: NDArray[np.bool_], reopen: Any = None) -> Any:
    return canvas_for(cast("Picture", header), pixels, hole, reopen)


def hole() -> NDArray[np.bool_]:
    mask = np.zeros((HEIGHT, WIDTH), np.bool_)
    mask[9:14, 12:20] = True
    return mask


def deep(channels: int) -> NDArray[np.uint16]:
    shape = (HEIGHT, WIDTH) if channels == 1 else (HEIGHT, WIDTH, channels)
    pixels = np.random.default_rng(5).integers(LOW, HIGH, shape, np.uint16)
    pixels.reshape(HEIGHT, WIDTH, -1)[0, 0, :3] = LOW  # outside the box: no part of its stretch
    return pixels


@pytest.mark.parametrize(("mode", "channels"), [("I;16", 1), ("RGB;16", 3), ("RGBA;16", 4), ("LA;16", 2)])
def test_sixteen_bits_stay_outside_and_the_fill_lies_within_the_boxes_own_range(
    mode: str, channels: int
) -> None:
    pixels = deep(channels)
    filling = canvas(Header(mode), pixels, hole())
    part = hole()[BOX.slices]
    seen = filling.rgb(BOX, part)
    assert seen.shape == (BOX.height, BOX.width, 3)
    assert seen.min() == 0
    assert seen[~part].max() == 255, "the known samples are not stretched over the model's whole range"
    filling.paste(BOX, part, seen)
    filled = filling.finish().pixels
    assert filled.dtype == np.uint16
    assert (filled[~hole()] == pixels[~hole()]).all()
    colours = filled.reshape(HEIGHT, WIDTH, -1)[hole()][:, : {2: 1, 4: 3}.get(channels, channels)]
    assert colours.min() >= LOW
    assert colours.max() <= HIGH
    if channels in (2, 4):
        assert (filled[..., -1] == pixels[..., -1]).all(), "alpha is not filled"


def test_what_the_model_sees_of_sixteen_bits_goes_back_to_what_it_was() -> None:
    pixels = deep(3)
    filling = canvas(Header("RGB;16"), pixels, hole())
    part = hole()[BOX.slices]
    filling.paste(BOX, part, filling.rgb(BOX, part))
    difference = np.abs(filling.finish().pixels.astype(int) - pixels)
    assert difference.max() <= (HIGH - LOW) / 255, "one of the model's steps"


@pytest.mark.parametrize("mode", ["RGBA;16", "LA;16"])
def test_erased_sixteen_bit_pixels_come_back_opaque_and_their_colour_is_not_seen(mode: str) -> None:
    pixels = deep(4 if mode == "RGBA;16" else 2)
    pixels[..., -1] = 65_535
    pixels[hole(), -1] = 0
    pixels[hole(), :-1] = 0
    grown = hole()
    grown[8:15, 11:21] = True
    filling = canvas(Header(mode), pixels, grown, hole())
    part = grown[BOX.slices]
    seen = filling.rgb(BOX, part)
    erased = hole()[BOX.slices]
    assert (seen[erased] == seen[erased][0]).all()
    assert 64 < seen[erased].mean() < 192, "the black under the erased pixels was seen"
    filling.paste(BOX, part, seen)
    assert (filling.finish().pixels[..., -1] == 65_535).all()


@pytest.mark.parametrize(("mode", "key"), [("I;16", LOW + 5), ("RGB;16", (LOW, LOW, LOW))])
def test_a_sixteen_bit_fill_never_takes_the_value_that_means_transparent(mode: str, key: Any) -> None:
    pixels = deep(1 if mode == "I;16" else 3)
    filling = canvas(Header(mode, transparency=key), pixels, hole())
    part = hole()[BOX.slices]
    seen = filling.rgb(BOX, part)
    for value in range(256):
        filling.paste(BOX, part, np.full_like(seen, value))
        filled = filling.finish().pixels[hole()]
        assert not (filled == np.asarray(key)).reshape(len(filled), -1).all(axis=1).any()


def test_a_flat_sixteen_bit_box_can_be_filled() -> None:
    pixels = np.full((HEIGHT, WIDTH), 700, np.uint16)
    filling = canvas(Header("I;16"), pixels, hole())
    part = hole()[BOX.slices]
    filling.paste(BOX, part, filling.rgb(BOX, part))
    assert (filling.finish().pixels == 700).all()


def test_inks_stay_outside_and_take_the_fills_colour_inside() -> None:
    inks = np.random.default_rng(6).integers(0, 200, (HEIGHT, WIDTH, 4), np.uint8)
    filling = canvas(Header("CMYK"), inks, hole())
    part = hole()[BOX.slices]
    seen = filling.rgb(BOX, part)
    assert (seen == InkConversion(b"").to_rgb(inks[BOX.slices])).all()
    filling.paste(BOX, part, np.full_like(seen, (200, 60, 30)))
    filled = filling.finish().pixels
    assert (filled[~hole()] == inks[~hole()]).all()
    assert (InkConversion(b"").to_rgb(filled)[hole()] == (200, 60, 30)).all()


@pytest.mark.parametrize("profile", [b"", b"no profile", bytes(200)])
def test_a_missing_or_broken_profile_leaves_the_plain_formula(profile: bytes) -> None:
    conversion = InkConversion(profile)
    white = np.zeros((1, 1, 4), np.uint8)
    assert conversion.to_rgb(white).tolist() == [[[255, 255, 255]]]
    assert conversion.to_rgb(conversion.from_rgb(np.full((1, 1, 3), 90, np.uint8))).tolist() == [[[90] * 3]]
