"""Makes docs/before-after.jpg with the product itself: `watcher once` on the sample pictures."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_inbox"
PANELS = (
    # picture, mask, the part that is shown (left, top, right, bottom)
    ("astronaut.jpg", "astronaut.jpg.mask.png", (60, 200, 460, 500)),
    ("rocket.jpg", "rocket.mask.png", (100, 60, 640, 427)),
    ("screenshot.png", "screenshot.png.mask.png", None),
)
HEIGHT_PX = 300
GAP_PX = 8
MARKED_FROM = 128


def clean(folder: Path) -> Path:
    """Run the product on the panels' pictures; return its outbox."""
    inbox, outbox = folder / "inbox", folder / "outbox"
    inbox.mkdir()
    outbox.mkdir()
    for picture, mask, _ in PANELS:
        shutil.copyfile(SAMPLES / picture, inbox / picture)
        shutil.copyfile(SAMPLES / mask, inbox / mask)
    config = folder / "watcher.toml"
    lines = [f"{name} = {json.dumps(str(folder / name))}" for name in ("inbox", "outbox")]
    config.write_text("\n".join([*lines, f"state_dir = {json.dumps(str(folder / 'state'))}"]), "utf-8")
    subprocess.run([sys.executable, "-m", "watcher", "once", "--config", str(config)], check=True)
    return outbox


def panel(path: Path, part: tuple[int, int, int, int] | None, mask: Path | None) -> Image.Image:
    """One picture at the common height; with a mask, its outline in red."""
    picture = Image.open(path).convert("RGB")
    if mask is not None:
        light = Image.open(mask).convert("L").point(lambda value: 255 * (value >= MARKED_FROM))
        box = light.getbbox()
        if box is not None:
            width = max(2, picture.height // 200)
            ImageDraw.Draw(picture).rectangle(box, outline=(255, 40, 40), width=width)
    if part is not None:
        picture = picture.crop(part)
    return picture.resize(
        (round(picture.width * HEIGHT_PX / picture.height), HEIGHT_PX), Image.Resampling.LANCZOS
    )


def compose(outbox: Path) -> Image.Image:
    """Before above after, panels side by side."""
    before = [panel(SAMPLES / name, part, SAMPLES / mask) for name, mask, part in PANELS]
    after = [panel(outbox / name, part, None) for name, _, part in PANELS]
    width = sum(picture.width for picture in before) + GAP_PX * (len(before) - 1)
    sheet = Image.new("RGB", (width, 2 * HEIGHT_PX + GAP_PX), "white")
    for top, row in ((0, before), (HEIGHT_PX + GAP_PX, after)):
        left = 0
        for picture in row:
            sheet.paste(picture, (left, top))
            left += picture.width + GAP_PX
    return sheet


def main() -> None:
    """Parse the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "before-after.jpg")
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        compose(clean(Path(folder))).save(out, quality=88)
    print(out)


if __name__ == "__main__":
    main()
