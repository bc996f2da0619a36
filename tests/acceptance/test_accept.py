"""`watcher accept`, whole: real services on real pictures, killed and stopped."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.service.harness import wait_until
from watcher.acceptance import report as reports
from watcher.acceptance.course import Course, configuration_text, hot_requests
from watcher.acceptance.scenes import sample_of
from watcher.acceptance.stage import Stage, marked_pictures
from watcher.core.policy import Recipe
from watcher.core.timeline import SEGMENTS, START_SEGMENTS
from watcher.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watcher.acceptance.report import Acceptance, Record

PATIENCE_S = 120
SIDE = 64


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few small pictures of a person's own, one of them without a mark."""
    folder = tmp_path_factory.mktemp("own")
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[20:30, 20:30] = 255
        if number:
            Image.fromarray(mask).save(folder / f"{number}.png.mask.png")
    return folder


def accept(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "watcher", "accept", "--engine", "patchmatch", *arguments]


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def accepted(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Acceptance:
    folder = tmp_path_factory.mktemp("run")
    options = (
        "--pictures",
        str(pictures),
        "--workers",
        "2",
        "--requests",
        "5",
        "--batch",
        "2",
        "--kills",
        "1",
        "-o",
        str(folder / "report"),
    )
    done = accept(*options)
    assert done.returncode == 0, done.stderr
    assert "model_loaded_once" in done.stdout
    assert {file.name for file in (folder / "report").iterdir()} == {
        "acceptance.json",
        "acceptance.md",
        "acceptance.html",
    }
    return reports.read(folder / "report")


def test_each_scene_measured_what_it_is_for(accepted: Acceptance) -> None:
    batch, hot, cold, recovery, cache = accepted.scenes
    assert [scene.name for scene in accepted.scenes] == ["batch", "hot", "cold", "recovery", "model_cache"]
    assert {sample.picture for sample in batch.samples} == {"1.png", "2.png"}
    assert batch.facts["model_loads"] == 1
    assert [sample.record["first_hot"] for sample in hot.samples] == [True, *2 * [False], True, *3 * [False]]
    assert len({sample.record["worker"]["pid"] for sample in hot.samples}) == len(hot.starts) == 2
    assert {sample.record["path"] for sample in (*batch.samples, *hot.samples, *recovery.samples)} == {"hot"}
    assert [sample.record["path_reason"] for sample in cold.samples] == ["crashed", "once"]
    ready_s = datetime.fromisoformat(recovery.starts[0].ts).timestamp()
    killed_s = datetime.fromisoformat(cold.samples[0].record["ts"]).timestamp()
    killed_s -= cold.samples[0].record["total_ms"] / 1e3
    assert recovery.facts["recovery_1_s"] == pytest.approx(ready_s - killed_s, abs=0.3)
    assert cache.skipped == "the engine has no weights"
    assert len({sample.record["job"] for scene in accepted.scenes for sample in scene.samples}) == 12
    assert accepted.environment.devices_available[-1] == "cpu"
    assert accepted.environment.packages["numpy"]


def test_columns_and_starts_are_what_ran(accepted: Acceptance) -> None:
    hot = accepted.scene("hot")
    assert hot is not None
    assert (hot.engine.configured, hot.engine.actual) == ("patchmatch", "patchmatch")
    assert (hot.device.configured, hot.device.actual) == ("auto", "cpu")
    assert [start.model_loads for start in hot.starts] == [1, 1]
    assert all(set(start.segments_ms) == {*START_SEGMENTS, "unattributed"} for start in hot.starts)
    assert [start.pid for start in hot.starts] == [
        hot.samples[index].record["worker"]["pid"] for index in (0, 3)
    ]
    assert set(hot.samples[0].record["segments_ms"]) == {*SEGMENTS, "unattributed"}
    assert all(sample.reference_ms for sample in hot.samples)
    told = {claim.name: claim.holds for claim in accepted.claims}
    assert told["model_loaded_once"]
    assert told["cold_path_answers"]
    assert told["recovers"]
    assert told["time_is_attributed"]
    assert told["engine_as_configured"]
    assert told["device_as_configured"]


def test_a_report_names_no_path_of_the_machine(accepted: Acceptance, pictures: Path) -> None:
    text = reports.encode(accepted).decode()
    for private in (str(pictures), f"{Path.home()}/", tempfile.gettempdir(), f'"{platform.node()}"'):
        assert private not in text, private


def test_a_sample_names_neither_the_machine_nor_where_the_program_lies() -> None:
    reason = f"no LaMa: torch is not installed. Install it: {sys.executable} -m pip install torch"
    record: Record = {
        "worker": {"pid": 1, "host": "my-machine"},
        "engine": {"reason": reason},
        "losses": [reason],
    }
    sample = sample_of("a.jpg", record, None)
    assert sample.record["worker"] == {"pid": 1}
    assert sys.prefix not in str(sample.record)
    assert sample.record["engine"]["reason"].endswith("-m pip install torch")
    assert sample_of("a.jpg", {"worker": None}, None).record["worker"] is None
    assert record["worker"]["host"] == "my-machine", "the record itself is not changed"


def test_a_folder_without_a_marked_picture_is_refused(tmp_path: Path) -> None:
    done = accept("--pictures", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "no marked picture" in done.stderr


def test_a_service_that_cannot_start_ends_it_with_its_log(pictures: Path, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pt")
    arguments = ("--pictures", str(pictures), "--engine", "lama", "--keep", str(tmp_path / "kept"))
    done = accept(*arguments, WATCHER_MODEL__SOURCE=absent, WATCHER_COLD__ENABLED="false")
    assert done.returncode == 70
    assert "absent.pt, named by `source`" in done.stderr
    assert "service.log" in done.stderr
    assert "absent.pt" in (tmp_path / "kept" / "service.log").read_text()


@pytest.fixture
def heeded() -> Iterator[None]:
    """A program that a shell starts in the background ignores Ctrl-C, and what it starts does too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_it_alone_leaves_no_process(pictures: Path, tmp_path: Path, number: int) -> None:
    options = ("--pictures", str(pictures), "--requests", "5000", "--keep", str(tmp_path / "kept"))
    process = subprocess.Popen(command(*options), stderr=subprocess.PIPE, start_new_session=True)
    try:
        stage = Stage(tmp_path / "kept")
        wait_until(lambda: len(stage.records()) > 3, "requests", patience_s=PATIENCE_S)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2, "the service and its worker"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
        wait_until(lambda: not any(map(runs, children)), "the end of all")
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


# --- what is set up ----------------------------------------------------------------------------------------


def test_the_stages_configuration_is_the_users_but_for_its_places(tmp_path: Path) -> None:
    given = tmp_path / "given.toml"
    given.write_text(
        'inbox = "/pictures/in"\noutbox = "/pictures/out"\nafter = "delete"\n[engine]\nname = "patchmatch"\n'
        'threads = 1\n[batching]\nmax_batch = 3\n[worker]\nrecycle_items = 7\n[log]\nfile = "/var/log/w"\n'
        '[[recipes]]\nname = "dates"\nmatch = ["scans/**", "*.tif"]\nmarks = ["mask", "regions"]\n'
        'regions = [{ box = ["70%", 0, 10, 20.5], name = "it\'s \\"5\\" o\'clock" }]\ngrow = 0\n'
    )
    chosen = load(given)
    stage = Stage(tmp_path / "stage")
    places = {"inbox": stage.inbox, "outbox": stage.outbox, "state_dir": stage.state_dir}
    written = tmp_path / "stage.toml"
    text = configuration_text(chosen.model_copy(update=places), ("batch", "hot0"), chosen.recipes)
    written.write_text(text, encoding="utf-8")
    made = load(written)
    assert (made.inbox, made.outbox, made.state_dir) == tuple(places.values())
    assert (made.after, made.log.file, made.log.format) == ("keep", None, "json")
    for section in ("arrivals", "batching", "engine", "model", "worker", "cold", "output"):
        assert getattr(made, section) == getattr(chosen, section), section
    recipes = {recipe.name: recipe for recipe in made.recipes}
    assert recipes["hot0 dates"].match == ("hot0/scans/**", "hot0/*.tif")
    assert {**recipes["batch dates"].model_dump(), "name": "", "match": ""} == {
        **chosen.recipes[0].model_dump(),
        "name": "",
        "match": "",
    }


def test_no_request_is_made_twice_of_one_picture() -> None:
    course = Course(batch=("a",), hot=("a", "b", "c"), workers=3, requests=20, kills=2, downs=2)
    workers = list(hot_requests(course))
    asked = [request for requests in workers for request in requests]
    assert len(set(asked)) == len(asked) == 23
    assert {request.round_name for request in asked} <= set(course.rounds())
    assert [len(requests) for requests in workers] == [7, 8, 8]
    assert [requests[0] for requests in workers] == [(f"first{worker}", "a") for worker in range(3)]
    steady = [request.picture for requests in workers for request in requests[1:]]
    assert steady == [*6 * ["a", "b", "c"], "a", "b"]


def test_links_and_other_files_of_a_folder_are_no_pictures(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.jpg.mask.png", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "a.jpg")
    assert marked_pictures(tmp_path, (Recipe(),)) == {"a.jpg": ("a.jpg.mask.png",)}


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    from watcher.acceptance.stage import whole_lines  # noqa: PLC0415 - for this test alone

    log = tmp_path / "log"
    log.write_text(json.dumps({"event": "a"}) + "\nTraceback (most recent call last):\n" + '{"event": "b"')
    assert whole_lines(log) == [{"event": "a"}]
    assert whole_lines(tmp_path / "absent") == []
