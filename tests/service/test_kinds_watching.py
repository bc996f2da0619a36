"""Events that are missing and watches that are dead: the kinds C of `tests/service/kinds.py`, for real.

What a kernel, a file system or a library does is done by the real one wherever it can be: queues that
overflow, limits of a namespace, file systems that are unmounted, an overlay that is written to from below.
Where only a fault in the process itself will do, `planted` puts it into the service that is tested.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from watchdog.observers.inotify_c import InotifyConstants

from tests.service.harness import Service, cpu_s, mask, picture, seed_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.service.harness import Record

    NewService = Callable[..., Service]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify, /proc and namespaces are Linux'")

NEVER: Final = "rescan_s = 3000"
"""No listing comes to the rescue by itself."""
PROMPT_S: Final = 5.0
"""Much less than the time between two listings, much more than a notification takes."""

PROGRAM: Final = """
import os, random, runpy, sys, threading, time
from watcher.adapters import hearing, inbox, native_watch, pacing
from watcher.adapters.inbox import WatchedInbox
from watcher.adapters.native_watch import Change, Notice
{fault}
sys.argv = ["watcher", *sys.argv[4:]]
runpy.run_module("watcher", run_name="__main__", alter_sys=True)
"""


def planted(fault: str) -> list[str]:
    """A program that plants a fault in its own process and then is the service."""
    return [sys.executable, "-c", PROGRAM.replace("{fault}", textwrap.dedent(fault))]


def in_a_namespace(script: str) -> list[str]:
    """A program that runs the rest of its arguments as root of a namespace, after this script."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-e", "-c"]
    probe = subprocess.run([*command, "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip("this system lets nobody have a namespace of their own")
    return [*command, f'{script}\nexec "$0" "$@"']


def enter(service: Service, *command: str) -> None:
    """Run a command as root of the service's namespaces."""
    subprocess.run(
        ["nsenter", "--target", str(service.pid), "--user", "--mount", "--preserve-credentials", *command],
        check=True,
    )


@dataclass
class Elsewhere(Service):
    """A service whose inbox is a file system that only it sees."""

    entry: str = "inbox"
    """The folder, in its eyes, through which files get into the inbox."""

    def seen(self, path: str) -> Path:
        return Path(f"/proc/{self.pid}/root{self.root / self.entry}") / path

    def place(self, path: str, content: bytes) -> Path:
        target = self.seen(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}")
        aside.write_bytes(content)
        return aside.replace(target)


@pytest.fixture(scope="module")
def _listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = ('unmarked = "copy"', "[arrivals]", NEVER, "[log]", 'level = "debug"')
    service = Service(tmp_path_factory.mktemp("listening"), settings).start()
    yield service
    service.close()


@pytest.fixture
def listening(_listening: Service) -> Iterator[Service]:
    """A service that depends on its notifications, shared by the tests of this file, and left sound."""
    yield _listening
    _listening.assert_sound()
    troubles = ("inbox.watch_failed", "inbox.polling", "inbox.defect")
    assert not [line for event in troubles for line in _listening.log(event)]


FRAGILE: Final = """
pacing.STRIKES = 1000
pacing.REARM_MAX_S = 0.3
seen = set()

def on_file_notice(self, notice, now_ns, real=WatchedInbox._on_file_notice):
    if "odd" in notice.path and notice.path not in seen:
        seen.add(notice.path)
        raise KeyError(notice.path)
    real(self, notice, now_ns)

def handle_event(self, event, real=native_watch._ReportingInotify.handle_event):
    if b"killer" in event.name and event.name not in seen:
        seen.add(event.name)
        raise KeyError(event.name)
    real(self, event)

def overflow(self):
    while True:
        time.sleep(0.01)
        if os.path.exists("overflow"):
            ends = time.monotonic() + float(open("overflow").read())
            while time.monotonic() < ends:
                self._on_notice(Notice(Change.OVERFLOWED))
                time.sleep(0.01)
            os.remove("overflow")

def start(self, real=WatchedInbox.start):
    real(self)
    threading.Thread(target=overflow, args=(self,), daemon=True).start()

WatchedInbox.start = start
WatchedInbox._on_file_notice = on_file_notice
native_watch._ReportingInotify.handle_event = handle_event
"""
"""A handler that fails on some names, and a reader that dies of others, once for each name; and a kernel
whose queue overflows all the time for as many seconds as a file says."""


@pytest.fixture(scope="module")
def _fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = ('unmarked = "copy"', "[arrivals]", NEVER, "quiet_s = 0.1", "[log]", 'level = "debug"')
    service = Service(tmp_path_factory.mktemp("fragile"), settings, wrapper=planted(FRAGILE)).start()
    yield service
    service.close()


@pytest.fixture
def fragile(_fragile: Service) -> Iterator[Service]:
    """A service whose threads meet with everything, shared by the tests of this file, and left sound."""
    yield _fragile
    _fragile.assert_sound()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Callable[..., Elsewhere]]:
    made: list[Elsewhere] = []

    def make(*settings: str, **options: Any) -> Elsewhere:
        made.append(Elsewhere(tmp_path / "elsewhere", settings, **options))
        return made[-1]

    yield make
    for service in made:
        service.close()


def masks(service: Service) -> list[int]:
    """The inotify masks of a process, as the kernel has them, one a watch."""
    entries = Path(f"/proc/{service.pid}/fdinfo").iterdir()
    lines = (line for entry in entries for line in entry.read_text().splitlines())
    return [int(line.partition(" mask:")[2].split()[0], 16) for line in lines if line.startswith("inotify ")]


def listings(service: Service) -> list[Record]:
    return service.log("inbox.rescanned")


def at(line: Record) -> float:
    return datetime.fromisoformat(line["ts"]).timestamp()


# --- C1, C3, C4: more events than anybody can take ---------------------------------------------------------


def fill_the_queue(folder: Path) -> None:
    """Make more events than the kernel keeps for a process that is stopped; no picture is among them."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip(f"the kernel's queue holds {limit} events here: filling it would take too long")
    for number in range((limit + 4_000) // 3):  # beyond what it may have read before it stopped
        path = folder / f"junk-{number % 2}.txt"  # created, closed, deleted: three events
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        path.unlink()


@pytest.mark.kind("C1", "W49", "PD15")
def test_what_came_while_the_kernels_queue_was_full_is_found(listening: Service) -> None:
    service = listening
    os.kill(service.pid, signal.SIGSTOP)
    fill_the_queue(service.inbox)
    for number in range(40):
        service.put(f"lost-{number}.png", marked=b"")
    (service.inbox / "full-queue").mkdir()
    service.put("full-queue/lost.png", marked=b"")
    os.kill(service.pid, signal.SIGCONT)

    for name in (*(f"lost-{number}.png" for number in range(40)), "full-queue/lost.png"):
        service.wait_record(name)
    # the new folder was not told of, and is watched all the same
    service.put("full-queue/late.png", marked=b"")
    service.wait_record("full-queue/late.png", patience_s=PROMPT_S)


@pytest.mark.kind("C4")
@pytest.mark.parametrize(("seconds", "most"), [(2.0, 5), pytest.param(5.0, 8, marks=pytest.mark.soak)])
def test_overflow_upon_overflow_does_not_become_listing_upon_listing(
    fragile: Service, seconds: float, most: int
) -> None:
    before, used_s = len(listings(fragile)), cpu_s(fragile.pid)
    order = fragile.root / "overflow"
    (fragile.root / "aside/order").write_text(str(seconds))
    (fragile.root / "aside/order").rename(order)

    fragile.put(f"meanwhile-{seconds}.png", marked=b"")
    fragile.wait_record(f"meanwhile-{seconds}.png")
    wait_until(lambda: not order.exists(), "the last overflow")
    made, used_s = len(listings(fragile)) - before, cpu_s(fragile.pid) - used_s

    assert 2 <= made <= most
    assert used_s < 0.2 * seconds
    wait_until(lambda: len(listings(fragile)) > before + made, "a listing after the last overflow")


# --- C5: a rescue that needs rescue ------------------------------------------------------------------------


@pytest.mark.kind("C5")
def test_reading_the_inbox_makes_no_events_of_our_own(listening: Service) -> None:
    service = listening
    reading = InotifyConstants.IN_OPEN | InotifyConstants.IN_ACCESS | InotifyConstants.IN_CLOSE_NOWRITE
    before = len(masks(service))
    (service.inbox / "many").mkdir()
    for number in range(2_000):
        (service.inbox / f"many/{number}.txt").touch()
    service.put("many/a.png")
    service.wait_record("many/a.png")

    for number in range(3):
        count = len(listings(service))
        (service.inbox / f"many/folder-{number}").mkdir()
        wait_until(lambda count=count: len(listings(service)) > count, "a listing")  # type: ignore[misc]  # the default binds the loop variable
    count = len(listings(service))
    service.assert_sound()  # lists, looks, hashes

    assert len(masks(service)) == before + 4
    assert all(mask & reading == 0 for mask in masks(service))
    assert len(listings(service)) == count


# --- C6, C9, C14: a root that is away ----------------------------------------------------------------------


def is_away(service: Service) -> bool:
    return service.status().get("state") == "inbox_lost"


@pytest.mark.kind("C6", "C9", "C14", "H4")
@pytest.mark.parametrize(
    ("observer", "ways"), [("native", ["renamed", "deleted"]), ("polling", ["renamed"])], ids=str
)
def test_a_root_that_goes_and_comes_back_is_watched_again(
    new_service: NewService, observer: str, ways: list[str]
) -> None:
    service = new_service(
        "[arrivals]",
        NEVER,
        f'observer = "{observer}"',
        'ignore = ["drafts"]',
        "quiet_s = 0.1",
        wrapper=planted("inbox.POLL_S = 0.2"),
    ).start()
    service.put("before.png")
    service.wait_record("before.png")
    away = service.root / "away"
    for count, way in enumerate(ways, start=1):
        left_s = time.time()
        if way == "renamed":
            service.inbox.rename(away)
        else:
            shutil.rmtree(service.inbox)
        lost = service.wait_log("inbox.lost", count=count)[-1]
        assert at(lost) - left_s < PROMPT_S / 2
        wait_until(lambda: is_away(service), "a status that says so")
        if way == "renamed":
            time.sleep(1.2)  # a check of the root later it is away still
            assert is_away(service)
            away.rename(service.inbox)
        else:
            service.inbox.mkdir()
        service.put(f"after/some/folders-{way}/a.png")
        service.wait_record(f"after/some/folders-{way}/a.png", patience_s=PROMPT_S)
        assert len(service.log("inbox.found")) == count + 1

    service.place("drafts/a.png", picture(1))
    service.put("new/folder/late.png")
    service.wait_record("new/folder/late.png", patience_s=PROMPT_S)
    service.assert_sound()
    assert len(service.log("inbox.lost")) == len(ways)
    assert len(service.records_of("before.png", outcome=())) == 1


# --- C7: a root that is unmounted --------------------------------------------------------------------------


@pytest.mark.kind("C7", "H4")
def test_a_root_that_is_unmounted_and_mounted_again_is_watched_again(
    elsewhere: Callable[..., Elsewhere],
) -> None:
    service = elsewhere("[arrivals]", NEVER, "quiet_s = 0.1")
    mount = ("mount", "-t", "tmpfs", "inbox", str(service.inbox))
    service.wrapper = in_a_namespace(" ".join(mount))
    service.start()
    service.put("before.png")
    service.wait_record("before.png")
    kept = service.seen("before.png").read_bytes()

    enter(service, "umount", str(service.inbox))
    left_s = time.time()
    (lost,) = service.wait_log("inbox.lost")
    wait_until(lambda: is_away(service), "a status that says so")
    time.sleep(1.2)  # a check of the root later: the empty folder below is not the inbox
    assert is_away(service)
    assert at(lost) - left_s < PROMPT_S / 2
    assert "mounted" in lost["reason"]

    enter(service, *mount)
    service.wait_log("inbox.found", count=2)
    service.place("before.png.mask.png", mask())
    service.place("before.png", kept)  # another inode on another device, the same bytes
    service.put("after.png")
    service.wait_record("after.png", patience_s=PROMPT_S)
    service.assert_sound()
    assert len(service.records_of("before.png", outcome=())) == 1


# --- C10, C15: the program's own threads -------------------------------------------------------------------


def drop_bursts(service: Service, count: int) -> None:
    """Put so many files there in random bursts; some cost the handler an error, or the reader its life."""
    chance = random.Random(15)
    left = [f"{('odd', 'killer', 'plain')[min(n % 10, 2)]}-{n}-of-{count}.png" for n in range(count)]
    while left:
        for name in left[: chance.randint(1, 12)]:
            service.put(name, marked=b"")
            left.remove(name)
        time.sleep(chance.uniform(0.0, 0.15))


@pytest.mark.kind("C10", "C15")
@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.soak)])
def test_what_raises_in_a_handler_or_kills_a_reader_costs_no_file(fragile: Service, count: int) -> None:
    before, failed_before = len(fragile.results()), len(fragile.log("inbox.watch_failed"))
    bad = {f"text-{count}.png": b"this is no picture", f"bytes-{count}.png": b"\xff" * 1000}
    for name, content in bad.items():
        fragile.put(name, content, marked=b"", expect=False)
    fragile.put(f"odd-alone-{count}.png", marked=b"")
    fragile.wait_record(f"odd-alone-{count}.png", patience_s=PROMPT_S)
    assert len(fragile.log("inbox.watch_failed")) == failed_before, "no watch dies of what a handler raises"

    drop_bursts(fragile, count)

    fragile.wait_records(before + 1 + count)
    for name in bad:
        assert fragile.wait_note("failed", name)["reason"]
    assert fragile.log("inbox.defect")
    failed = len(fragile.log("inbox.watch_failed"))
    assert failed > failed_before
    fragile.put(f"killer-alone-{count}.png", marked=b"")
    fragile.wait_record(f"killer-alone-{count}.png")
    assert len(fragile.log("inbox.watch_failed")) == failed + 1
    assert len(fragile.log("inbox.found")) == len(fragile.log("inbox.watch_failed")) + 1
    # and the last watch is alive: no listing is to come
    fragile.put(f"last-of-{count}.png", marked=b"")
    fragile.wait_record(f"last-of-{count}.png", patience_s=PROMPT_S)


# --- C11, C12, C13: folders that come and go ---------------------------------------------------------------


def churn(folder: Path, *, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        (folder / "a/b").mkdir(parents=True)
        (folder / "a/x.txt").touch()
        (folder / "a").rename(folder / "c")
        folder.rename(folder.with_name(f"{folder.name}-moved"))
        shutil.rmtree(folder.with_name(f"{folder.name}-moved"))


@pytest.mark.kind("C11")
@pytest.mark.parametrize("seconds", [1.5, pytest.param(60.0, marks=pytest.mark.soak)])
def test_a_swarm_of_folders_blinds_nobody(service: Service, seconds: float) -> None:
    threads = [
        threading.Thread(target=churn, args=(service.inbox / f"churn-{number}",), kwargs={"seconds": seconds})
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    name = f"after-the-swarm-{seconds}/a/b/last.png"
    service.put(name)
    service.wait_record(name)

    service.put(name.replace("last", "next"))
    service.wait_record(name.replace("last", "next"), patience_s=PROMPT_S)
    assert not service.log("inbox.watch_failed")
    assert not service.log("inbox.defect")
    assert not service.log("inbox.polling")


@pytest.mark.kind("C12", "C13")
@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_folder_that_comes_whole_is_served_with_what_comes_into_it_later(
    service: Service, how: str
) -> None:
    name = f"whole-{how}"
    pack = service.root / name
    for file in ("1.png", "2.png", "deep/er/3.png"):
        path = pack / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(seed_of(f"{name}/{file}")))
        path.with_name(f"{path.name}.mask.png").write_bytes(mask())
        service.expect(f"{name}/{file}", path.read_bytes(), mask())

    if how == "moved":
        pack.rename(service.inbox / name)
    else:
        subprocess.run(["cp", "-r", pack, service.inbox], check=True)

    for file in ("1.png", "2.png", "deep/er/3.png"):
        service.wait_record(f"{name}/{file}", patience_s=2 * PROMPT_S)
    for file in ("late.png", "deep/er/late.png"):
        service.put(f"{name}/{file}")
        service.wait_record(f"{name}/{file}", patience_s=PROMPT_S)


# --- C16: no events at all ---------------------------------------------------------------------------------

IMPATIENT: Final = """
hearing.CHECK_S = inbox.CHECK_S = 0.2
inbox.PROBATION_RESCAN_S = 0.2
pacing.NATIVE_AGAIN_S = 1.0
"""
"""What takes a minute, and then ten, takes a second."""

OVERLAY: Final = """
mount -t tmpfs below '{root}/below'
mkdir '{root}/below/lower' '{root}/below/upper' '{root}/below/work'
cd '{root}/below'
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work '{root}/inbox'
cd '{root}'
"""


@pytest.mark.kind("C16", "C11", "W49")
def test_a_file_system_that_sends_no_events_is_found_out_and_polled(
    elsewhere: Callable[..., Elsewhere],
) -> None:
    """An overlay that is written to from below: its watch is armed, alive, and never told of anything."""
    service = elsewhere(
        "[arrivals]",
        "rescan_s = 0.3",
        "quiet_s = 0.1",
        "[log]",
        'level = "debug"',
        entry="below/upper",
    )
    (service.root / "below").mkdir()
    overlay = in_a_namespace(OVERLAY.replace("{root}", str(service.root)))
    if subprocess.run([*overlay, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody mount an overlay of their own")
    service.wrapper = [*overlay, *planted(IMPATIENT)]
    service.start()

    for number in range(3):
        service.wait_log("inbox.found", count=number + 1)
        quiet_listing(service)
        service.put(f"{number}.png")
        service.wait_record(f"{number}.png")
        wait_until(
            lambda number=number: len(failures(service)) > number,  # type: ignore[misc]  # the default binds the loop variable
            "the watch to be found deaf",
        )

    assert [line["event"] for line in failures(service)[:3]] == [
        "inbox.watch_failed",
        "inbox.watch_failed",
        "inbox.polling",
    ]
    assert all("no notification" in line["reason"] for line in failures(service))
    assert failures(service)[2]["remedy"]
    # it is polled now; when notifications are tried again, once deaf is enough
    service.wait_log("inbox.found", mode="native", count=4)
    quiet_listing(service)
    service.put("again.png")
    service.wait_record("again.png")
    service.wait_log("inbox.polling", count=2)
    assert len(failures(service)) == 4
    service.assert_sound()


def quiet_listing(service: Service) -> None:
    """Wait until the inbox was listed once more: what comes later is new to the watch."""
    seen = len(listings(service))
    wait_until(lambda: len(listings(service)) > seen + 1, "two listings")


def failures(service: Service) -> list[Record]:
    return [*service.log("inbox.watch_failed"), *service.log("inbox.polling")]


# --- C17: limits -------------------------------------------------------------------------------------------


@pytest.mark.kind("C17")
def test_a_watch_limit_means_polling_one_line_and_a_way_back(new_service: NewService) -> None:
    """A real limit of the kernel: of the namespace that the service lives in."""
    service = new_service("[arrivals]", NEVER, "quiet_s = 0.1")
    for number in range(5):
        (service.inbox / f"folder-{number}").mkdir()
    limit = "/proc/sys/user/max_inotify_watches"
    service.wrapper = [*in_a_namespace(f"echo 3 > {limit}"), *planted("pacing.NATIVE_AGAIN_S = 2.0")]
    service.start()
    (found,) = service.wait_log("inbox.found")
    assert found["mode"] == "polling"
    service.put("folder-4/a.png")
    service.wait_record("folder-4/a.png", patience_s=PROMPT_S)

    enter(service, "sh", "-c", f"echo 1000 > {limit}")
    service.wait_log("inbox.found", mode="native")
    service.put("folder-4/b.png")
    service.wait_record("folder-4/b.png", patience_s=PROMPT_S)

    service.assert_sound()
    assert len(masks(service)) == 6
    (told,) = [line for line in service.log() if line["level"] == "warning"]
    assert told["event"] == "inbox.polling"
    assert "fs.inotify.max_user_watches" in told["remedy"]
    assert "limit" in told["reason"]


# --- C18: half a second for every file that leaves ---------------------------------------------------------


@pytest.mark.kind("C18")
def test_a_file_that_is_moved_out_holds_up_nobody(listening: Service) -> None:
    service = listening
    waits_ms = []
    for number in range(12):
        leaver, next_one = f"leaver-{number}.txt", f"next-{number}.png"
        service.place(leaver, b"moved out")
        aside = service.root / "aside" / next_one
        aside.write_bytes(picture(seed_of(next_one)))
        service.expect(next_one, aside.read_bytes())

        (service.inbox / leaver).rename(service.root / "aside" / leaver)
        moved_s = time.time()
        aside.rename(service.inbox / next_one)

        (settled,) = service.wait_log("file.settled", path=next_one)
        waits_ms.append((at(settled) - moved_s) * 1e3)
    assert statistics.median(waits_ms) < 100, waits_ms


# --- C19: events that say something else -------------------------------------------------------------------

SHUFFLED: Final = """
kinds = [kind for kind in Change if kind.name.startswith("FILE_")]
chance = random.Random(19)
lock, waiting = threading.Lock(), []

def on_notice(self, notice, real=WatchedInbox._on_notice):
    with lock:
        if not waiting:
            threading.Timer(0.05, deliver, (self, real)).start()
        waiting.append(notice)

def deliver(self, real):
    with lock:
        notices = [notice for notice in waiting for _ in range(chance.randint(1, 3))]
        waiting.clear()
    chance.shuffle(notices)
    for notice in notices:
        is_of_file = notice.change in kinds
        real(self, Notice(chance.choice(kinds), notice.path) if is_of_file else notice)

WatchedInbox._on_notice = on_notice
"""
"""Whatever is told of a file is told late, out of order, up to three times, and as something else."""


@pytest.mark.kind("C19")
def test_events_that_are_shuffled_doubled_and_mislabelled_change_nothing(new_service: NewService) -> None:
    service = new_service("[arrivals]", NEVER, "quiet_s = 0.2", wrapper=planted(SHUFFLED)).start()
    names = [f"{number}.png" for number in range(8)]
    for number, name in enumerate(names):
        service.put(name, first=("mask", "picture")[number % 2])
        if number % 3 == 0:
            (service.inbox / f"fleeting-{number}.png").write_bytes(picture(number))
            (service.inbox / f"fleeting-{number}.png").unlink()
    for name in names:
        service.wait_record(name)

    (service.inbox / names[0]).unlink()
    (service.inbox / f"{names[0]}.mask.png").rename(service.inbox / "late.png.mask.png")
    service.place("late.png.part", picture(190)).rename(service.inbox / "late.png")
    service.expect("late.png", picture(190), mask())
    service.put(names[1], picture(191))
    (service.inbox / names[2]).unlink()
    service.put("last.png")

    service.wait_record("late.png")
    service.wait_record(names[1], count=2)
    service.wait_record("last.png")
    service.assert_sound()
    assert not [job for job in service.jobs() if job.source.startswith("fleeting")]


# --- C20: a huge tree that is ignored ----------------------------------------------------------------------


def fill(folders: Iterable[Path], count: int) -> None:
    """Files by the thousand: links to one, which are made quickly."""
    for folder in folders:
        folder.mkdir(parents=True)
        first = folder / "first.png"
        first.write_bytes(b"x")
        for number in range(count):
            os.link(first, folder / f"{number}.png")


@pytest.mark.kind("C20", "F9")
@pytest.mark.parametrize(
    ("observer", "count"), [("polling", 3_000), pytest.param("native", 25_000, marks=pytest.mark.soak)]
)
def test_a_huge_ignored_tree_costs_nothing(new_service: NewService, observer: str, count: int) -> None:
    service = new_service(
        "[arrivals]",
        f'observer = "{observer}"',
        "rescan_s = 0.5",
        "quiet_s = 0.1",
        'ignore = ["node_modules"]',
        "[log]",
        'level = "debug"',
    )
    ignored = ("@eaDir", "album/@eaDir", ".stversions/deep", "album/node_modules/deep")
    fill((service.inbox / folder for folder in ignored), count)
    service.start()

    service.put("album/a.png")
    service.wait_record("album/a.png", patience_s=PROMPT_S)
    seen = len(listings(service))
    wait_until(lambda: len(listings(service)) > seen + 2, "some listings")

    assert statistics.median(line["took_ms"] for line in listings(service)) < 20
    assert len(masks(service)) == (2 if observer == "native" else 0)
    service.assert_sound()
    assert {job.source for job in service.jobs()} <= {name for name, _, _ in service.expected}
