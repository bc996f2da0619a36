"""Kinds D: exactly once through deaths at any step, full disks, sources that stay, and starts without end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import (
    ROOT,
    mask,
    picture,
    relative_files,
    seed_of,
    sha256,
    source_of,
    wait_until,
)
from tests.service.namespaces import inside, read_only, seen_by, with_mounts
from tests.service.starts import configuration, start_each
from watcher.adapters.state_owner import claim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.service.harness import Service
    from tests.service.starts import Case

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1", "rescan_s = 0.1", "[log]", 'level = "debug"')


def ten_scans(service: Service) -> None:
    """Wait until the inbox was listed ten times more."""
    so_far = len(service.log("inbox.rescanned"))
    service.wait_log("inbox.rescanned", count=so_far + 10)


# --- a death at a step -------------------------------------------------------------------------------------

ENDING_AT_A_STEP: Final = """
import os, signal, sqlite3, sys
from watcher.adapters.file_operations import FileOperations
from watcher.adapters.journal import SqliteJournal
from watcher.cli import main

how, wanted = sys.argv[1:3]
steps = 0

def step(*names):
    global steps
    steps += 1
    if wanted in (str(steps), *names):
        if how == "raise":
            return True
        os.kill(os.getpid(), signal.SIGKILL)

def before(self, operation, name):
    if step(operation, f"{operation} {name}"):
        raise OSError(5, "Input/output error")

FileOperations.before = before
commit, write = SqliteJournal.commit, SqliteJournal._write

def commit_between_steps(self, writes):
    ends = "".join(sorted({str(w.job.state) for w in writes if hasattr(w, "job")}))
    self.broken = step(f"commit {ends}")
    commit(self, writes)
    step(f"committed {ends}")

def write_or_not(self, write_):
    if self.broken:
        raise sqlite3.OperationalError("disk I/O error")
    write(self, write_)

SqliteJournal.commit, SqliteJournal._write = commit_between_steps, write_or_not
main(sys.argv[sys.argv.index("watcher") + 1:])
"""
"""The program, its steps on disks and in the journal numbered and named; at one of them it ends."""


def ending_at(how: str, step: str) -> list[str]:
    """A program that becomes the service, and dies (`kill`), or meets an error (`raise`), at a step."""
    return [sys.executable, "-c", ENDING_AT_A_STEP, how, step]


def start_and_die(service: Service, step: str) -> bool:
    """Start; return whether it died at the step. If there is no such step, it comes to rest."""
    service.wrapper = ending_at("kill", step)
    service.start(ready=False)
    assert service.process is not None
    process = service.process
    wait_until(lambda: process.poll() is not None or is_done(service), f"its death at {step}, or its rest")
    died = process.poll() is not None
    assert not died or process.returncode == -signal.SIGKILL
    service.close()
    service.wrapper = ()
    return died


def is_done(service: Service) -> bool:
    return len(service.results()) == len(service.expected) and service._is_at_rest()


def assert_neither_lost_nor_torn(service: Service) -> None:
    """For each picture: its source, or its whole output, and nothing under a final name that is less."""
    sources = {sha256(path) for path in service.inbox.rglob("*.png")}
    final = {sha256(service.outbox / output): output for output in service.outputs() if output[0] != "."}
    known = {job.identity.picture_sha256: job for job in service.jobs()}
    for name, digest, _ in service.expected:
        job = known.get(digest)
        has_output = job is not None and job.sha256_out in final
        assert digest in sources or has_output, f"neither source nor output: {name}"
    assert set(final) <= {job.sha256_out for job in known.values()}, "an output that is not a whole result"


AFTER: Final[Mapping[str, Sequence[str]]] = {
    "keep": (),
    "archive": ('after = "archive"', 'archive = "{root}/archive"'),
    "delete": ('after = "delete"',),
}
STEPS: Final = ("committed publishing", "exclusive_rename 01.png", "commit done", "unlink 03.png")
"""From the choice of the output's name to the removal of the source; picture N is served up to step N."""


@pytest.mark.kind("D3", "D4")
def test_a_death_at_any_step_from_arrival_to_disposal_loses_nothing_and_repeats_nothing(
    new_service: NewService,
) -> None:
    service = new_service('after = "delete"', "[arrivals]", "quiet_s = 0.1")
    for number, step in enumerate(STEPS):
        service.put(f"{number:02}.png")
        assert start_and_die(service, step), f"there is no step {step}"
        assert_neither_lost_nor_torn(service)

    service.start()

    service.assert_sound()
    wait_until(lambda: relative_files(service.inbox) == set(), "every source to go")
    assert all(record["attempt"] == 1 for record in service.results()), "no death is held against a job"


@pytest.mark.soak
@pytest.mark.kind("D3", "D4")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("after", "disks"), [("keep", "one disk"), ("delete", "one disk"), ("archive", "outbox apart")]
)
def test_a_death_before_each_step_of_a_run_one_after_the_other(
    new_service: NewService, other_disk: Path, after: str, disks: str
) -> None:
    service = new_service(*AFTER[after], "[arrivals]", "quiet_s = 0.1")
    (service.root / "archive").mkdir()
    if disks == "outbox apart":
        service.state.symlink_to(other_disk)
    deaths = 0
    for step in range(1, 121):
        service.put(f"{step:03}.png")
        if not start_and_die(service, str(step)):
            break
        deaths += 1
        assert_neither_lost_nor_torn(service)

    assert deaths > 25, "the steps are not counted"
    service.start()
    service.assert_sound()
    assert all(record["attempt"] == 1 for record in service.results())
    if after != "keep":
        wait_until(lambda: relative_files(service.inbox) == set(), "every source to go")


@pytest.mark.kind("D3", "PD19")
@pytest.mark.parametrize(
    "step",
    [
        "commit publishing",
        *(pytest.param(step, marks=pytest.mark.soak) for step in ("commit ready", "commit done")),
    ],
)
def test_a_journal_that_fails_ends_the_service_and_leaves_the_source_or_the_output(
    new_service: NewService, step: str
) -> None:
    service = new_service('after = "delete"', "[arrivals]", "quiet_s = 0.1")
    service.put("a.png")
    service.wrapper = ending_at("raise", step)
    service.start(ready=False)
    assert service.process is not None
    assert service.process.wait(30) in {70, 75, 78}, "it must not go on without its journal"
    assert_neither_lost_nor_torn(service)
    assert (service.inbox / "a.png").exists(), "nothing is disposed of before its end is committed"
    service.wrapper = ()

    service.start()

    assert service.wait_record("a.png")["attempt"] == 1
    service.assert_sound()


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder on another device than the tests' own."""
    memory = Path("/dev/shm")  # noqa: S108 - a disk of another device is what is wanted
    if not memory.is_dir() or memory.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("there is no second disk here")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.soak
@pytest.mark.kind("D4")
@pytest.mark.parametrize("disks", ["one disk", "outbox apart"])
def test_a_kill_while_a_result_is_written_shows_nothing_under_its_name(
    new_service: NewService, other_disk: Path, disks: str
) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1")
    if disks == "outbox apart":
        service.state.symlink_to(other_disk)
        staging = service.outbox / ".watcher" / "staging"
    else:
        staging = service.state / "staging"
    service.start()
    service.put("large.png", picture(7, 1500, 1100), mask(1500, 1100))
    wait_until(lambda: [path for path in staging.glob("*") if path.name != "probe"], "a staged file")
    service.kill9()
    assert_neither_lost_nor_torn(service)
    assert not (service.outbox / "large.png").exists(), "the kill came too late to mean anything"

    service.start()

    assert service.wait_record("large.png")["attempt"] == 1
    service.assert_sound()


# --- sources that stay -------------------------------------------------------------------------------------


@pytest.mark.kind("D5", "D6", "H1")
@pytest.mark.parametrize(
    "after", ["delete", *(pytest.param(after, marks=pytest.mark.soak) for after in ("keep", "archive"))]
)
def test_a_source_that_stays_is_served_once_however_often_the_inbox_is_listed(
    new_service: NewService, after: str
) -> None:
    service = new_service(*AFTER[after], *QUICK)
    (service.root / "archive").mkdir()
    (service.inbox / "theirs").mkdir()
    if after != "keep":
        service.wrapper = read_only(service.inbox / "theirs")
    service.start()
    service.put("theirs/a.png")
    service.wait_record("theirs/a.png")

    ten_scans(service)

    assert len(service.records_of("theirs/a.png", outcome=())) == 1
    assert service.log("job.already_done") == []
    told = service.log("after.failed", source="theirs/a.png")
    assert len(told) == (0 if after == "keep" else 1)
    assert (service.inbox / "theirs" / "a.png").exists()
    service.assert_sound()


@pytest.mark.kind("D14")
def test_a_result_that_replaces_the_one_before_it_is_nothing_new(new_service: NewService) -> None:
    service = new_service("[output]", 'on_conflict = "replace"', *QUICK).start()
    service.put("a.png", picture(851))
    for count, seed in enumerate((852, 853), 2):
        service.wait_record("a.png", count=count - 1)
        data = picture(seed)
        service.expect("a.png", data, mask())
        service.place("a.png", data)
    last = service.wait_record("a.png", count=3)
    assert last["image"]["sha256_in"] == sha256(picture(853))
    assert last["output"] == "a.png"

    ten_scans(service)
    service.kill9()
    service.start()
    ten_scans(service)

    assert service.outputs() == {"a.png"}
    assert sha256(service.outbox / "a.png") == last["image"]["sha256_out"]
    assert [source_of(record) for record in service.records()] == ["a.png"] * 3
    assert service.log("job.duplicate") == service.log("job.already_done") == []


# --- poison ------------------------------------------------------------------------------------------------


@pytest.mark.kind("D7")
def test_deaths_are_counted_across_restarts_and_an_attempt_is_on_disk_before_it_begins(
    new_service: NewService,
) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1", faults="crash@poison.png").start()
    service.put("poison.png", expect=False)
    service.wait_log("worker.exited")
    # the line is there before what follows from it is on the disk
    wait_until(lambda: service.jobs()[0].solo_faults, "the death to be held against its picture")
    service.kill9()
    (job,) = service.jobs()
    assert job.attempts >= 1, "an attempt that is not on the disk is forgotten by a crash"
    assert not job.is_final, "the kill came too late to mean anything"

    service.start(ready=False)

    service.wait_record("poison.png", outcome={"quarantined"})
    deaths = [line for line in service.log("worker.exited") if line.get("exit_code") == 139]
    assert len(deaths) == 2, "the death before the restart counts"
    service.put("good.png")
    service.assert_sound()


# --- starts that cannot work -------------------------------------------------------------------------------


@pytest.mark.kind("D8")
def test_a_configuration_that_cannot_work_ends_at_once_for_good_and_is_told_by_status(
    new_service: NewService,
) -> None:
    service = new_service()
    (service.root / "other").mkdir()
    service.state.mkdir()
    claim(service.state, inbox=service.root / "other", outbox=service.outbox)
    good = {"inbox": str(service.inbox), "outbox": str(service.outbox), "state_dir": str(service.state)}
    wrong = {
        "inbox does not exist": configuration(service, {**good, "inbox": f"{service.root}/away"}),
        "inbox and outbox overlap": configuration(service, {**good, "outbox": str(service.inbox)}),
        "unknown key inbxo": configuration(service, {**good, "inbxo": "x"}),
        "is not TOML": configuration(service, good, "unmarked = hold"),
        "archive is not set": configuration(service, good, 'after = "archive"'),
        "belongs to another inbox": configuration(service, good),
    }
    cases: list[Case] = [([command, *named], {}) for named in wrong.values() for command in ("run", "status")]

    answers = start_each(service, cases)

    for what, run, status in zip(wrong, answers[::2], answers[1::2], strict=True):
        assert run["code"] == 78, (what, run)
        assert what in run["err"], (what, run)
        assert "to do:" in run["err"], (what, run)
        assert what in f"{status['out']}{status['err']}", (what, status)
    unit = (ROOT / "service" / "watcher.service").read_text(encoding="utf-8")
    (never,) = [line for line in unit.splitlines() if line.startswith("RestartPreventExitStatus=")]
    assert "78" in never.partition("=")[2].split(), "a service manager must not try such a start again"


@pytest.mark.kind("W48")
def test_a_journal_on_a_network_file_system_is_refused(new_service: NewService) -> None:
    """Its locks and its write-ahead log do not work there. The system's table of mounts is planted."""
    service = new_service()
    folders = {"inbox": str(service.inbox), "outbox": str(service.outbox)}
    shares = {kind: str(service.root / kind) for kind in ("nfs4", "cifs", "9p", "fuse.sshfs")}
    table = service.root / "mountinfo"
    mounts = [f"2{at} 20 0:5{at} / {path} rw - {kind} x rw" for at, (kind, path) in enumerate(shares.items())]
    table.write_text("\n".join(["20 1 8:1 / / rw - ext4 /dev/sda1 rw", *mounts, ""]), encoding="utf-8")
    planted = (
        "import pathlib; from watcher.adapters import filesystems; "
        f"filesystems.MOUNTINFO = pathlib.Path({str(table)!r})"
    )
    cases: list[Case] = [
        ([command, *configuration(service, {**folders, "state_dir": f"{path}/state"})], {})
        for command, path in zip(("run", "once", "run", "once"), shares.values(), strict=True)
    ]

    for kind, answer in zip(shares, start_each(service, cases, before=planted), strict=True):
        assert answer["code"] == 78, answer
        assert f"network file system ({kind})" in answer["err"], answer
        assert f"{shares[kind]}/state" in answer["err"], answer
        assert "state_dir" in answer["err"].partition("to do:")[2], answer
    assert not list(service.root.rglob("journal*"))


# --- two services ------------------------------------------------------------------------------------------


@pytest.mark.kind("D2")
@pytest.mark.parametrize("shared", ["inbox", "outbox"])
def test_a_second_service_on_one_folder_is_refused_though_its_state_is_its_own(
    service: Service, tmp_path: Path, shared: str
) -> None:
    link = tmp_path / "link"
    link.symlink_to(getattr(service, shared))
    folders = {key: str(tmp_path / key) for key in ("inbox", "outbox", "state_dir")}
    for key in ("inbox", "outbox"):
        (tmp_path / key).mkdir()
    named = configuration(service, {**folders, shared: str(link)})
    apart = configuration(service, folders, "[engine]", 'name = "patchmatch"')

    run, once, alone = start_each(
        service, [(["run", *named], {}), (["once", *named], {}), (["once", *apart], {})]
    )

    for answer in (run, once):
        assert answer["code"] == 75, answer
        assert f"process {service.pid} works on this {shared}: {link}" in answer["err"], answer
        assert "state_dir" in answer["err"], answer
    assert alone["code"] == 0, alone
    assert relative_files(tmp_path / "outbox") | relative_files(tmp_path / "inbox") == set()


@pytest.mark.kind("H2")
def test_a_folder_is_told_to_be_worked_on_without_a_file_and_without_keeping_it(
    new_service: NewService, tmp_path: Path
) -> None:
    """A read-only inbox on a disk of its own: a second service is refused, and the disk can be taken out."""
    service = new_service()
    service.wrapper = with_mounts(
        ["mount", "-t", "tmpfs", "none", str(service.inbox)],
        ["mount", "-o", "remount,ro", str(service.inbox)],
    )
    service.start()
    (tmp_path / "outbox").mkdir()
    folders = {"inbox": service.inbox, "outbox": tmp_path / "outbox", "state_dir": tmp_path / "state"}
    other = configuration(service, {key: str(folder) for key, folder in folders.items()})

    second = subprocess.run(
        [*in_the_same_mounts(service), sys.executable, "-m", "watcher", "once", *other],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env=service.environment(),
    )

    assert second.returncode == 75, second.stderr
    assert f"works on this inbox: {service.inbox}" in second.stderr
    inside(service.pid, "umount", str(service.inbox))
    service.wait_log("inbox.lost")


def in_the_same_mounts(service: Service) -> list[str]:
    return ["nsenter", f"--target={service.pid}", "--mount", "--user", "--preserve-credentials"]


# --- full disks --------------------------------------------------------------------------------------------


def fill(service: Service, folder: Path) -> Path:
    """Leave no byte free on the disk of a folder, as the service sees it; returns what has to go."""
    filling = seen_by(service.pid, folder) / "filling"
    with filling.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    disk = os.statvfs(filling)
    assert disk.f_bavail == 0, "the disk is not full"
    return filling


def on_a_small_disk(folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    return with_mounts(["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(folder)])


def status_of(service: Service, *arguments: str) -> str:
    """What `watcher status` says, where the service's mounts are seen."""
    command = [*in_the_same_mounts(service), *service.command("status", *arguments)]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=30, env=service.environment()
    )
    return ran.stdout


@pytest.mark.kind("D9")
def test_a_full_outbox_blocks_costs_no_attempt_and_goes_on_by_itself(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1")
    service.wrapper = on_a_small_disk(service.outbox)
    service.start(ready=False)
    service.wait_log("worker.ready")
    filling = fill(service, service.outbox)
    for number in range(3):
        service.put(f"{number}.png", expect=False)

    service.wait_log("publish.blocked")
    told = wait_until(lambda: json.loads(status_of(service, "--json"))["blocked"], "a status that says so")
    assert "No space left" in told or "full" in told
    assert "takes no results" in status_of(service)
    assert all(job.attempts == 0 and not job.is_final for job in service.jobs())
    filling.unlink()

    service.wait_log("job.finished", count=3)
    wait_until(
        lambda: {(job.state, job.attempts) for job in service.jobs()} == {("done", 1)},
        "three results, of one attempt each",
    )
    assert json.loads(status_of(service, "--json"))["blocked"] is None
    outbox = seen_by(service.pid, service.outbox)
    results = {path for path in relative_files(outbox) if not path.startswith(("logs/", ".watcher/"))}
    assert results == {"0.png", "1.png", "2.png"}
    assert len(service.log("publish.blocked")) == 1, "told at most once a minute"
    assert len(service.log("publish.resumed")) == 1


@pytest.mark.kind("D9")
def test_a_full_state_folder_stops_everything_before_it_begins_and_goes_on_by_itself(
    new_service: NewService,
) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1")
    service.wrapper = on_a_small_disk(service.state)
    service.start(ready=False)
    service.wait_log("worker.ready")
    filling = fill(service, service.state)
    for number in range(3):
        service.put(f"{number}.png", expect=False)

    (blocked,) = service.wait_log("journal.blocked")
    assert blocked["remedy"]
    assert service.outputs() == set(), "nothing is begun that the journal does not know"
    assert "watching" in status_of(service), "status works on a full disk"
    filling.unlink()

    service.wait_log("journal.resumed")
    assert {record["attempt"] for record in service.wait_records(3)} == {1}
    assert service.outputs() == {"0.png", "1.png", "2.png"}
    assert len(service.log("journal.blocked")) == 1


@pytest.mark.soak
@pytest.mark.kind("D9", "D5")
def test_a_full_archive_keeps_the_sources_and_the_next_start_archives_them(new_service: NewService) -> None:
    service = new_service(*AFTER["archive"], "[arrivals]", "quiet_s = 0.1")
    archive = service.root / "archive"
    service.wrapper = on_a_small_disk(archive)
    service.start(ready=False)
    service.wait_log("worker.ready")
    fill(service, archive)
    for number in range(3):
        service.put(f"{number}.png")
    service.wait_log("after.failed", count=3)
    service.wait_records(3)
    left = relative_files(seen_by(service.pid, archive))
    assert left == {"filling"}, "half a copy stands in the archive"
    assert len(relative_files(service.inbox)) == 6
    service.kill9()
    service.wrapper = ()

    service.start()

    wait_until(lambda: relative_files(service.inbox) == set(), "the sources to go")
    assert len(relative_files(archive)) == 6
    service.assert_sound()


# --- another disk under the same name ----------------------------------------------------------------------


@pytest.mark.kind("D11", "H4")
def test_an_inbox_on_another_device_with_other_inodes_is_not_served_again(
    new_service: NewService, other_disk: Path
) -> None:
    service = new_service(*QUICK)
    names = [f"{number}.png" for number in range(3)]
    for name in names:
        service.put(name)
    service.start()
    service.wait_records(3)
    assert service.terminate() == 0
    subprocess.run(["cp", "-a", f"{service.inbox}/.", str(other_disk)], check=True)
    service.wrapper = with_mounts(["mount", "--bind", str(other_disk), str(service.inbox)])

    service.start()
    ten_scans(service)

    assert len(service.records()) == 3
    assert service.log("job.duplicate") == service.log("job.renamed") == []
    assert len(service.log("job.already_done")) <= 3, "said once for each, not at each listing"
    data = picture(seed_of("new"))
    for name, content in (("new.png.mask.png", mask()), ("new.png", data)):
        (other_disk / f".{name}").write_bytes(content)
        os.rename(other_disk / f".{name}", other_disk / name)  # noqa: PTH104 - reads as what it is
    service.expect("new.png", data, mask())
    service.wait_record("new.png")
    assert sorted(source_of(record) for record in service.results()) == [*names, "new.png"]
