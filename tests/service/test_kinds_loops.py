"""Kinds E: folders that show in each other, own products, renames, a log that is heard: none makes a loop."""

from __future__ import annotations

import json
from itertools import combinations, product
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import ENGINE, mask, picture, relative_files, wait_until
from tests.service.namespaces import inside, with_mounts
from tests.service.starts import configuration, start_each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.service.harness import Service
    from tests.service.starts import Case

    NewService = Callable[..., Service]

KEYS: Final = ("inbox", "outbox", "archive", "state_dir")
PAIRS: Final = tuple(combinations(KEYS, 2))


def folders_of(service: Service) -> dict[str, str]:
    """Four folders that are apart, and exist."""
    folders = {key: service.root / "apart" / key for key in KEYS}
    for folder in folders.values():
        (folder / "sub").mkdir(parents=True, exist_ok=True)
    return {key: str(folder) for key, folder in folders.items()}


def spelled(service: Service, path: str, way: str) -> str:
    """The same folder by another name."""
    if way == "by a link":
        link = service.root / f"link-{len(list(service.root.iterdir()))}"
        link.symlink_to(path)
        return str(link)
    relative = path.removeprefix(f"{service.root}/")
    return {
        "as it is": path,
        "relative": relative,
        "through ..": f"apart/../{relative}",
        "with slashes": f"{path.replace('/apart/', '//apart/./')}//",
        "in the home folder": f"~/{relative}",
        "by a variable": f"$HOME/{relative}",
    }[way]


WAYS: Final = (
    *("as it is", "by a link", "relative", "through ..", "with slashes", "in the home folder"),
    "by a variable",
)
NESTED: Final[Mapping[str, tuple[str, str]]] = {
    "the same": ("", ""),
    "the second in the first": ("", "/sub"),
    "the first in the second": ("/sub", ""),
}


EVERY_WAY: Final = tuple(product(PAIRS, NESTED, WAYS, ("run", "once")))


@pytest.mark.kind("E1", "E3", "PD14")
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param([EVERY_WAY[number] for number in range(0, len(EVERY_WAY), 11)], id="some"),
        pytest.param(EVERY_WAY, id="every", marks=pytest.mark.soak),
    ],
)
def test_folders_that_contain_each_other_are_refused_however_they_are_spelled(
    new_service: NewService, asked: Sequence[tuple[tuple[str, str], str, str, str]]
) -> None:
    service = new_service()
    cases: list[Case] = []
    for (first, second), how, way, command in asked:
        folders = folders_of(service)
        shared, (above, below) = folders[first], NESTED[how]
        folders[first] = shared + above
        folders[second] = spelled(service, shared + below, way)
        cases.append(([command, *configuration(service, folders)], {}))

    for ((first, second), *_), answer in zip(asked, start_each(service, cases), strict=True):
        assert answer["code"] == 78, answer
        assert f"{first} and {second} overlap: {service.root / 'apart' / first}" in answer["err"], answer
        assert "to do:" in answer["err"], answer
    assert not (service.root / "apart" / "state_dir" / "watcher.lock").exists(), "a refusal makes nothing"


@pytest.mark.kind("E1", "E3")
def test_folders_from_the_environment_and_from_flags_are_refused_too_and_both_paths_named(
    new_service: NewService,
) -> None:
    service = new_service()
    folders = folders_of(service)
    inside = f"{folders['inbox']}/sub"
    named = configuration(service, folders)
    refused = [
        *(
            (command, f"WATCHER_{key.upper()}", key, inside)
            for command, key in product(("run", "once"), KEYS[1:])
        ),
        ("run", "--outbox", "outbox", inside),
        ("once", "--outbox", "outbox", f"apart/../{inside.removeprefix(f'{service.root}/')}/"),
        ("run", "--state-dir", "state_dir", inside),
        ("once", "--state-dir", "state_dir", f"{inside}/not/yet/there"),
    ]
    cases = [
        ([command, *named, *([] if where.startswith("WATCHER_") else [where, path])], {where: path})
        for command, where, key, path in refused
    ]

    for (_, _, key, path), answer in zip(refused, start_each(service, cases), strict=True):
        assert answer["code"] == 78, answer
        whole = str(service.root / path).replace("apart/../", "").rstrip("/")
        assert f"inbox and {key} overlap: {folders['inbox']} contains {whole}" in answer["err"], answer


@pytest.mark.kind("E1")
def test_folders_that_only_look_alike_are_accepted(new_service: NewService) -> None:
    """Without this the refusals above would prove nothing."""
    service = new_service()
    folders = folders_of(service)
    folders["outbox"] = f"{folders['inbox']}-clean"
    folders["archive"] = f"{folders['inbox']}/../inbox.archive"
    for name in ("inbox-clean", "inbox.archive", "mine"):
        (service.root / "apart" / name).mkdir()
    case: Case = (["once", *configuration(service, folders, *ENGINE)], {})
    inbox, mine = folders["inbox"], str(service.root / "apart" / "mine")
    foreign = ["mount", "--bind", mine, f"{inbox}/sub"]
    shown = ["mount", "--bind", folders["outbox"], f"{inbox}/sub"]
    hidden = ["mount", "-t", "tmpfs", "none", inbox]

    for mounts in ((), (foreign,), (shown, hidden)):
        (answer,) = start_each(service, [case], *mounts)
        assert answer["code"] == 0, (mounts, answer)


MOUNTED: Final[Mapping[str, tuple[str, str]]] = {
    "one folder mounted on the other": ("{first} {second}", "is the same folder as"),
    "the first shows a folder of the second": ("{second}/sub {first}", "is inside"),
    "the second shows a folder of the first": ("{first}/sub {second}", "contains"),
    "the second mounted in the first": ("{second} {first}/sub", "contains"),
    "the first mounted in the second": ("{first} {second}/sub", "is inside"),
    "a part of the second mounted in the first": (
        "{second}/sub {first}/sub",
        "shows, through a mount, a part of",
    ),
}


EVERY_MOUNT: Final = tuple(product(MOUNTED, PAIRS))


@pytest.mark.kind("E1", "E3")
@pytest.mark.parametrize(
    ("how", "pair"),
    [
        pytest.param(how, pair, id=f"{how}: {' '.join(pair)}", marks=() if at % 7 == 0 else pytest.mark.soak)
        for at, (how, pair) in enumerate(EVERY_MOUNT)
    ],
)
def test_folders_that_a_mount_shows_in_each_other_are_refused(
    new_service: NewService, how: str, pair: tuple[str, str]
) -> None:
    service = new_service()
    folders = folders_of(service)
    first, second = pair
    bind, relation = MOUNTED[how]
    shown = [part.format(first=folders[first], second=folders[second]) for part in bind.split()]
    named = configuration(service, folders)

    answers = start_each(
        service, [(["run", *named], {}), (["once", *named], {})], ["mount", "--bind", *shown]
    )

    for answer in answers:
        assert answer["code"] == 78, answer
        told = f"{first} and {second} overlap: {folders[first]} {relation} {folders[second]}"
        assert told in answer["err"], answer


IGNORING_CASE: Final = "from watcher.adapters import folders; folders._ignores_case = lambda folder: True"


@pytest.mark.kind("E1")
def test_letter_case_counts_where_the_file_system_says_so(new_service: NewService) -> None:
    """No file system that ignores case can be made here: the answer whether this one does is planted."""
    service = new_service()
    folders = {**folders_of(service), "archive": "apart/New", "state_dir": "apart/new/state"}
    case: Case = (["once", *configuration(service, folders, *ENGINE)], {})
    (apart,) = start_each(service, [case])
    assert apart["code"] == 0, apart
    (service.root / "apart" / "new").rename(service.root / "apart" / "aside")

    (answer,) = start_each(service, [case], before=IGNORING_CASE)

    assert answer["code"] == 78, answer
    assert "archive and state_dir overlap" in answer["err"]


@pytest.mark.kind("E1")
def test_an_outbox_that_is_mounted_in_the_inbox_later_blocks_and_makes_no_loop(
    new_service: NewService,
) -> None:
    """With `unmarked = "copy"` each result would be a picture, and its copy the next one, without end."""
    service = new_service('unmarked = "copy"', "[arrivals]", "quiet_s = 0.1", "rescan_s = 0.2")
    service.wrapper = with_mounts(["true"])
    (service.inbox / "hole").mkdir()
    service.start()
    service.put("before.png", picture(801))
    result = service.output_of(service.wait_record("before.png")).read_bytes()
    inside(service.pid, "mount", "--bind", str(service.outbox), str(service.inbox / "hole"))
    service.put("after.png", picture(802))

    (blocked,) = service.wait_log("publish.blocked")
    assert "the inbox by now contains the outbox" in blocked["reason"]
    wait_until(lambda: "contains" in (service.status()["blocked"] or ""), "a status that says so")
    wait_until(lambda: len(service.jobs()) == 3, "the result that shows in the inbox")
    assert service.outputs() == {"before.png"}
    told = service.run("status")
    assert "takes no results" in told.stdout

    inside(service.pid, "umount", str(service.inbox / "hole"))

    assert service.wait_record("after.png")["attempt"] == 1
    service.wait_log("publish.resumed")
    shown = wait_until(
        lambda: [job for job in service.jobs() if "hole" in job.source and job.is_final], "its end"
    )
    if [job.state for job in shown] == ["unchanged"]:  # it was read before it went: then it counts, once
        service.expect("hole/before.png", result)
    service.assert_sound()


# --- own products ------------------------------------------------------------------------------------------


@pytest.mark.kind("E2")
def test_everything_that_the_program_itself_writes_is_no_picture_in_the_inbox(
    new_service: NewService,
) -> None:
    """Somebody restores a backup of the outbox and the state folder into the inbox."""
    service = new_service("[log]", 'level = "debug"', "[arrivals]", "quiet_s = 0.1", "rescan_s = 0.1").start()
    service.put("good.png", picture(810))
    service.put("held.png", picture(811), b"", expect=False)
    service.put("bad.png", b"no picture" * 100, mask(), expect=False)
    service.wait_record("good.png")
    service.wait_note("held", "held.png")
    service.wait_note("failed", "bad.png")
    results = service.outputs()
    for folder in (service.outbox, service.state):
        for path in relative_files(folder) - results:
            content = (folder / path).read_bytes()
            service.place(f"backup/{path}", content)
            service.place(f"backup/{path}.mask.png", mask())
    for staged in ("0123abcd-1.1", ".watcher/staging/0123abcd-1.1", ".watcher/arriving", ".watcher/a.png"):
        service.place(f"backup/{staged}", picture(812))

    scans = len(service.wait_log("inbox.rescanned"))
    service.wait_log("inbox.rescanned", count=scans + 10)

    assert {job.source for job in service.jobs()} == {"good.png", "held.png", "bad.png"}
    service.assert_sound()


@pytest.mark.soak
@pytest.mark.kind("E1", "E2", "PD14")
def test_a_result_that_is_moved_into_the_inbox_is_copied_once_where_unmarked_pictures_are(
    new_service: NewService,
) -> None:
    settings = (
        'unmarked = "copy"',
        "[log]",
        'level = "debug"',
        "[arrivals]",
        "quiet_s = 0.1",
        "rescan_s = 0.1",
    )
    service = new_service(*settings).start()
    service.put("a.png", picture(820))
    result = service.output_of(service.wait_record("a.png")).read_bytes()
    for name in ("result.png", "again/result.png"):
        service.put(name, result, b"")
        record = service.wait_record(name)
        assert record["outcome"] == "unchanged"
        assert service.output_of(record).read_bytes() == result

    scans = len(service.log("inbox.rescanned"))
    service.wait_log("inbox.rescanned", count=scans + 10)

    assert service.outputs() == {"a.png", "result.png", "again/result.png"}
    service.assert_sound()


# --- renames -----------------------------------------------------------------------------------------------


@pytest.mark.kind("E4")
@pytest.mark.parametrize("first", ["the removal", "the addition"])
def test_a_rename_that_comes_as_an_addition_and_a_removal_is_no_new_run(service: Service, first: str) -> None:
    """Sync clients do so on the other devices; the bytes are new files there, with other inodes and times."""
    old, new = f"renamed/{first}.png", f"renamed/{first} now.png"
    data = picture(830 if first == "the removal" else 831)
    service.put(old, data)
    done = service.wait_record(old)
    if first == "the removal":
        remove_pair(service, old)
        service.put(new, data, expect=False)
        service.wait_log("job.renamed", now=new)
        assert service.records_of(new, outcome=()) == []
    else:  # as long as both are there they are two pictures with one content
        service.put(new, data)
        assert service.wait_record(new)["duplicate_of"] == done["job"]
        remove_pair(service, old)

    service.assert_sound()
    assert len(service.records_of(old, outcome=())) == 1


def remove_pair(service: Service, name: str) -> None:
    for path in (name, f"{name}.mask.png"):
        (service.inbox / path).unlink()


# --- the log -----------------------------------------------------------------------------------------------


@pytest.mark.kind("E5")
def test_a_log_or_a_cache_in_the_inbox_is_refused(new_service: NewService) -> None:
    service = new_service()
    folders = folders_of(service)
    inbox = folders["inbox"]
    (service.root / "link").symlink_to(inbox)
    log = [f"{inbox}/watcher.log", f"{inbox}/sub/new/../w.log", "link/sub/w.log", "apart/inbox/w.log"]
    cases = [
        *(
            ([c, *configuration(service, folders, "[log]", f'file = "{f}"')], {})
            for f in log
            for c in ("run", "once")
        ),
        (["run", *configuration(service, folders)], {"WATCHER_LOG__FILE": log[0]}),
        (["run", *configuration(service, folders)], {"WATCHER_MODEL__CACHE_DIR": f"{inbox}/sub/models"}),
        (["run", *configuration(service, folders)], {"WATCHER_MODEL__CACHE_DIR": inbox}),
    ]

    answers = start_each(service, cases)

    for answer, key in zip(answers, [*["log.file"] * 9, *["model.cache_dir"] * 2], strict=True):
        assert answer["code"] == 78, answer
        assert f"{key} lies in the inbox" in answer["err"], answer
        assert inbox in answer["err"], answer
    assert relative_files(service.root / "apart" / "inbox") == set(), "nothing was written there"
    outside = configuration(service, folders, *ENGINE, "[log]", f'file = "{inbox}.log"')
    assert start_each(service, [(["once", *outside], {})])[0]["code"] == 0


@pytest.mark.kind("E5")
def test_the_most_talkative_log_says_nothing_of_single_events_and_is_quiet_when_nothing_happens(
    new_service: NewService,
) -> None:
    """With its library's own lines, a log that some other program copies into the inbox would feed itself."""
    file = 'file = "{root}/outbox-of-logs/watcher.log"'
    service = new_service("[log]", 'level = "debug"', file, "[arrivals]", "quiet_s = 0.1").start()
    service.put("a.png", picture(840))
    service.wait_record("a.png")
    for number in range(200):
        service.place(f"notes/{number}.txt", b"not a picture")
    service.put("b.png", picture(841))
    service.wait_record("b.png")

    lines = service.log()
    assert {line["level"] for line in lines} & {"debug"}, "our own are there"
    assert [line for line in lines if line.get("logger", "watcher") != "watcher"] == []
    about_notes = [line for line in lines if "notes/" in json.dumps(line)]
    assert about_notes == []
    written = json.loads((service.root / "outbox-of-logs" / "watcher.log").read_bytes().splitlines()[0])
    assert written["event"] == "service.started"
    service.assert_sound()
