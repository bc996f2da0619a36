"""The six ways to say what goes, through one real service with the recipes that `watcher init` writes."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.service.harness import ROOT, encoded, relative_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tests.service.harness import Service

    NewService = Callable[..., Service]
    Pixels = NDArray[np.uint8]
    Box = tuple[int, int, int, int]

WIDTH, HEIGHT = 320, 240
GOES: Box = (110, 120, 170, 150)
"""What is marked on each picture: left, top, right, bottom."""
STAMPS: tuple[Box, ...] = ((224, 216, 320, 240), (140, 20, 300, 80))
"""What the example recipe names: the last 30 % of the last 10 %, and a logo in the upper right corner."""
INK, MAGENTA = (250, 225, 30), (255, 0, 255)
FAR_PX = 24
"""Nothing is touched so far from a mark: it grows by 4 px, and a JPEG's unit has 16."""


# --- pictures and their marks ------------------------------------------------------------------------------


def photo(sample: str, *, left: int = 60, top: int = 40) -> Image.Image:
    """A part of a sample, as a person sees it."""
    with Image.open(ROOT / "sample_inbox" / sample) as image:
        turned = image.transpose(Image.Transpose.ROTATE_270) if image.getexif().get(274) == 6 else image
        return turned.convert("RGB").crop((left, top, left + WIDTH, top + HEIGHT))


def jpeg(image: Image.Image) -> bytes:
    return encoded(np.asarray(image), "JPEG", quality=92, subsampling=0)


def scribbled(image: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """The same with a thick, zigzag stroke over what goes."""
    copy = image.copy()
    left, top, right, bottom = GOES
    path = [(left + 6, top + 6), (right - 6, top + 12), (left + 6, bottom - 12), (right - 6, bottom - 6)]
    ImageDraw.Draw(copy).line(path, fill=colour, width=13, joint="curve")
    return copy


def mask_of(image: Image.Image) -> bytes:
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).rectangle((GOES[0], GOES[1], GOES[2] - 1, GOES[3] - 1), fill=255)
    return encoded(np.asarray(mask))


def copy_of(image: Image.Image) -> bytes:
    """As a phone saves it: smaller, and encoded anew."""
    small = scribbled(image, INK).resize((WIDTH * 3 // 4, HEIGHT * 3 // 4), Image.Resampling.LANCZOS)
    return encoded(np.asarray(small), "JPEG", quality=85)


def sidecar_of(image: Image.Image) -> bytes:  # noqa: ARG001 - the ways have one form
    left, top, right, bottom = GOES
    region = {"box": [WIDTH - right, top, right - left, bottom - top], "corner": "top-right"}
    return json.dumps({"schema": 1, "size": [WIDTH, HEIGHT], "regions": [region]}).encode()


@dataclass(frozen=True)
class Drop:
    """A picture that one way marks.

    Attributes:
        name: in the inbox.
        way: what the record is to call it.
        picture: its bytes.
        mark: name and bytes of what lies beside it, or None.
        picture_first: it is there before its mark.
        boxes: what goes.
    """

    name: str
    way: str
    picture: bytes
    mark: tuple[str, bytes] | None = None
    picture_first: bool = True
    boxes: tuple[Box, ...] = (GOES,)

    @property
    def files(self) -> list[tuple[str, bytes]]:
        """Both, in the order in which they come."""
        files = [(self.name, self.picture), *([self.mark] if self.mark else [])]
        return files if self.picture_first else files[::-1]


def beside(way: str, sample: str, mark_name: str, mark: Callable[[Image.Image], bytes]) -> list[Drop]:
    """One way twice, once with the picture first and once with the mark."""
    drops = []
    for number, stem in enumerate(("picture-first", "mark-first")):
        image, name = photo(sample, left=60 + 8 * number), f"{way}/{stem}.jpg"
        written = (f"{way}/{mark_name.format(stem=stem)}", mark(image))
        drops.append(Drop(name, way, jpeg(image), written, picture_first=number == 0))
    return drops


def erased(image: Image.Image) -> bytes:
    pixels = np.array(image.convert("RGBA"))
    left, top, right, bottom = GOES
    pixels[top:bottom, left:right] = 0
    return encoded(pixels)


def in_pairs() -> list[Drop]:
    """What needs a file beside the picture."""
    return [
        *beside("mask", "coffee.jpg", "{stem}.jpg.mask.png", mask_of),
        *beside("marked_copy", "raccoon.jpg", "{stem}.marked.jpg", copy_of),
        *beside("sidecar", "rocket.jpg", "{stem}.jpg.marks.json", sidecar_of),
    ]


def single() -> list[Drop]:
    """What says it itself, or whose recipe does."""
    stroked, stamped = scribbled(photo("astronaut.jpg"), MAGENTA), photo("coffee.jpg", left=200, top=120)
    return [
        Drop("strokes/astronaut.jpg", "colour", jpeg(stroked)),
        Drop("erased/gravel.png", "alpha", erased(photo("gravel.webp"))),
        Drop("stamped/coffee.jpg", "regions", jpeg(stamped), boxes=STAMPS),
    ]


UNMARKED = {"strokes/plain.jpg": "#FF00FF", "erased/plain.png": "transparent"}
"""Pictures without a mark, and what their note speaks of: their recipes have ways of their own."""
ALONE = "alone/nobody.marked.jpg"


# --- the service -------------------------------------------------------------------------------------------


def configure(service: Service) -> None:
    """Give it what `watcher init` writes, with its example for stamps, and what tests need."""
    made = service.run("init", str(service.root), "--force")
    assert made.returncode == 0, made.stderr
    text = service.config.read_text("utf-8")
    start = text.index("# Example: [[recipes]]")
    end = text.index("\n\n", start)
    stamped = text[start:end]
    changes = {
        stamped: "\n".join(
            line.removeprefix("# Example: ") for line in stamped.split("\n") if "region_mask" not in line
        ),
        '# Example: state_dir = "/var/lib/watcher"': f'state_dir = "{service.state}"',
        "#quiet_s = 1.0": "quiet_s = 0.2",
        '#name = "auto"': 'name = "patchmatch"',
    }
    for default, wanted in changes.items():
        assert text.count(default) == 1, default
        text = text.replace(default, wanted)
    service.config.write_text(text, "utf-8")


def seen(data: bytes) -> NDArray[np.int16]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB")).astype(np.int16)


def assert_cleaned(service: Service, drop: Drop) -> None:
    """The record names the way, what was marked is gone, and what is far from it is as it was."""
    record = service.wait_record(drop.name)
    assert (record["outcome"], record["marks"], record["output"]) == ("done", drop.way, drop.name)
    assert record["reason"] is None
    area_px = sum((right - left) * (bottom - top) for left, top, right, bottom in drop.boxes)
    assert 0.5 * area_px < record["image"]["hole_px"] < 2 * area_px + 2000
    after = (service.outbox / drop.name).read_bytes()
    with Image.open(io.BytesIO(after)) as image:
        assert "A" not in image.mode or image.getchannel("A").getextrema() == (255, 255)
    changed = np.abs(seen(drop.picture) - seen(after)).max(axis=2) > 0
    for left, top, right, bottom in drop.boxes:
        assert changed[top:bottom, left:right].mean() > 0.4, drop.name
        changed[max(0, top - FAR_PX) : bottom + FAR_PX, max(0, left - FAR_PX) : right + FAR_PX] = False
    assert not changed.any(), drop.name


def assert_held_notes_tell_the_ways(service: Service) -> None:
    for way in ("mask", "marked_copy", "sidecar"):
        note = service.wait_note("held", f"{way}/picture-first.jpg")
        assert note["marks_looked_for"] == ["mask", "marked_copy", "sidecar"]
        for name in (
            "picture-first.jpg.mask.png",
            "picture-first.marked.jpg",
            "picture-first.jpg.marks.json",
        ):
            assert f"{way}/{name}" in note["how_to_mark"]
    for name, words in UNMARKED.items():
        assert words in service.wait_note("held", name)["how_to_mark"]


@pytest.mark.kind("PA15")
def test_each_way_is_served_whichever_file_comes_first_and_through_a_kill(new_service: NewService) -> None:
    service = new_service()
    configure(service)
    service.start()
    pairs, others = in_pairs(), single()
    plain = photo("cat.jpg")

    service.place(ALONE, copy_of(plain))
    for name in UNMARKED:
        service.place(name, jpeg(plain) if name.endswith("jpg") else encoded(np.asarray(plain)))
    for drop in pairs:
        service.place(*drop.files[0])
    assert_held_notes_tell_the_ways(service)
    assert service.results() == []
    pictures_there = {drop.name for drop in pairs if drop.picture_first} | UNMARKED.keys()
    assert {job.source for job in service.jobs()} == pictures_there, "a mark alone is nothing to do"

    # What was missing comes while the service is dead, or after it is back.
    service.kill9()
    for drop in pairs:
        if drop.way != "sidecar":
            service.place(*drop.files[1])
    service.start(ready=False)
    for drop in pairs:
        if drop.way == "sidecar":
            service.place(*drop.files[1])
    for drop in others:
        service.place(*drop.files[0])

    for drop in [*pairs, *others]:
        service.expect(drop.name, drop.picture, drop.mark[1] if drop.mark else None)
        assert_cleaned(service, drop)
    assert relative_files(service.outbox / "held") == {f"{name}.json" for name in UNMARKED}
    assert {job.source for job in service.jobs()} == {
        drop.name for drop in [*pairs, *others]
    } | UNMARKED.keys()
    service.assert_sound()
