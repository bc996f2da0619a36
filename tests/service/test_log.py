"""What a real service says in its log: little on a healthy day, nothing that is not its business."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.service.harness import PATIENCE_S, Service, is_alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    NewService = Callable[..., Service]

QUICK: Final = ("[arrivals]", "quiet_s = 0.1")
SECRET: Final = "tok-5e7e1f00d-sentinel"  # noqa: S105 - made up, to be looked for
OUTSIDE: Final = "elsewhere-sentinel"


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.soak)])
def test_a_healthy_day_is_quiet(new_service: NewService, count: int) -> None:
    service = new_service(*QUICK).start()
    for number in range(count):
        service.put(f"{number}.png")
    service.wait_records(count)
    service.put("unmarked.png", marked=b"", expect=False)
    service.wait_note("held", "unmarked.png")
    assert service.terminate() == 0
    assert Counter(line["event"] for line in service.log()) == {
        **dict.fromkeys(("service.started", "worker.starting", "inbox.found", "worker.ready"), 1),
        "job.finished": count,
        "job.held": 1,
        **dict.fromkeys(("service.stopping", "service.summed_up", "service.stopped"), 1),
    }
    assert {line["level"] for line in service.log()} == {"info"}
    (summary,) = service.log("service.summed_up")
    assert (summary["done"], summary["held"], summary["hot"] + summary["cold"]) == (count, 1, count)
    times = sorted(record["total_ms"] for record in service.results())
    assert (summary["p50_ms"], summary["p95_ms"]) == (times[count // 2 - 1], times[count * 95 // 100 - 1])
    assert service.undocumented_lines() == []


def test_who_wants_no_summary_gets_none(new_service: NewService) -> None:
    service = new_service(*QUICK, "[log]", "summary_minutes = 0")
    service.start()
    service.put("a.png")
    service.wait_record("a.png")
    assert service.terminate() == 0
    assert service.log("service.summed_up") == []


@dataclass
class Careless(Service):
    """A service whose surroundings are full of what is nobody's business."""

    def environment(self) -> dict[str, str]:
        home = self.root.parent / f"home-{OUTSIDE}"
        home.mkdir(exist_ok=True)
        secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "MY_PASSWORD", "LS_COLORS"), SECRET)
        return {**super().environment(), **secrets, "HOME": str(home), "SOME_PATH": f"/opt/{OUTSIDE}"}


def test_no_secret_and_no_path_from_outside_is_ever_told(tmp_path: Path) -> None:
    """At the loudest level, and through all that goes wrong."""
    outside = tmp_path / OUTSIDE
    outside.mkdir()
    (outside / "secret.png").write_text(SECRET)
    service = Careless(tmp_path / "service", (*QUICK, "[log]", 'level = "debug"'), faults="crash@poison.png")
    try:
        for name, target in (
            ("link.png", outside / "secret.png"),
            ("folder", outside),
            ("gone.png", "/nowhere"),
        ):
            (service.inbox / name).symlink_to(target)
        service.start()
        service.put("fine.png")
        service.put("text.png", f"{SECRET} is no picture".encode(), expect=False)
        service.put("unmarked.png", marked=b"", expect=False)
        service.put("poison.png", expect=False)
        service.place("odd.png.marks.json", json.dumps({"token": SECRET, "file": str(outside)}).encode())
        service.place("odd.png", (service.inbox / "fine.png").read_bytes()[:-1] + b"x")
        (service.state / "requests").mkdir(exist_ok=True)
        (service.state / "requests" / "x.json").write_text(json.dumps({"path": f"/{OUTSIDE}", "t": SECRET}))
        service.wait_record("text.png", outcome=("failed",))
        service.wait_record("poison.png", outcome=("quarantined",))
        service.wait_record("fine.png")
        service.wait_log("request.rejected")
        pid = service.worker_pid()
        os.kill(pid, signal.SIGABRT)
        wait_until(lambda: not is_alive(pid), "the worker's end")
        service.worker_pid()
        assert service.terminate() == 0
        told = [service.log_file, *service.state.rglob("*.log"), *service.outbox.rglob("*.json*")]
        told += [service.state / "status.json"]
        assert len(told) > 5
        for file in told:
            for sentinel in (SECRET, OUTSIDE):
                assert sentinel not in file.read_text("utf-8", "replace"), file
        assert service.log("inbox.links_ignored"), "the links were seen"
        assert service.undocumented_lines() == []
    finally:
        service.close()


def test_on_a_terminal_lines_are_for_people(new_service: NewService) -> None:
    service = new_service(*QUICK)
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in service.environment().items() if key != "WATCHER_LOG__FORMAT"}
    service.process = subprocess.Popen(
        service.command("run"), stdin=subprocess.DEVNULL, stderr=theirs, env=environment, cwd=service.root
    )
    os.close(theirs)
    text = b""
    while b"worker.ready" not in text:
        text += os.read(ours, 4096)
    service.process.send_signal(signal.SIGTERM)
    with_end = True
    while with_end:
        try:
            text += os.read(ours, 4096)
        except OSError:  # the other side is closed
            with_end = False
    assert service.process.wait(PATIENCE_S) == 0
    os.close(ours)
    lines = text.decode().split("\r\n")
    assert any("service.started" in line and "version" in line for line in lines)
    assert any("service.stopped" in line for line in lines)
    assert not any(line.startswith("{") for line in lines)
    assert "auto -> cpu" in text.decode(), "the two columns, as people read them"
