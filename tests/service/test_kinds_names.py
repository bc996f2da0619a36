"""Names and trees: F3 to F5, F7 to F10, and outboxes whose disks take other names than the inbox's."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from typing import TYPE_CHECKING

import pytest

from tests.service.harness import cpu_s, encoded, mask, picture, pixels, relative_files, seed_of, wait_until
from tests.service.odd_disk import EXFAT, FAT, MAC, on_odd_disk
from watcher import settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.service.harness import Service
    from tests.service.odd_disk import Rules

    NewService = Callable[..., Service]

NAME_BYTES = 255
LOUD = ("info", "warning", "error")


def log_lines(service: Service) -> int:
    return len(service.log_file.read_bytes().splitlines())


def said_since(service: Service, lines: int) -> list[dict[str, str]]:
    """What the service said, at info and above, after so many lines."""
    entries = [json.loads(line) for line in service.log_file.read_bytes().splitlines()[lines:]]
    return [entry for entry in entries if entry["level"] in LOUD]


# --- two names, two results --------------------------------------------------------------------------------

TWINS = (
    ("stem/a.jpg", "stem/a.png"),
    ("x/scan.png", "y/scan.png"),
    ("A.png", "a.png"),
    (unicodedata.normalize("NFC", "é.png"), unicodedata.normalize("NFD", "é.png")),
    ("a/b.png", "a b.png"),
    ("v.png", "v (2).png"),
)


@pytest.mark.kind("F3", "F4", "PA14")
@pytest.mark.parametrize("names", TWINS, ids=" and ".join)
def test_names_that_are_nearly_one_have_a_result_each(service: Service, names: tuple[str, str]) -> None:
    for name in names:
        container = "JPEG" if name.endswith("jpg") else "PNG"
        service.put(f"twins/{name}", encoded(pixels(seed_of(f"twins/{name}")), container))

    outputs = [service.wait_record(f"twins/{name}")["output"] for name in names]

    assert outputs == [f"twins/{name}" for name in names], "this outbox can hold both names"


FOLDED = ("A.png", "a.png", "é.png", unicodedata.normalize("NFD", "é.png"), "É.png")
"""Two names on a disk that folds them, of five files."""
REFUSED = ("what?.png", 'a:b*"<>|.png', "12:30/ok.png", "tab\there.png", os.fsdecode(b"latin-\xe9.png"))


@pytest.mark.kind("F3", "F5")
@pytest.mark.parametrize(("rules", "conflict"), [(FAT, "version"), (MAC, "replace")], ids=["fat", "mac"])
def test_an_outbox_that_knows_fewer_names_overwrites_nothing_and_refuses_nothing(
    new_service: NewService, rules: Rules, conflict: str
) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1", "[output]", f'on_conflict = "{conflict}"')
    service.wrapper, _ = on_odd_disk(service.outbox, rules)
    for name in (*FOLDED, *REFUSED):
        service.put(name)
    service.place("held?.png", picture(1))
    service.put("bad:1?.png", b"no picture" * 50, mask(), expect=False)
    service.start()

    records = {name: service.wait_record(name) for name in (*FOLDED, *REFUSED)}
    note = service.wait_note("failed", "bad%3A1%3F.png" if rules.refuses else "bad:1?.png")
    service.wait_note("held", "held%3F.png" if rules.refuses else "held?.png")

    assert note["source"] == "bad:1?.png"
    assert {record["attempt"] for record in records.values()} == {1}
    assert service.log("publish.blocked") == [], (
        "a name that is refused is refused for ever: no reason to wait"
    )
    folded = {unicodedata.normalize("NFC", path).casefold() for path in service.outputs()}
    assert len(folded) == len(service.outputs()), "the disk would have shown one file for two"
    if rules.refuses:
        assert records["what?.png"]["output"] == "what%3F.png"
        assert records["12:30/ok.png"]["output"] == "12%3A30/ok.png"
        assert service.wait_log("outbox.name_escaped", source="what?.png")[0]["reason"]
    assert records[REFUSED[-1]]["output"] == "latin-%E9.png"
    service.put("bad:1?.png", picture(2))
    service.wait_no_note("failed", note["source"].replace(":", "%3A").replace("?", "%3F"))
    service.wait_no_note("failed", "bad:1?.png")
    service.assert_sound()

    for name in ("Dir/x.png", "dir/X.png"):  # one folder there: the record's spelling is not the disk's
        service.put(name, expect=False)
        service.wait_record(name)
    names = sorted(path for path in service.outputs() if path.casefold().startswith("dir/"))
    assert [path.casefold() for path in names] in (
        ["dir/x (2).png", "dir/x.png"],
        ["dir/x.png", "dir/x (2).png"],
    )
    assert len({path.split("/")[0] for path in names}) == 1


@pytest.mark.kind("F3", "F5")
def test_a_refused_name_survives_a_kill_between_its_seal_and_its_rename(new_service: NewService) -> None:
    """What the journal then has is a name that the disk does not take."""
    service = new_service("[arrivals]", "quiet_s = 0.1")
    service.wrapper, _ = on_odd_disk(service.outbox, EXFAT)
    for number in range(6):
        service.put(f"what?{number}.png")
    service.start(ready=False)
    service.wait_records(1)
    service.kill9()
    service.start()

    for number in range(6):
        assert service.wait_record(f"what?{number}.png")["output"] == f"what%3F{number}.png"
    service.assert_sound()


@pytest.mark.kind("F5", "PC16")
def test_names_as_long_as_they_can_be(service: Service) -> None:
    """The version, the note and the stage of such a name would be longer than a name can be."""
    stem = "x" * (NAME_BYTES - len(".png"))
    for number, last in enumerate("ab"):
        name = f"{stem[:-1]}{last}.png"
        service.place(f"long/masks/{name}", mask())
        service.place(f"long/{name}", picture(1000 + number))
        service.expect(f"long/{name}", picture(1000 + number), mask())
        assert service.wait_record(f"long/{name}")["output"] == f"long/{name}"
    name = f"{stem[:-1]}a.png"

    service.place(f"long/{name}", picture(1002))
    service.expect(f"long/{name}", picture(1002), mask())
    second = service.wait_record(f"long/{name}", count=2)
    assert second["output"] == f"long/{stem[:-4]} (2).png"

    service.place(f"long/{name}", b"broken" * 100)
    service.wait_record(f"long/{name}", outcome={"failed"})
    (note,) = wait_until(lambda: relative_files(service.outbox / "failed" / "long"), "a note of it")
    assert len(note) == NAME_BYTES
    assert note.startswith("x" * 200)


# --- odd names ---------------------------------------------------------------------------------------------

ODD = (
    "a b.png",
    "a(1).png",
    "'q'\"`.png",
    "$(id).png",
    "-rf.png",
    "a\nb.png",
    "a\r\x1b[31mred\x07.png",
    "a%s{}\\.png",
    os.fsdecode(b"\xff\xfe.png"),
    os.fsdecode(b"dir-\xe9/\xff.png"),
    "\u202egnp.exe\u202c.png",
    "a/ /b.png",
    "~home/a.png",
    "a...b/c..png",
    "*?[x].png",
    "Ünï/日本/🐈.PNG",
)


@pytest.mark.kind("F5", "PC16")
def test_odd_names_are_served_and_every_line_that_tells_of_them_is_one_line(service: Service) -> None:
    lines = log_lines(service)
    for name in ODD:
        service.put(f"odd/{name}")
    records = {name: service.wait_record(f"odd/{name}") for name in ODD}

    for name, record in records.items():
        assert service.output_of(record) == service.outbox / "odd" / name
        assert ("source_b64" in record) == any("\udc80" <= letter <= "\udcff" for letter in name)
        assert service.log("job.finished", job=record["job"])
    assert said_since(service, lines), "every line is JSON"
    listed = service.run("jobs", "--json", "--limit", "10000")
    assert {job["id"] for job in json.loads(listed.stdout)["jobs"]} >= {r["job"] for r in records.values()}
    shown = service.run("jobs", "--limit", "10000")
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout


@pytest.mark.kind("F5")
def test_odd_names_are_told_of_when_they_fail_and_can_be_retried(service: Service) -> None:
    names = [name for name in ODD if len(name.split("/")) == 1]
    for name in names:
        service.put(f"odd-bad/{name}", b"not a picture" * 40, mask(), expect=False)
    for name in names:
        service.wait_record(f"odd-bad/{name}", outcome={"failed"})
        assert service.wait_note("failed", f"odd-bad/{name}")["remedy"]

    asked = service.run("retry", "odd-bad/-rf.png", "odd-bad/a\nb.png", "--json")

    assert asked.returncode == 0, asked.stderr
    for name in ("-rf.png", "a\nb.png"):
        service.wait_record(f"odd-bad/{name}", outcome={"failed"}, count=2)


# --- trees -------------------------------------------------------------------------------------------------


@pytest.mark.kind("F7")
def test_links_lead_nowhere(service: Service) -> None:
    outside = service.root / "outside"
    outside.mkdir()
    (outside / "secret.png").write_bytes(picture(1100))
    (outside / "secret.png.mask.png").write_bytes(mask())
    tree = service.inbox / "links"
    lines = log_lines(service)
    tree.mkdir()
    links: dict[str, str | Path] = {
        "loop": "..",
        "self": ".",
        "etc": "/etc",
        "folder": outside,
        "dangling.png": "nowhere.png",
        "file.png": outside / "secret.png",
        "inside.png": "real.png",
    }
    for name, target in links.items():
        (tree / name).symlink_to(target)
    for name in ("dangling", "file", "inside"):
        service.place(f"links/{name}.png.mask.png", mask())
    service.put("links/real.png")

    service.wait_record("links/real.png")
    wait_until(lambda: told_links(service, lines) >= len(links), "a word about all links")
    for number in range(3):  # each folder makes a listing
        (tree / f"new-{number}").mkdir()
        service.put(f"links/new-{number}/a.png")
        service.wait_record(f"links/new-{number}/a.png")
    service.assert_sound()

    sources = {job.source for job in service.jobs() if job.source.startswith("links/")}
    assert sources == {"links/real.png", *(f"links/new-{number}/a.png" for number in range(3))}
    assert told_links(service, lines) == len(links), "each once, however often it is met"


def told_links(service: Service, lines: int) -> int:
    told = [entry for entry in said_since(service, lines) if entry["event"] == "inbox.links_ignored"]
    return sum(int(entry["count"]) for entry in told)


@pytest.mark.kind("F8")
def test_a_tree_that_is_deleted_while_it_is_served_ends_each_job_once(new_service: NewService) -> None:
    service = new_service("[arrivals]", "quiet_s = 0.1", faults="slow_item=0.15").start()
    names = [f"a/{'b/c/' * (number % 2)}{number}.png" for number in range(8)]
    (service.inbox / "stays").mkdir()
    for name in names:
        service.put(name, expect=False)
    service.wait_records(1)

    shutil.rmtree(service.inbox / "a")

    ends = {"done", "gone", "superseded"}  # superseded: its mask went first
    ended = {name: service.wait_record(name, outcome=ends)["outcome"] for name in names}
    assert "done" in ended.values(), "the deletion fell into the middle"
    assert set(ended.values()) & {"gone", "superseded"}, "the deletion fell into the middle"
    for name in names:
        if ended[name] == "done":
            service.expect(name, picture(seed_of(name)), mask())
    service.assert_sound()
    assert (service.inbox / "stays").is_dir(), "folders of the inbox are their owner's"
    assert service.status()["worker"]["restarts"] == 0

    # and it comes back: what was done is done, what was gone is served
    for name in names:
        service.put(name, expect=ended[name] != "done")
    for name in names:
        service.wait_record(name)
    service.assert_sound()


@pytest.mark.kind("F8")
def test_a_picture_that_was_read_before_its_tree_was_deleted_is_finished(service: Service) -> None:
    data, marked = picture(1200, 600, 500), mask(600, 500, (200, 200, 450, 400))
    worker = service.worker_pid()
    idle_s = cpu_s(worker)
    service.put("tree/of/big.png", data, marked)
    wait_until(lambda: cpu_s(worker) > idle_s + 0.3, "the worker to fill its hole")

    shutil.rmtree(service.inbox / "tree")

    assert not service.records_of("tree/of/big.png", outcome=()), (
        "the deletion came too late to mean anything"
    )
    assert service.wait_record("tree/of/big.png")["outcome"] == "done"


@pytest.mark.kind("F9")
def test_a_thousand_files_in_a_nas_own_folders_make_no_row_and_no_line(service: Service) -> None:
    lines = log_lines(service)
    for number in range(1000):
        folder = ("@eaDir", ".stversions", ".dropbox.cache", "#recycle", "a.png.download")[number % 5]
        path = service.inbox / f"nas/{'2026/' * (number % 3)}{folder}/IMG_{number}.png/THUMB.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"thumbnail")
        (path.parent.parent / f"{number}.png").write_bytes(b"thumbnail")
    service.put("nas/real.png")

    service.wait_record("nas/real.png")
    service.assert_sound()

    assert {job.source for job in service.jobs() if job.source.startswith("nas/")} == {"nas/real.png"}
    said = [entry["event"] for entry in said_since(service, lines)]
    assert set(said) == {"job.finished"}
    assert len(said) == 2, "the picture's, and the canary's"
    assert service.notes("failed") & {"nas"} == set()


@pytest.mark.kind("F10")
@pytest.mark.parametrize(
    "pattern", ["*", "**", "**/*", "*.png", "*.*", "**/*.png", "*[!~]", "^\\..*", "*.tmp$", ".*\\.tmp"]
)
def test_a_pattern_that_leaves_nothing_over_or_is_no_glob_is_refused(
    new_service: NewService, pattern: str
) -> None:
    service = new_service("[arrivals]", f"ignore = ['*.part', '{pattern}']")

    with pytest.raises(settings.ConfigurationError, match=r"arrivals\.ignore") as refused:
        settings.load(service.config)

    assert refused.value.remedy.startswith("set it to ")
    if pattern == "*":
        ran = service.run("run")
        assert ran.returncode == 78
        assert (
            'to do: set it to patterns for what is to be left alone: "*" matches nearly every' in ran.stderr
        )


@pytest.mark.kind("F10")
def test_patterns_that_mean_some_files_are_taken(new_service: NewService) -> None:
    taken = ["*.jpg", "photo*", "photo.png", "._*", ".*", "*.part", "tmp/**", "IMG_*", "*/**", "a+(b).png"]
    service = new_service("[arrivals]", f"ignore = {taken}")

    assert list(settings.load(service.config).arrivals.ignore) == taken
