"""How often `watcher compare` tells two runs of one build apart, and whether it names a decode made slower.

Runs `watcher accept` again and again on this machine, the last times with a fault planted in the worker that
stretches `decode` to 1.2 times; compares each run with the one before it, and each stretched one with the
last that was not. The pictures are photographs of several megapixels, made from the samples, since decoding
a small one takes a few ms.

    python benchmarks/compare_builds.py --runs 21 --stretched 5 --workers 16
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from watcher.acceptance.comparison import compare  # noqa: E402 - found beside this file
from watcher.acceptance.report import read  # noqa: E402 - as above

if TYPE_CHECKING:
    from watcher.acceptance.comparison import Comparison

SAMPLES: Final = ("astronaut.jpg", "coffee.jpg", "raccoon.jpg", "rocket.jpg")
FAULTS: Final = "WATCHER_TEST_FAULTS"
HOLE_PX: Final = 60
REQUESTS: Final = 5
"""Of each worker, after its first."""


def make_pictures(folder: Path, megapixels: float) -> None:
    """Make JPEGs of that size with a small hole each, so that decoding is much of the work."""
    for number, name in enumerate(SAMPLES):
        with Image.open(ROOT / "sample_inbox" / name) as sample:
            scale = (megapixels * 1e6 / (sample.width * sample.height)) ** 0.5
            size = (round(sample.width * scale), round(sample.height * scale))
            picture = sample.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        grain = np.random.default_rng(number).normal(0, 4, (size[1], size[0], 1))
        pixels = np.clip(np.asarray(picture, np.float32) + grain, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name, quality=90)
        mask = np.zeros(pixels.shape[:2], np.uint8)
        mask[size[1] // 2 :, size[0] // 2 :][:HOLE_PX, :HOLE_PX] = 255
        Image.fromarray(mask).save(folder / f"{name}.mask.png")


def accept(pictures: Path, folder: Path, workers: int, faults: str) -> None:
    """One run of `watcher accept`."""
    options = ["--engine", "patchmatch", "--pictures", str(pictures)]
    options += ["--workers", str(workers), "--requests", str(REQUESTS * workers)]
    command = [
        sys.executable,
        "-m",
        "watcher",
        "accept",
        *options,
        "--batch",
        "4",
        "--kills",
        "1",
        "-o",
        str(folder),
    ]
    environment = {**os.environ, FAULTS: faults}
    subprocess.run(
        command, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def told(comparison: Comparison) -> str:
    """What was called a change."""
    changes = [
        f"{part.name}/{each.segment} {each.verdict} {each.change:+.0%}"
        for part in comparison.parts
        for each in part.differences
        if each.verdict in {"faster", "slower"}
    ]
    return ", ".join(changes) or "no change"


def main() -> None:
    """Parse the arguments, run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21, help="of one build")
    parser.add_argument("--stretched", type=int, default=5, help="of the slower one")
    parser.add_argument("--workers", type=int, default=16, help="on the hot path of each")
    parser.add_argument("--megapixels", type=float, default=6.0)
    parser.add_argument("--keep", type=Path, help="where the reports go and stay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.keep or Path(scratch)
        pictures = Path(scratch) / "pictures"
        pictures.mkdir()
        make_pictures(pictures, arguments.megapixels)
        plain = [root / f"plain{number}" for number in range(arguments.runs)]
        slow = [root / f"slow{number}" for number in range(arguments.stretched)]
        for folder in (*plain, *slow):
            accept(pictures, folder, arguments.workers, "stretch=decode:1.2" if folder in slow else "")
            print(f"ran {folder.name}", flush=True)
        quiet = 0
        for before, after in pairwise(plain):
            answer = told(compare(read(before), read(after)))
            quiet += answer == "no change"
            print(f"{before.name} {after.name}: {answer}")
        print(f"one build: no change in {quiet} of {len(plain) - 1}")
        named = 0
        for folder in slow:
            answer = told(compare(read(plain[-1]), read(folder)))
            named += "decode slower" in answer
            print(f"{plain[-1].name} {folder.name}: {answer}")
        print(f"decode 20 % slower: named in {named} of {len(slow)}")


if __name__ == "__main__":
    main()
