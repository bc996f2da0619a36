"""The commands as people and scripts meet them: what is printed, exit codes, errors in three lines."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from watcher import __version__, settings
from watcher.adapters.journal import SqliteJournal
from watcher.adapters.lock import StateLock
from watcher.adapters.requests import read_requests
from watcher.adapters.state_owner import claim
from watcher.cli import entry, main
from watcher.core.commands import FinishJob, SaveFile, SaveJob
from watcher.core.events import SavedFile
from watcher.core.job import Fingerprint, Identity, Job, JobState
from watcher.core.record import utc_text
from watcher.telemetry import log
from watcher.telemetry.status import Columns, Status, StatusFile, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from watcher.core.job import JsonObject


class Ran(NamedTuple):
    """One command's end."""

    code: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs commands in this process, as `main` would be run."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ran:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = self._capsys.readouterr()
        code = end.value.code
        assert isinstance(code, int | None)
        return Ran(code or 0, out, err)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user who has configured nothing; the log that a command set up goes with the test."""
    for name in [*os.environ]:
        if name.startswith(("WATCHER_", "XDG_")) or name == "LAMA_MODEL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    yield tmp_path / "home"
    log._replace_handlers([], logging.WARNING)
    logging.captureWarnings(capture=False)


def a_job(number: int, state: JobState, source: str, **more: Any) -> Job:
    final: JsonObject = {
        "ts": "2026-11-30T10:00:00.000Z",
        "path": "hot",
        "path_reason": "ready",
        "total_ms": 12.5,
        "engine": {"actual": "patchmatch"},
        "device": {"actual": "cpu"},
        "marks": "mask",
    }
    return Job(
        id=f"run-{number}",
        source=source,
        fingerprint=Fingerprint(1, 2, 3, 4),
        identity=Identity(f"{number:064x}", None, "default"),
        state=state,
        created_s=1_700_000_000.0 + number,
        record=final if state in {JobState.DONE, JobState.FAILED} else None,
        **more,
    )


@pytest.fixture
def journalled(shell: Shell) -> settings.Settings:
    """A configured user with some jobs behind them."""
    assert shell("init").code == 0
    chosen = settings.load()
    (chosen.inbox / "sub").mkdir()
    for name in ("a.png", "sub/b.png", "c.png", "odd\udcff\x1b[31m.png"):
        (chosen.inbox / name).touch()
    failed = a_job(2, JobState.FAILED, "sub/b.png", reason="not a picture")
    with SqliteJournal(chosen.journal_file) as journal:
        journal.commit(
            [
                FinishJob(a_job(1, JobState.DONE, "a.png", output="a.png")),
                SaveFile(SavedFile(failed.source, failed.fingerprint, failed.identity.picture_sha256)),
                FinishJob(failed),
                SaveJob(a_job(3, JobState.HELD, "c.png")),
                FinishJob(a_job(4, JobState.DONE, "odd\udcff\x1b[31m.png", output="odd\udcff\x1b[31m.png")),
            ]
        )
    return chosen


# --- init --------------------------------------------------------------------------------------------------


def test_init_makes_folders_and_a_configuration_that_works(shell: Shell, home: Path) -> None:
    ran = shell("init")
    assert ran.code == 0, ran.err
    assert (home / "Retouch" / "inbox").is_dir()
    assert (home / "Retouch" / "outbox").is_dir()
    assert "watcher run" in ran.out
    settings.check_folders(settings.load())


@pytest.mark.parametrize("name", ["plain", 'a "quoted" \\ name', "price in $USD", "名前 é"])
def test_init_writes_any_folder_name_so_that_it_is_read_back(shell: Shell, tmp_path: Path, name: str) -> None:
    config = tmp_path / "conf" / "w.toml"
    ran = shell("init", str(tmp_path / name), "--config", str(config))
    assert ran.code == 0, ran.err
    assert settings.load(config).inbox == tmp_path / name / "inbox"
    assert settings.load(config).archive == tmp_path / name / "archive"
    assert tomllib.loads(config.read_text(encoding="utf-8"))["recipes"]
    assert f"watcher run --config {config}" in ran.out


def test_init_never_loses_a_configuration(shell: Shell, tmp_path: Path) -> None:
    assert shell("init").code == 0
    config = settings.default_config_path()
    mine = config.read_text(encoding="utf-8") + "# mine\n"
    config.write_text(mine, encoding="utf-8")
    refused = shell("init", str(tmp_path / "other"))
    assert refused.code == 78
    assert "--force" in refused.err
    assert config.read_text(encoding="utf-8") == mine
    assert shell("init", str(tmp_path / "other"), "--force").code == 0
    assert config.with_name("watcher.toml.bak").read_text(encoding="utf-8") == mine
    assert settings.load().inbox == tmp_path / "other" / "inbox"


def test_init_again_makes_the_folders_of_the_configuration_that_is_there(
    shell: Shell, tmp_path: Path
) -> None:
    assert shell("init", str(tmp_path / "pics")).code == 0
    (tmp_path / "pics" / "inbox").rmdir()
    ran = shell("init")
    assert ran.code == 0
    assert (tmp_path / "pics" / "inbox").is_dir()
    assert not (tmp_path / "home" / "Retouch").exists()


def test_init_where_a_file_is_in_the_way(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "pics").write_text("", encoding="ascii")
    ran = shell("init", str(tmp_path / "pics"))
    assert ran.code == 78
    assert "inbox cannot be made" in ran.err


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.kind("PD19")
def test_errors_are_three_lines_each_and_no_traceback(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "w.toml"
    config.write_text(
        'inbox = "in"\noutbox = "out"\n[engine]\nnmae = "x"\ndevice = "gpu"\n', encoding="utf-8"
    )
    ran = shell("run", "--config", str(config))
    assert ran.code == 78
    assert ran.out == ""
    blocks = [block.splitlines() for block in ran.err.strip().split("\n\n")]
    assert [[line.split(":")[0] for line in block] for block in blocks] == [["error", "where", "to do"]] * 2
    assert str(config) in blocks[0][1]


@pytest.mark.parametrize("command", ["run", "once", "status", "jobs"])
def test_without_a_configuration_every_command_says_how_to_get_one(shell: Shell, command: str) -> None:
    ran = shell(command)
    assert ran.code == 78
    assert "watcher init" in ran.err


@pytest.mark.parametrize("command", ["run", "once"])
def test_folders_that_overlap_are_refused_with_both_paths(shell: Shell, tmp_path: Path, command: str) -> None:
    (tmp_path / "in" / "out").mkdir(parents=True)
    ran = shell(command, "--inbox", str(tmp_path / "in"), "--outbox", str(tmp_path / "in" / "out"))
    assert ran.code == 78
    assert f"{tmp_path}/in contains {tmp_path}/in/out" in ran.err


@pytest.mark.parametrize("command", ["run", "once"])
def test_another_inbox_on_the_command_line_needs_a_state_folder_of_its_own(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    ran = shell(command, "--inbox", str(tmp_path / "in"), "--outbox", str(tmp_path / "out"))
    assert ran.code == 2
    assert "--state-dir" in ran.err


def test_doctor_sees_a_state_folder_of_another_inbox(shell: Shell, tmp_path: Path) -> None:
    assert shell("init").code == 0
    (tmp_path / "other").mkdir()
    chosen = settings.load()
    chosen.state_dir.mkdir(parents=True)
    claim(chosen.state_dir, inbox=tmp_path / "other", outbox=chosen.outbox)
    ran = shell("doctor")
    assert ran.code == 78
    assert "belongs to another inbox" in ran.out
    assert shell("doctor", "--state-dir", str(tmp_path / "state")).code == 0


@pytest.mark.parametrize("command", ["run", "once"])
def test_a_second_service_is_told_to_try_again(shell: Shell, home: Path, command: str) -> None:
    assert shell("init").code == 0
    with StateLock(settings.load().state_dir):
        ran = shell(command)
    assert ran.code == 75
    assert f"process {os.getpid()}" in ran.err
    assert str(home) in ran.err


@pytest.mark.parametrize(
    "arguments", [["bogus"], ["jobs", "--state", "lost"], ["retry"], ["retry", "x", "--all"]]
)
def test_usage_errors_end_with_2(shell: Shell, arguments: list[str]) -> None:
    assert shell(*arguments).code == 2


@pytest.mark.kind("PD19")
def test_an_internal_error_is_one_line_and_a_file(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_arguments: object, **_options: object) -> None:
        raise LookupError("no\x1b[31mthing")

    monkeypatch.setattr(entry, "app", explode)
    ran = shell("status")
    assert ran.code == 70
    assert "Traceback" not in ran.err
    assert "\x1b" not in ran.err
    found = re.search(r"details in (\S+)", ran.err)
    assert found
    details = (home / found[1]).read_text(encoding="utf-8")
    assert "Traceback" in details
    assert "in explode" in details


def test_a_log_file_that_cannot_be_opened_is_a_configuration_error(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("init").code == 0
    (tmp_path / "file").write_text("", encoding="ascii")
    monkeypatch.setenv("WATCHER_LOG__FILE", str(tmp_path / "file" / "log"))
    ran = shell("run")
    assert ran.code == 78
    assert "log.file" in ran.err


# --- facts -------------------------------------------------------------------------------------------------


def test_status_before_anything_ran(shell: Shell) -> None:
    shell("init")
    facts = shell("status", "--json").facts
    assert (facts["running"], facts["state"], facts["jobs"], facts["last"]) == (False, "stopped", {}, [])
    assert facts["engine"] == {"configured": "auto", "actual": None, "reason": None}
    ran = shell("status")
    assert "not running" in ran.out
    assert "configured auto, actual not known" in ran.out


def test_status_counts_jobs_and_shows_the_last(shell: Shell, journalled: settings.Settings) -> None:
    facts = shell("status", "--json").facts
    assert facts["jobs"] == {"held": 1, "done": 2, "failed": 1}
    assert [job["id"] for job in facts["last"]] == ["run-1", "run-2", "run-4"]
    assert facts["inbox"] == str(journalled.inbox)
    assert "1 held, 2 done, 1 failed" in shell("status").out


def test_status_does_not_believe_a_file_that_a_dead_service_left(
    shell: Shell, journalled: settings.Settings
) -> None:
    left = '{"schema":1,"pid":1,"version":"0","state":"watching","started":"","written":"","path":"hot",'
    left += '"path_reason":"","worker":{"state":"ready","engine":{"configured":"x","actual":"x"},'
    left += '"device":{"configured":"x","actual":"x"}}}'
    (journalled.state_dir / "status.json").write_text(left, encoding="ascii")
    facts = shell("status", "--json").facts
    assert (facts["state"], facts["worker"], facts["engine"]["actual"]) == ("stopped", None, None)
    with StateLock(journalled.state_dir):  # a service that has just started, with another pid
        facts = shell("status", "--json").facts
    assert (facts["running"], facts["state"], facts["worker"]) == (True, "starting", None)


@pytest.mark.parametrize("ago_s", [0, 600, -600])
def test_status_tells_of_a_service_that_has_not_said_anything_for_long(
    shell: Shell, journalled: settings.Settings, ago_s: int
) -> None:
    columns = Columns(configured="x", actual="x")
    status = Status(
        pid=os.getpid(),
        version="0",
        state="watching",
        started="",
        written=utc_text(time.time() - ago_s),
        worker=WorkerStatus(state="ready", engine=columns, device=columns),
        path="hot",
        path_reason="ready",
    )
    with StateLock(journalled.state_dir):
        StatusFile(journalled.state_dir).write(status)
        facts, text = shell("status", "--json").facts, shell("status").out
    is_silent = ago_s == 600
    assert facts["running"]
    assert (facts["silent_s"] is not None) == is_silent
    assert ("silent for 60" in text) == is_silent
    assert (f"{journalled.state_dir} is full" in text) == is_silent


def test_status_of_a_service_that_cannot_start_says_why(shell: Shell, journalled: settings.Settings) -> None:
    assert shell("status", "--json").facts["problems"] == []
    journalled.outbox.rmdir()
    (problem,) = shell("status", "--json").facts["problems"]
    assert problem["what"] == f"outbox does not exist: {journalled.outbox}"
    text = shell("status").out
    assert f"cannot start: {problem['what']}" in text
    assert problem["remedy"] in text
    assert "Start it with" not in text


def test_jobs_are_listed_filtered_and_limited(shell: Shell, journalled: settings.Settings) -> None:
    assert journalled.journal_file.exists()
    assert [job["id"] for job in shell("jobs", "--json").facts["jobs"]] == [
        "run-1",
        "run-2",
        "run-3",
        "run-4",
    ]
    failed = shell("jobs", "--state", "failed", "--state", "held", "--json").facts["jobs"]
    assert [(job["id"], job["state"], job["reason"]) for job in failed] == [
        ("run-2", "failed", "not a picture"),
        ("run-3", "held", None),
    ]
    newest = shell("jobs", "--limit", "1")
    assert "the newest 1 of 4" in newest.out
    assert "run-1" not in newest.out


def test_names_from_outside_cannot_write_to_the_terminal(shell: Shell, journalled: settings.Settings) -> None:
    assert journalled.journal_file.exists()
    for arguments in (["jobs"], ["status"], ["jobs", "--json"], ["status", "--json"]):
        ran = shell(*arguments)
        assert ran.code == 0, ran.err
        assert "\x1b" not in ran.out
        ran.out.encode("utf-8")
    assert "odd\\xff" in shell("jobs", "--json").facts["jobs"][-1]["source"]


def test_jobs_without_a_journal(shell: Shell) -> None:
    shell("init")
    assert shell("jobs").code == 75


# --- retry -------------------------------------------------------------------------------------------------


def test_retry_takes_ids_and_paths_of_pictures(
    shell: Shell, journalled: settings.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(journalled.inbox)
    ran = shell("retry", "run-1", "sub/b.png", str(journalled.inbox / "a.png"), "--json")
    assert ran.code == 0, ran.err
    assert [job["id"] for job in ran.facts["requested"]] == ["run-1", "run-2", "run-1"]
    assert not ran.facts["running"]
    (request,) = read_requests(journalled.state_dir)
    assert request.ids == ("run-1", "run-2", "run-1")
    assert "next `watcher run`" in shell("retry", "run-1").out


def test_retry_of_a_path_takes_the_job_of_the_bytes_that_are_there(
    shell: Shell, journalled: settings.Settings
) -> None:
    """A, then B, then A again under one name."""
    first = a_job(1, JobState.DONE, "a.png", output="a.png")
    other = replace(first.identity, picture_sha256="b" * 64)
    with SqliteJournal(journalled.journal_file) as journal:
        later = replace(a_job(9, JobState.DONE, "a.png", output="a (2).png"), identity=other)
        journal.commit(
            [
                FinishJob(later),
                SaveFile(SavedFile("a.png", first.fingerprint, first.identity.picture_sha256)),
            ]
        )
    assert [job["id"] for job in shell("retry", "a.png", "--json").facts["requested"]] == ["run-1"]


def test_retry_of_a_picture_that_left_says_so(shell: Shell, journalled: settings.Settings) -> None:
    (journalled.inbox / "a.png").unlink()
    ran = shell("retry", "run-1")
    assert ran.code == 2
    assert "not in the inbox any more: a.png" in ran.err
    assert read_requests(journalled.state_dir) == []


def test_retry_takes_a_name_that_is_not_utf_8(shell: Shell, journalled: settings.Settings) -> None:
    ran = shell("retry", "odd\udcff\x1b[31m.png", "--json")
    assert ran.code == 0, ran.err
    (job,) = ran.facts["requested"]
    assert job["id"] == "run-4"
    assert read_requests(journalled.state_dir)[0].ids == ("run-4",)


def test_retry_all_takes_what_failed(shell: Shell, journalled: settings.Settings) -> None:
    assert [job["id"] for job in shell("retry", "--all", "--json").facts["requested"]] == ["run-2"]
    with StateLock(journalled.state_dir):
        assert f"running service (pid {os.getpid()})" in shell("retry", "--all").out


def test_retry_of_what_cannot_be_done_again(shell: Shell, journalled: settings.Settings) -> None:
    unknown = shell("retry", "nope.png")
    assert unknown.code == 2
    assert "nope.png" in unknown.err
    held = shell("retry", "run-3")
    assert held.code == 2
    assert "c.png.mask.png" in held.err
    assert read_requests(journalled.state_dir) == []


# --- doctor ------------------------------------------------------------------------------------------------


def facts_of(ran: Ran) -> dict[str, Any]:
    return {f"{fact['topic']}.{fact['name']}": fact for fact in ran.facts["facts"]}


def test_doctor_on_a_machine_in_order(shell: Shell) -> None:
    shell("init")
    ran = shell("doctor", "--json")
    assert ran.code == 0
    facts = facts_of(ran)
    assert facts["program.watcher"]["value"] == __version__
    assert "free" in facts["folders.outbox"]["value"]
    assert facts["packages.watchdog"]["level"] == "ok"
    assert "of" in facts["devices.cpus"]["value"]
    assert "no problems" in shell("doctor").out


def test_doctor_says_what_is_wrong_and_goes_on(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("init")
    settings.load().inbox.rmdir()
    monkeypatch.setenv("LAMA_MODEL", str(tmp_path / "none.pt"))
    monkeypatch.setenv("WATCHER_ENGINE__NAME", "lama")
    ran = shell("doctor", "--json")
    assert ran.code == 78
    wrong = [fact["value"] for fact in ran.facts["facts"] if fact["level"] == "problem"]
    assert any("inbox does not exist" in value for value in wrong)
    assert any("cannot be read" in value for value in wrong)
    assert ran.facts["problems"] == len(wrong)
    assert facts_of(ran)["devices.cpus"]


def test_doctor_with_a_broken_configuration(shell: Shell, tmp_path: Path) -> None:
    config = tmp_path / "w.toml"
    config.write_text("inbox = \n", encoding="utf-8")
    ran = shell("doctor", "--config", str(config), "--json")
    assert ran.code == 78
    assert facts_of(ran)[f"configuration.{config}, line 1"]["level"] == "problem"


# --- the program -------------------------------------------------------------------------------------------


def test_version_and_help(shell: Shell) -> None:
    assert shell("--version").out == f"watcher {__version__}\n"
    commands = shell("--help").out
    for command in ("init", "run", "once", "demo", "status", "jobs", "retry", "preview", "doctor"):
        assert command in commands
        text = shell(command, "--help")
        assert text.code == 0
        assert f"watcher {command}" in text.out.split("Examples:")[1]


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As `watcher jobs | head -1` does it: what is printed last finds nobody."""
    run = subprocess.Popen(
        [sys.executable, "-m", "watcher", "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    assert run.stderr.read() == ""
    run.stderr.close()
    assert run.wait(timeout=60) in {0, 1}  # 1 where typer itself noticed


@contextmanager
def service(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "watcher", "run", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def heard(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """The next line of the service's log with this event; the test's time-out is the deadline."""
    assert process.stderr is not None
    for text in process.stderr:
        line: dict[str, Any] = json.loads(text)
        if line["event"] == event:
            return line
    raise AssertionError(f"the service ended without {event}")


def test_run_serves_until_a_signal_and_shows_itself_meanwhile(shell: Shell) -> None:
    shell("init")
    with service("--engine", "patchmatch") as process:
        heard(process, "inbox.found")
        heard(process, "worker.ready")
        deadline = time.monotonic() + 10
        while (facts := shell("status", "--json").facts)["worker"] is None or facts["engine"][
            "actual"
        ] is None:
            assert time.monotonic() < deadline, facts
        assert (facts["running"], facts["pid"], facts["state"]) == (True, process.pid, "watching")
        assert facts["engine"] == {"configured": "patchmatch", "actual": "patchmatch", "reason": None}
        assert facts["device"]["configured"] == "auto"
        assert facts["device"]["actual"] == "cpu"
        busy = shell("once")
        assert busy.code == 75
        process.send_signal(signal.SIGTERM)
        heard(process, "service.stopped")
        assert process.wait(timeout=20) == 0
    assert not shell("status", "--json").facts["running"]


def test_once_does_what_is_there_and_says_so(shell: Shell, home: Path) -> None:
    shell("init")
    inbox = home / "Retouch" / "inbox"
    (inbox / "broken.png").write_bytes(b"this is no picture, and it never will be one")
    old = time.time() - 3600
    os.utime(inbox / "broken.png", (old, old))
    ran = shell("once", "--engine", "patchmatch", "--json")
    assert ran.code == 1, ran.err
    assert (ran.facts["failed"], ran.facts["done"], ran.facts["held"]) == (1, 0, 0)
    assert ran.facts["jobs"][0]["source"] == "broken.png"
    again = shell("once", "--engine", "patchmatch")
    assert again.code == 1, "a picture of the inbox is not done"
    assert "failed before, and not tried again: 1" in again.out
    (inbox / "broken.png").unlink()
    assert shell("once", "--engine", "patchmatch").code == 0


def test_what_the_service_imports_stays_light() -> None:
    code = (
        "import sys; import watcher.cli, watcher.app\n"
        "bad = {'numpy', 'PIL', 'cv2', 'torch', 'psutil'} & set(sys.modules); assert not bad, bad\n"
        "bad = {name for name in sys.modules if name.startswith(('rich.live', 'rich.progress'))}\n"
        "assert not bad, bad\n"
        "print(open('/proc/self/statm').read().split()[1] if sys.platform == 'linux' else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(run.stdout) * 4096 < 58_000_000
