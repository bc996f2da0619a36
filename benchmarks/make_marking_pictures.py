"""Makes docs/marking/*.jpg with the product itself: each way to mark, what a person did, and what came of it.

Rules of this file: the results are those of `watcher once` on the sample pictures with the recipes of
`watcher demo`; where a mark cannot be seen on the picture itself, `watcher preview` draws it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from watcher.cli.demonstration import RECIPES

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_inbox"
HEIGHT_PX = 260
GAP_PX = 8
SQUARE_PX = 16
QUALITY = 86
SIZE_LIMIT_BYTES = 900_000

Box = tuple[int, int, int, int]
Shown = Literal["picture", "file", "preview", "result"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to mark: its sample, the file beside it, and what is shown of them, from left to right."""

    name: str
    picture: str
    file: str | None
    panels: tuple[Shown, ...]
    part: Box | None = None
    """Left, top, right and bottom of what is shown of the picture."""


WAYS = (
    Way(
        "mask", "astronaut.jpg", "astronaut.jpg.mask.png", ("picture", "file", "result"), (60, 200, 460, 500)
    ),
    Way(
        "marked_copy",
        "raccoon.jpg",
        "raccoon.marked.jpg",
        ("picture", "file", "result"),
        (240, 250, 900, 768),
    ),
    Way("sidecar", "launch_pad.jpg", "launch_pad.jpg.marks.json", ("picture", "preview", "result")),
    Way("strokes", "strokes/grace_hopper.jpg", None, ("picture", "result"), (0, 220, 512, 600)),
    Way("erased", "erased/camera.png", None, ("picture", "result"), (112, 0, 512, 300)),
    Way("regions", "stamped/espresso.jpg", None, ("picture", "preview", "result"), (220, 200, 600, 400)),
)


class Product:
    """The product at work in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.inbox, self.outbox, self._previews = (folder / name for name in ("inbox", "outbox", "previews"))
        for made in (self.inbox, self.outbox, self._previews):
            made.mkdir()
        self._config = folder / "watcher.toml"
        paths = {"inbox": self.inbox, "outbox": self.outbox, "state_dir": folder / "state"}
        lines = [f"{name} = {json.dumps(str(path))}" for name, path in paths.items()]
        self._config.write_text("\n".join([*lines, RECIPES]), encoding="utf-8")

    def clean(self) -> None:
        """Work off the samples of all ways."""
        for way in WAYS:
            for name in filter(None, (way.picture, way.file)):
                target = self.inbox / name
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(SAMPLES / name, target)
        self._run("once")

    def preview(self, way: Way) -> Path:
        """What would go from a way's sample, laid over it."""
        drawn = self._previews / f"{way.name}.png"
        self._run("preview", str(self.inbox / way.picture), "-o", str(drawn))
        return drawn

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "watcher", *arguments, "--config", str(self._config)]
        subprocess.run(command, check=True)


def panel(product: Product, way: Way, shown: Shown) -> Image.Image:
    """One picture of a row, at the common height."""
    path = {
        "picture": SAMPLES / way.picture,
        "file": SAMPLES / (way.file or ""),
        "result": product.outbox / way.picture,
    }.get(shown) or product.preview(way)
    with Image.open(path) as file, Image.open(SAMPLES / way.picture) as picture:
        seen = over_squares(file).resize(picture.size, Image.Resampling.BICUBIC)
    if way.part is not None:
        seen = seen.crop(way.part)
    return seen.resize((round(seen.width * HEIGHT_PX / seen.height), HEIGHT_PX), Image.Resampling.LANCZOS)


def over_squares(picture: Image.Image) -> Image.Image:
    """A picture in colours, with a chequerboard where it is transparent."""
    seen = picture.convert("RGBA")
    squares = Image.new("RGBA", seen.size, (255, 255, 255, 255))
    for y in range(0, seen.height, SQUARE_PX):
        for x in range((y % (2 * SQUARE_PX)), seen.width, 2 * SQUARE_PX):
            squares.paste((204, 204, 204, 255), (x, y, x + SQUARE_PX, y + SQUARE_PX))
    return Image.alpha_composite(squares, seen).convert("RGB")


def row(panels: list[Image.Image]) -> Image.Image:
    """Pictures side by side."""
    width = sum(picture.width for picture in panels) + GAP_PX * (len(panels) - 1)
    sheet = Image.new("RGB", (width, HEIGHT_PX), "white")
    left = 0
    for picture in panels:
        sheet.paste(picture, (left, 0))
        left += picture.width + GAP_PX
    return sheet


def main() -> None:
    """Parse the arguments and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "marking", help="where to write")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        product = Product(Path(folder))
        product.clean()
        for way in WAYS:
            path = out / f"{way.name}.jpg"
            row([panel(product, way, shown) for shown in way.panels]).save(path, quality=QUALITY)
            print(f"{path.stat().st_size:>9,}  {path.name}")
    total_bytes = sum(path.stat().st_size for path in out.glob("*.jpg"))
    if total_bytes >= SIZE_LIMIT_BYTES:
        raise SystemExit(f"too large: {total_bytes:,} bytes of at most {SIZE_LIMIT_BYTES:,}")


if __name__ == "__main__":
    main()
