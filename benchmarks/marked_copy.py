"""Counts false alarms and misses of marked copies on real pictures.

Each picture is saved again in every way of `tests/worker/test_marked_copy.py` without a mark (what is
found then is a false alarm), and drawn on in every kind there (what is not found is a miss; what is found
elsewhere is false). Pictures of the same pixels count once; larger ones are brought to `--side` first.

    python benchmarks/marked_copy.py --folder sample_inbox --folder ~/Pictures --most 400
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.worker.test_marked_copy import SAVINGS, drawn
from watcher.core.names import is_picture
from watcher.worker.imaging.marked_copy import find_difference
from watcher.worker.imaging.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Rgb = NDArray[np.uint8]

LEAST_SIDE_PX: Final = 200
LEAST_COLOURS: Final = 3000
"""Fewer make a drawing or a screenshot: told apart, since photos are what is copied by phones."""
KINDS: Final = ("thin line", "brush", "filled shape", "highlighter")
DRAWN_SAVINGS: Final = ("the same", "JPEG 75", "a phone")
NEAR_PX: Final = 25


def pictures(folders: list[Path], side_px: int) -> Iterator[tuple[Path, Rgb]]:
    """Yield each different picture of the folders that can be opened, RGB, in the order of their names."""
    seen: set[bytes] = set()
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        rgb = _opened(path, side_px) if path.is_file() and is_picture(path.name) else None
        if rgb is None:
            continue
        digest = hashlib.sha256(rgb.tobytes()).digest()
        if digest not in seen:
            seen.add(digest)
            yield path, rgb


def _opened(path: Path, side_px: int) -> Rgb | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(path)
            if min(image.size) < LEAST_SIDE_PX or getattr(image, "n_frames", 1) > 1:
                return None
            image.thumbnail((side_px, side_px))
            return np.asarray(image.convert("RGB"))
    except Exception:  # noqa: BLE001 - test files of decoders are broken in every way; they are no photos
        return None


def is_photo(rgb: Rgb) -> bool:
    """Tell a photo from a drawing by its number of colours."""
    small = rgb[::2, ::2].reshape(-1, 3).astype(np.uint32)
    return len(np.unique(small[:, 0] << 16 | small[:, 1] << 8 | small[:, 2])) >= LEAST_COLOURS


def resaved(rgb: Rgb, how: str) -> str:
    """Return what is found in a copy that was only saved again: nothing, a mark, or refused."""
    try:
        return "nothing" if find_difference(rgb, SAVINGS[how](rgb)) is None else "a mark"
    except RefusedError:
        return "refused"


def marked(rgb: Rgb, kind: str, how: str) -> str:
    """Return how a drawn copy was understood: whole, in part, missed, beside, or refused."""
    copy, where = drawn(rgb, kind)
    visible = where & (np.abs(copy.astype(int) - rgb).max(axis=2) > 24)  # noqa: PLR2004 - yellow on yellow is no difference
    if not visible.any():
        return "no difference"
    try:
        found = find_difference(rgb, SAVINGS[how](copy))
    except RefusedError:
        return "refused"
    if found is None:
        return "missed"
    near = cv2.dilate(where.astype(np.uint8), np.ones((2 * NEAR_PX + 1, 2 * NEAR_PX + 1), np.uint8)) > 0
    if (found & ~near).any():
        return "beside"
    return "whole" if (found & visible).sum() / visible.sum() >= 0.99 else "in part"  # noqa: PLR2004 - the target


def main() -> None:
    """Print the two tables, and the files with false alarms."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, action="append", required=True, help="may be given several times"
    )
    parser.add_argument("--most", type=int, default=400, help="pictures, drawn evenly from all")
    parser.add_argument("--drawn", type=int, default=60, help="photos that are drawn on")
    parser.add_argument("--side", type=int, default=1280, help="longest side, px")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    found = list(pictures(options.folder, options.side))
    chosen = [found[at] for at in np.linspace(0, len(found) - 1, min(options.most, len(found))).astype(int)]
    photos = [(path, rgb) for path, rgb in chosen if is_photo(rgb)]
    print(
        f"{len(found)} different pictures, {len(chosen)} looked at: {len(photos)} photos, the rest drawings"
    )
    _print_resaved(chosen)
    _print_drawn(photos[: options.drawn])


def _print_resaved(chosen: list[tuple[Path, Rgb]]) -> None:
    alarms: list[str] = []
    heads = f"{'photos':>8}{'marks':>7}{'refused':>9}{'drawings':>10}{'marks':>7}{'refused':>9}"
    print(f"\n{'saved again':<20}{heads}")
    for how in SAVINGS:
        counts: Counter[tuple[bool, str]] = Counter()
        for path, rgb in chosen:
            answer, photo = resaved(rgb, how), is_photo(rgb)
            counts[photo, answer] += 1
            if answer == "a mark":
                alarms.append(f"{how}: {path.name} ({'photo' if photo else 'drawing'})")
        cells = [
            (sum(n for (kind, _), n in counts.items() if kind == photo), photo) for photo in (True, False)
        ]
        (photos, _), (drawings, _) = cells
        print(
            f"{how:<20}{photos:>8}{counts[True, 'a mark']:>7}{counts[True, 'refused']:>9}"
            f"{drawings:>10}{counts[False, 'a mark']:>7}{counts[False, 'refused']:>9}"
        )
    print("\nfalse alarms:", *(alarms or ["none"]), sep="\n  ")


def _print_drawn(photos: list[tuple[Path, Rgb]]) -> None:
    answers = ("whole", "in part", "missed", "beside", "refused", "no difference")
    print(f"\n{'drawn':<16}{'saved':<12}" + "".join(f"{answer:>15}" for answer in answers))
    for kind in KINDS:
        for how in DRAWN_SAVINGS:
            counts = Counter(marked(rgb, kind, how) for _, rgb in photos)
            print(f"{kind:<16}{how:<12}" + "".join(f"{counts[answer]:>15}" for answer in answers))


if __name__ == "__main__":
    main()
