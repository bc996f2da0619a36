"""Measures fills where the truth is known: engines, kinds of holes, margins, and the statistic itself.

Real pictures (those of sample_inbox, and with `--cache` photographs that pip fetches in pinned source
distributions) get marks whose content is known. They go through the worker's front door, as BMP so that
nothing is lost on the way: the hole is grown, planned, cut, filled, blended and pasted as for a user.
OpenCV's own inpainting stands in the engine's place for comparison. See `known_holes.py` for the marks, and
`fill_metrics.py` for what is measured.

    python benchmarks/fill_quality.py --cache /var/tmp/real-pictures --page docs/QUALITY.md
    python benchmarks/fill_quality.py --sheet docs/quality.jpg
    python benchmarks/fill_quality.py --lama big-lama.pt
    python benchmarks/fill_quality.py --experiment margins
    python benchmarks/fill_quality.py --experiment statistic

LaMa is measured on its published weights only; there is nothing to learn from others of the same shape. The
page keeps its text: what stands between `<!-- measured: NAME -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
from PIL import Image, ImageDraw

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import fill_metrics, known_holes  # noqa: E402 - found beside this file
from benchmarks.known_holes import BLOBS, KINDS, Scene  # noqa: E402 - as above
from watcher.wire import (  # noqa: E402 - as above
    DeviceFacts,
    EngineChoice,
    EngineFacts,
    Item,
    ItemDone,
    Limits,
    Marking,
)
from watcher.worker.engines import patchmatch  # noqa: E402 - as above
from watcher.worker.engines.lama import LamaEngine  # noqa: E402 - as above
from watcher.worker.engines.patchmatch import PatchmatchEngine  # noqa: E402 - as above
from watcher.worker.engines.protocol import Crop, Engine, LoadSegments  # noqa: E402 - as above
from watcher.worker.faults import Faults  # noqa: E402 - as above
from watcher.worker.imaging import crops  # noqa: E402 - as above
from watcher.worker.imaging.masks import default_grow_px, grow  # noqa: E402 - as above
from watcher.worker.items import ItemServer  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from benchmarks.fill_metrics import Quality
    from watcher.wire import FromWorker

    Rgb = NDArray[np.uint8]
    Mask = NDArray[np.bool_]

OPENCV: Final = {"Telea": cv2.INPAINT_TELEA, "Navier-Stokes": cv2.INPAINT_NS}
OPENCV_RADIUS_PX: Final = 3
REPEATS: Final = 2


# --- engines -----------------------------------------------------------------------------------------------


class OpenCvEngine:
    """OpenCV's own inpainting on whole crops, in an engine's place."""

    model_loads = 1

    def __init__(self, name: str) -> None:
        self.name = name
        self._method = OPENCV[name]

    def load(self) -> LoadSegments:
        """Nothing to load."""
        return LoadSegments()

    def warm_up(self) -> None:
        """Nothing to warm up."""

    def give_way(self, reason: str) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing stands behind this one."""
        return False

    def work_px(self, crop: Crop) -> int:
        """Return the crop's pixels."""
        return crop.hole.size

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        """Fill each crop. Contract: `Engine.fill`."""
        results = []
        for index, crop in enumerate(crops):
            mask = crop.hole.astype(np.uint8)
            filled = cv2.inpaint(crop.pixels, mask, OPENCV_RADIUS_PX, self._method)
            results.append(np.asarray(filled, np.uint8))
            if progress is not None:
                progress(index)
        return results

    def facts(self) -> EngineFacts:
        """Return its name, twice."""
        return EngineFacts(configured=self.name, actual=self.name)

    def device(self) -> DeviceFacts:
        """Return the CPU."""
        return DeviceFacts(configured="cpu", available=("cpu",), actual="cpu")


def engine_of(name: str, weights: Path | None) -> Engine:
    """Build and load an engine by the name of its column."""
    built: Engine
    if name in OPENCV:
        built = OpenCvEngine(name)
    elif name == "lama":
        built = LamaEngine(EngineChoice(name="lama", weights_path=str(weights)))
    else:
        built = PatchmatchEngine(EngineChoice(name="patchmatch", device="cpu", threads=1))
    built.load()
    built.warm_up()
    return built


# --- the front door ----------------------------------------------------------------------------------------


class Counter:
    """Where one scene is handed in again and again, with one mask after the other."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene = scene
        self._folder = folder
        self._source = folder / "picture.bmp"
        Image.fromarray(scene.rgb).save(self._source)
        self._sha256 = hashlib.sha256(self._source.read_bytes()).hexdigest()

    def fill(self, engine: Engine, mark: Mask, grow_px: int | None = None) -> tuple[Rgb, float]:
        """Serve the scene with a mark that grows as it does for a user.

        Returns:
            The filled picture, and how long the engine took in seconds.
        """
        mask = self._folder / "mask.png"
        Image.fromarray(mark.astype(np.uint8) * np.uint8(255)).save(mask, compress_level=1)
        reports: list[FromWorker] = []
        item = Item(
            job="measured",
            source=str(self._source),
            sha256=self._sha256,
            mark_file=str(mask),
            mark_file_kind="mask",
            mark_file_sha256=hashlib.sha256(mask.read_bytes()).hexdigest(),
            staging=str(self._folder),
            stage_name="filled.bmp",
            recipe="default",
            marking=Marking(grow_px=grow_px),
        )
        ItemServer(engine, Limits(), reports.append, Faults()).serve("b1", item, time.monotonic_ns())
        done = reports[-1]
        if not isinstance(done, ItemDone):
            # a pool ends with this error, and not with SystemExit
            raise RuntimeError(f"{self.scene.name} was not filled: {done}")  # noqa: TRY004 - no type is wrong
        result = self._folder / "filled.bmp"
        with Image.open(result) as opened:
            filled = np.asarray(opened.convert("RGB"))
        result.unlink()
        return filled, done.segments.inference_ns / 1e9


@dataclass(frozen=True, slots=True)
class Row:
    """One fill.

    Attributes:
        scene: its name.
        kind: of hole.
        repeat: which of the places.
        engine: the name of its column.
        hole_px: pixels that were filled.
        engine_s: how long the engine took.
        quality: what was measured.
    """

    scene: str
    kind: str
    repeat: int
    engine: str
    hole_px: int
    engine_s: float
    quality: Quality

    @property
    def case(self) -> tuple[str, str, int]:
        """What it shares with the fills it is compared with."""
        return self.scene, self.kind, self.repeat


@dataclass(frozen=True, slots=True)
class Task:
    """What one process does with one scene.

    Attributes:
        scene: the picture.
        kinds: of holes.
        engines: names of columns.
        repeats: places for each kind.
        seed: of the places.
        weights: LaMa's, if it is among the engines.
        grow_px: by how much marks grow; None for the default.
        settings: module and name to value; what an experiment sets before it fills.
    """

    scene: Scene
    kinds: tuple[str, ...]
    engines: tuple[str, ...]
    repeats: int
    seed: int
    weights: Path | None = None
    grow_px: int | None = None
    settings: tuple[tuple[str, str, float], ...] = ()


_MODULES: Final = {"crops": crops, "patchmatch": patchmatch}


def rows_of(task: Task) -> list[Row]:
    """Fill all of a task's holes with each of its engines."""
    cv2.setNumThreads(1)
    before = [(module, name, getattr(_MODULES[module], name)) for module, name, _ in task.settings]
    try:
        for module, name, value in task.settings:
            setattr(_MODULES[module], name, value)
        with tempfile.TemporaryDirectory() as folder:
            return list(_rows(task, Counter(task.scene, Path(folder))))
    finally:
        for module, name, value in before:
            setattr(_MODULES[module], name, value)


def _rows(task: Task, counter: Counter) -> Iterator[Row]:
    engines = {name: engine_of(name, task.weights) for name in task.engines}
    growth_px = default_grow_px(task.scene.rgb.shape[1], task.scene.rgb.shape[0])
    for kind in task.kinds:
        for repeat in range(task.repeats):
            mark = known_holes.mark(task.scene, kind, repeat=repeat, seed=task.seed, grow_px=growth_px)
            hole = grow(mark, task.grow_px)
            for name, engine in engines.items():
                filled, engine_s = counter.fill(engine, mark, task.grow_px)
                if not np.array_equal(filled[~hole], task.scene.rgb[~hole]):
                    raise RuntimeError(f"{task.scene.name}: a pixel outside the hole changed")
                quality = fill_metrics.measure(filled, task.scene.rgb, hole)
                yield Row(task.scene.name, kind, repeat, name, int(np.count_nonzero(hole)), engine_s, quality)


def run(tasks: Sequence[Task], processes: int) -> list[Row]:
    """Do tasks side by side."""
    found: list[Row] = []
    with get_context("spawn").Pool(processes) as pool:
        for number, rows in enumerate(pool.imap(rows_of, tasks), 1):
            found += rows
            print(f"{number} of {len(tasks)}: {tasks[number - 1].scene.name}", file=sys.stderr)
    return found


# --- tables ------------------------------------------------------------------------------------------------


def fills_table(rows: Sequence[Row], engines: Sequence[str]) -> list[str]:
    """Return medians for each kind, one engine after the other in each cell, as Markdown."""
    lines = [f"| hole | fills | {' | '.join(_MEASURES)} |", f"|---|---|{'---|' * len(_MEASURES)}"]
    for label, kinds in _groups(rows):
        by_engine = [
            _medians([row for row in rows if row.kind in kinds and row.engine == engine])
            for engine in engines
        ]
        fills = sum(row.kind in kinds for row in rows) // len(engines)
        cells = (" / ".join(values) for values in zip(*by_engine, strict=True))
        lines.append(f"| {label} | {fills} | {' | '.join(cells)} |")
    return lines


def _groups(rows: Iterable[Row]) -> Iterator[tuple[str, tuple[str, ...]]]:
    present = {row.kind for row in rows}
    for kind in KINDS:
        if kind in present:
            yield kind, (kind,)
    if present & set(BLOBS):
        yield "**all blobs**", tuple(kind for kind in BLOBS if kind in present)
    yield "**all**", tuple(kind for kind in KINDS if kind in present)


_MEASURES: Final = ("texture", "PSNR, dB", "SSIM", "step", "time, s")


def _medians(rows: Sequence[Row]) -> tuple[str, ...]:
    qualities = [row.quality for row in rows]
    return (
        f"{statistics.median(quality.texture for quality in qualities):.2f}",
        f"{statistics.median(quality.psnr_db for quality in qualities):.1f}",
        f"{statistics.median(quality.ssim for quality in qualities):.2f}",
        f"{statistics.median(quality.step for quality in qualities):+.1f}",
        f"{statistics.median(row.engine_s for row in rows):.2f}",
    )


def wins_table(rows: Sequence[Row], one: str, others: Sequence[str]) -> list[str]:
    """Return in how many cases one engine was better than each other one, as Markdown."""
    lines = ["| hole | fills | texture | PSNR | SSIM |", "|---|---|---|---|---|"]
    for label, kinds in _groups(rows):
        of_kind = [row for row in rows if row.kind in kinds]
        better = [_wins(list(_pairs(of_kind, one, other))) for other in others]
        cells = (" / ".join(map(str, values)) for values in zip(*better, strict=True))
        fills = sum(row.engine == one for row in of_kind)
        lines.append(f"| {label} | {fills} | {' | '.join(cells)} |")
    return lines


def _wins(pairs: Sequence[tuple[Quality, Quality]]) -> tuple[int, int, int]:
    return (
        sum(mine.texture < theirs.texture for mine, theirs in pairs),
        sum(mine.psnr_db > theirs.psnr_db for mine, theirs in pairs),
        sum(mine.ssim > theirs.ssim for mine, theirs in pairs),
    )


def _pairs(rows: Iterable[Row], one: str, other: str) -> Iterator[tuple[Quality, Quality]]:
    cases: dict[tuple[str, str, int], dict[str, Quality]] = defaultdict(dict)
    for row in rows:
        cases[row.case][row.engine] = row.quality
    for case in cases.values():
        yield case[one], case[other]


# --- experiments -------------------------------------------------------------------------------------------

MARGINS: Final = ((24, 0.5), (32, 1.0), (64, 1.0), (64, 2.0), (128, 1.0), (192, 1.0))
"""Least margin in pixels, and as a share of the hole's thickness."""
LINE_WIDTHS_PX: Final = (1, 3, 5, 7, 9, 13, 17, 25)
"""Odd: OpenCV draws no others."""


def margins_experiment(scenes: Sequence[Scene], chosen: argparse.Namespace) -> list[str]:
    """Sweep how much the engine `patchmatch` sees around a hole."""
    lines = [
        f"| margin: at least | of the thickness | {' | '.join(_MEASURES)} |",
        f"|---|---|{'---|' * len(_MEASURES)}",
    ]
    for least_px, share in MARGINS:
        settings = tuple(
            (module, name, value)
            for module, names in (
                ("crops", ("MIN_MARGIN", "MARGIN_SHARE")),
                ("patchmatch", ("MIN_MARGIN_PX", "MARGIN_SHARE")),
            )
            for name, value in zip(names, (least_px, share), strict=True)
        )
        tasks = [
            Task(scene, (*BLOBS, "text"), ("patchmatch",), chosen.repeats, chosen.seed, settings=settings)
            for scene in scenes
        ]
        lines.append(f"| {least_px} px | {share} | {' | '.join(_medians(run(tasks, chosen.processes)))} |")
    return lines


def thin_experiment(scenes: Sequence[Scene], chosen: argparse.Namespace) -> list[str]:
    """Hold copied patches against Navier-Stokes on lines from 1 to 25 px wide, which do not grow."""
    kinds = tuple(known_holes.line_of(width_px) for width_px in LINE_WIDTHS_PX)
    engines = ("patchmatch", "Navier-Stokes")
    everything_copied = (("patchmatch", "THIN_PX", 0),)
    tasks = [
        Task(scene, kinds, engines, chosen.repeats, chosen.seed, grow_px=0, settings=everything_copied)
        for scene in scenes
    ]
    rows = run(tasks, chosen.processes)
    lines = [
        "| hole | texture: patches | Navier-Stokes | better | PSNR: patches | Navier-Stokes | better |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        of_kind = [row for row in rows if row.kind == kind]
        pairs = list(_pairs(of_kind, *engines))
        copied, smooth = ([pair[side] for pair in pairs] for side in (0, 1))
        cells = (
            f"{statistics.median(quality.texture for quality in copied):.2f}",
            f"{statistics.median(quality.texture for quality in smooth):.2f}",
            f"{sum(one.texture < other.texture for one, other in pairs)} of {len(pairs)}",
            f"{statistics.median(quality.psnr_db for quality in copied):.1f} dB",
            f"{statistics.median(quality.psnr_db for quality in smooth):.1f} dB",
            f"{sum(one.psnr_db > other.psnr_db for one, other in pairs)} of {len(pairs)}",
        )
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


TEXTURES: Final = ("brick", "grass", "gravel")
"""Samples that are the same all over, so that another patch of them is as good as the true one."""


def statistic_experiment(scenes: Sequence[Scene], chosen: argparse.Namespace) -> list[str]:
    """Show what the texture statistic says of fills whose worth is known without it."""
    textures = [scene for scene in scenes if scene.name in TEXTURES]
    if not textures:
        raise SystemExit(f"this needs the samples {', '.join(TEXTURES)}")
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for scene in textures:
        for repeat in range(chosen.repeats):
            hole = known_holes.mark(scene, "large blob", repeat=repeat, seed=chosen.seed)
            for name, source in stand_ins(scene.rgb, hole).items():
                filled = scene.rgb.copy()
                filled[hole] = source[hole]
                found[name][scene.name].append(fill_metrics.measure(filled, scene.rgb, hole).texture)
    lines = [f"| fill | {' | '.join(TEXTURES)} |", "|---|---|---|---|"]
    for name, by_scene in found.items():
        cells = (f"{statistics.median(by_scene[scene]):.2f}" for scene in TEXTURES)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def stand_ins(truth: Rgb, hole: Mask) -> dict[str, Rgb]:
    """Return pictures (height, width, 3) whose pixels in the hole are fills of known worth."""
    random = np.random.default_rng(1)
    shuffled = truth.copy()
    shuffled[hole] = random.permutation(truth[hole])
    mean, spread = truth[hole].mean(axis=0), truth[hole].std()
    noise = mean + random.normal(0, spread, truth.shape[:2])[:, :, np.newaxis]
    moved = {
        f"another patch, {rows} px down and {columns} px right": np.roll(truth, (-rows, -columns), (0, 1))
        for rows, columns in ((0, 150), (150, 0), (150, 150))
    }
    blurred = {
        f"the truth blurred, sigma {sigma}": np.asarray(cv2.GaussianBlur(truth, (0, 0), sigma), np.uint8)
        for sigma in (1, 2, 4)
    }
    return {
        **moved,
        **blurred,
        "its pixels in disorder": shuffled,
        "noise of its mean and spread": np.clip(noise, 0, 255).astype(np.uint8),
        "its mean colour": np.broadcast_to(mean.round().astype(np.uint8), truth.shape),
    }


# --- the contact sheet -------------------------------------------------------------------------------------

SHEET: Final = (
    ("gravel", "large blob"),
    ("grass", "two near"),
    ("brick", "large blob"),
    ("cat", "small blob"),
    ("coffee", "border"),
    ("rocket", "hairline"),
    ("camera", "large blob"),
    ("astronaut", "text"),
    ("hubble_deep_field", "corner"),
    ("screenshot", "large blob"),
)
"""One kind for each sample; good ones and bad ones as the seed gives them."""
TILE_PX: Final = 210
HEADER_PX: Final = 18
AROUND_SHARE: Final = 0.6
LONGEST_PX: Final = 330


def sheet(scenes: Sequence[Scene], engines: Sequence[str], chosen: argparse.Namespace) -> Image.Image:
    """Draw a row for each sample: truth, hole, and what each engine made of it."""
    by_name = {scene.name: scene for scene in scenes if scene.shown}
    columns = ("truth", "hole", *engines)
    drawn = Image.new("RGB", (TILE_PX * len(columns), HEADER_PX + TILE_PX * len(SHEET)), "white")
    pen = ImageDraw.Draw(drawn)
    for column, name in enumerate(columns):
        pen.text((column * TILE_PX + 4, 3), name, fill="black")
    loaded = [engine_of(name, chosen.lama) for name in engines]
    for number, (name, kind) in enumerate(SHEET):
        scene = by_name[name]
        with tempfile.TemporaryDirectory() as folder:
            tiles = list(_tiles(Counter(scene, Path(folder)), kind, loaded, chosen.seed))
        for column, tile in enumerate(tiles):
            drawn.paste(tile, (column * TILE_PX, HEADER_PX + number * TILE_PX))
        pen.text(
            (4, HEADER_PX + number * TILE_PX + 3),
            f"{name}: {kind}",
            "yellow",
            stroke_width=1,
            stroke_fill="black",
        )
    return drawn


def _tiles(counter: Counter, kind: str, engines: Iterable[Engine], seed: int) -> Iterator[Image.Image]:
    truth = counter.scene.rgb
    grow_px = default_grow_px(truth.shape[1], truth.shape[0])
    mark = known_holes.mark(counter.scene, kind, seed=seed, grow_px=grow_px)
    hole = grow(mark, None)
    holed = truth.copy()
    holed[hole] = (255, 0, 255)
    part = _window(hole)
    for rgb in (truth, holed, *(counter.fill(engine, mark)[0] for engine in engines)):
        tile = Image.fromarray(rgb[part])
        yield tile.resize((TILE_PX, TILE_PX), Image.Resampling.LANCZOS)


def _window(hole: Mask) -> tuple[slice, slice]:
    """Return a square of the picture around the hole, or around the middle of a long one."""
    spans = []
    for axis in (1, 0):
        found = np.flatnonzero(hole.any(axis=axis))
        spans.append((int(found[0]), int(found[-1]) + 1))
    side = max(stop - start for start, stop in spans)
    side = min(round(side * (1 + AROUND_SHARE)), LONGEST_PX, *hole.shape)
    slices = []
    for (start, stop), limit in zip(spans, hole.shape, strict=True):
        first = min(max(0, (start + stop - side) // 2), limit - side)
        slices.append(slice(first, first + side))
    return slices[0], slices[1]


# --- the command -------------------------------------------------------------------------------------------


def write_page(page: Path, parts: Mapping[str, Sequence[str]]) -> None:
    """Replace what stands between the marks of each part."""
    text = page.read_text("utf-8")
    for name, lines in parts.items():
        before, begin, rest = text.partition(f"<!-- measured: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise SystemExit(f"{page} has no place for what was measured of {name}")
        text = "".join([before, begin, *(f"{line}\n" for line in lines), end, after])
    page.write_text(text, "utf-8")


def _scenes(chosen: argparse.Namespace) -> list[Scene]:
    scenes = list(known_holes.sample_scenes())
    if chosen.cache is not None:
        scenes += known_holes.distributed_scenes(chosen.cache)
    for folder in chosen.folder:
        scenes += known_holes.folder_scenes(folder)
    return [
        scene
        for scene in scenes
        if chosen.only in scene.name and scene.rgb.shape[0] * scene.rgb.shape[1] <= chosen.max_px
    ]


EXPERIMENTS: Final[dict[str, Callable[[Sequence[Scene], argparse.Namespace], list[str]]]] = {
    "margins": margins_experiment,
    "thin": thin_experiment,
    "statistic": statistic_experiment,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cache", type=Path, help="where pinned source distributions with photographs are put"
    )
    parser.add_argument("--folder", type=Path, action="append", default=[], help="more pictures")
    parser.add_argument("--only", default="", help="only pictures with this in their names")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of holes, with commas")
    parser.add_argument("--max-px", type=int, default=20_000_000, help="leave out larger pictures")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="places for each kind of hole")
    parser.add_argument("--seed", type=int, default=0, help="of the places")
    parser.add_argument("--lama", type=Path, help="LaMa's published weights")
    parser.add_argument(
        "--experiment", choices=EXPERIMENTS, action="append", default=[], help="instead of fills"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", type=Path, help="a page whose tables are renewed; else they are printed")
    parser.add_argument("--sheet", type=Path, help="where a contact sheet of the samples goes")
    parser.add_argument("--json", type=Path, help="all rows, for a program to read")
    return parser.parse_args()


def _fills(
    scenes: Sequence[Scene], engines: Sequence[str], chosen: argparse.Namespace
) -> dict[str, list[str]]:
    kinds = tuple(kind for kind in KINDS if kind in chosen.kinds.split(","))
    tasks = [
        Task(scene, kinds, tuple(engines), chosen.repeats, chosen.seed, weights=chosen.lama)
        for scene in scenes
    ]
    rows = run(tasks, chosen.processes)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), "utf-8")
    return {"fills": fills_table(rows, engines), "wins": wins_table(rows, "patchmatch", tuple(OPENCV))}


def main() -> None:
    """Measure what was asked for, and write it down."""
    chosen = _arguments()
    scenes = _scenes(chosen)
    if not scenes:
        raise SystemExit("no pictures: see that --only and --max-px fit")
    print(f"{len(scenes)} pictures", file=sys.stderr)
    engines = (*OPENCV, "patchmatch", *(("lama",) if chosen.lama else ()))
    parts = {name: EXPERIMENTS[name](scenes, chosen) for name in chosen.experiment}
    if not parts and not (chosen.sheet and not chosen.page):
        parts = _fills(scenes, engines, chosen)
    if chosen.page is not None:
        write_page(chosen.page, parts)
    else:
        for lines in parts.values():
            print("\n".join(lines), end="\n\n")
    if chosen.sheet is not None:
        sheet(scenes, engines, chosen).save(chosen.sheet, quality=82, optimize=True)


if __name__ == "__main__":
    main()
