"""The memory gauge and the kernel's count of kills, on planted trees of `/proc` and of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from watcher.adapters.memory import OomKills, SystemMemory, look_at

if TYPE_CHECKING:
    from pathlib import Path

MIB: Final = 1 << 20
MEMINFO: Final = "MemTotal: 24683652 kB\nMemFree: 1024 kB\nMemAvailable:   8192000 kB\nBuffers: 8 kB\n"
AVAILABLE: Final = 8192000 * 1024
SECOND: Final = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
FIRST: Final = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "ascii")


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    plant(root, {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files})
    return root


def second_version(group: str, limit: str, used: int, *, high: str = "max", cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{group}".rstrip("/")
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": f"{high}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 5\nfile 9\ninactive_anon 7\ninactive_file {cache}\nslab 3\n",
    }


OWN: Final = "0::/user.slice/watcher.service\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, AVAILABLE, id="no-limit-files"),
        pytest.param(second_version("user.slice/watcher.service", "max", 5), AVAILABLE, id="no-limit"),
        pytest.param(
            second_version("user.slice/watcher.service", str(900 * MIB), 500 * MIB), 400 * MIB, id="own-limit"
        ),
        pytest.param(
            second_version("user.slice/watcher.service", str(900 * MIB), 500 * MIB, cache=100 * MIB),
            500 * MIB,
            id="cache-is-free",
        ),
        pytest.param(
            second_version("user.slice/watcher.service", "max", 500 * MIB, high=str(600 * MIB)),
            100 * MIB,
            id="slowed-down-above",
        ),
        pytest.param(
            second_version("user.slice/watcher.service", str(900 * MIB), 500 * MIB)
            | second_version("user.slice", str(2000 * MIB), 1800 * MIB),
            200 * MIB,
            id="limit-of-a-parent",
        ),
        pytest.param(
            second_version("user.slice/watcher.service", str(1 << 45), 0),
            AVAILABLE,
            id="more-than-the-machine",
        ),
        pytest.param(second_version("user.slice/watcher.service", "1000", 5000), 0, id="over-its-limit"),
        pytest.param(second_version("elsewhere", "1000", 0), AVAILABLE, id="limit-of-a-stranger"),
    ],
)
def test_the_least_of_what_the_machine_and_each_group_leave(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert SystemMemory(machine(tmp_path, OWN, SECOND, files)).available_bytes() == expected


def test_the_older_version_has_other_names(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/jobs/one"
    root = machine(
        tmp_path,
        "5:memory:/jobs/one\n4:cpu,cpuacct:/\n0::/elsewhere\n",
        FIRST,
        {
            f"{group}/memory.limit_in_bytes": f"{700 * MIB}\n",
            f"{group}/memory.usage_in_bytes": f"{650 * MIB}\n",
            f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {30 * MIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        },
    )

    assert SystemMemory(root).available_bytes() == 80 * MIB
    assert OomKills(root).count() == 4


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        pytest.param(OWN, SECOND.replace(" / ", " /user.slice/watcher.service "), id="mounted-from-within"),
        pytest.param("0::/\n", SECOND, id="own-namespace"),
        pytest.param("0::/../stranger\n", SECOND, id="outside-of-the-namespace"),
        pytest.param("0::/of/the/host\n", SECOND, id="names-of-the-host"),
        pytest.param(
            "0::/\n", SECOND.replace("/sys/fs/cgroup ", "/sys/fs/my\\040groups "), id="name-with-a-space"
        ),
    ],
)
def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path, groups: str, mounts: str) -> None:
    files = second_version("", str(900 * MIB), 500 * MIB) | {"sys/fs/cgroup/memory.events": "oom_kill 2\n"}
    if "my" in mounts:
        files = {name.replace("fs/cgroup", "fs/my groups"): text for name, text in files.items()}
    root = machine(tmp_path, groups, mounts, files)

    assert SystemMemory(root).available_bytes() == 400 * MIB
    assert OomKills(root).count() == 2


def test_a_system_that_does_not_say_is_not_guessed_at(tmp_path: Path) -> None:
    assert SystemMemory(tmp_path).available_bytes() is None
    assert OomKills(tmp_path).count() is None
    assert look_at(os.getpid(), tmp_path) is None


def test_kills_are_counted_in_our_own_group_or_else_in_the_whole_machine(tmp_path: Path) -> None:
    vmstat = {"proc/vmstat": "nr_free_pages 5\noom_kill 11\ndrop_slab 0\n"}
    events = {"sys/fs/cgroup/user.slice/watcher.service/memory.events": "low 0\noom 9\noom_kill 3\n"}

    assert OomKills(machine(tmp_path / "a", OWN, SECOND, vmstat | events)).count() == 3
    assert OomKills(machine(tmp_path / "b", OWN, SECOND, vmstat)).count() == 11


def test_the_source_of_the_count_never_changes(tmp_path: Path) -> None:
    root = machine(tmp_path, OWN, SECOND, {"proc/vmstat": "oom_kill 11\n"})
    kills = OomKills(root)
    plant(root, {"sys/fs/cgroup/user.slice/watcher.service/memory.events": "oom_kill 3\n"})

    assert kills.count() == 11


# --- this machine ------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's files are Linux's")


@linux
def test_this_machine_tells_cheaply() -> None:
    memory = SystemMemory()
    costs_s = []
    for _ in range(200):
        began = time.perf_counter()
        available = memory.available_bytes()
        costs_s.append(time.perf_counter() - began)

    assert available is not None
    assert 10 * MIB < available < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert min(costs_s) < 0.0003
    assert (OomKills().count() or 0) >= 0


@linux
def test_a_process_is_looked_at() -> None:
    program = "import sys; held = b'x' * 50_000_000; sys.stdout.write('ready'); sys.stdout.flush(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        look = look_at(process.pid)
        process.kill()
    assert look is not None
    assert look.rss_bytes > 50_000_000
    assert look.state in "RSD"
    assert look_at(process.pid) is None
