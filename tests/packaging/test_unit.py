"""service/watcher.service, held against what units of others got wrong: W14, W15, W40, W56, W58 and W59.

Rules of this file: what must hold is one list of rules, and each rule is tested with a unit that breaks it.
"""

from __future__ import annotations

import configparser
import math
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from watcher.core.policy import WorkerPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_SHELL: Final = re.compile(r"[;|&<>`$]|(^|/)(ba|da|z)?sh\b|\benv\b")
_DEFAULT_BURST: Final = "5"
_DEFAULT_INTERVAL: Final = "10"


def seconds(text: str) -> float:
    """A time span as systemd reads it."""
    if text == "infinity":
        return math.inf
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", text)
    assert parts, text
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def parsed(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys of a unit keep their case
    parser.read_string(text)
    return parser


def faults(text: str) -> list[str]:
    """What is wrong with a unit, as the names of the rules that it breaks."""
    unit = parsed(text)
    rules = {
        **_rules_of_restarts(unit["Unit"], unit["Service"]),
        **_rules_of_stops(unit["Service"]),
        **_rules_of_signs_of_life(unit["Service"]),
        **_rules_of_what_it_may(unit["Service"]),
    }
    return [name for name, holds in rules.items() if not holds]


def _rules_of_restarts(unit: Mapping[str, str], service: Mapping[str, str]) -> Mapping[str, bool]:
    interval_s = seconds(unit.get("StartLimitIntervalSec", _DEFAULT_INTERVAL))
    burst = int(unit.get("StartLimitBurst", _DEFAULT_BURST))
    pause_s = seconds(service["RestartSec"])
    longest_s = seconds(service["RestartMaxDelaySec"])
    misplaced = [key for key in service if key.startswith("StartLimit")]
    return {
        "the start limit is off, or can be reached": interval_s == 0 or interval_s > burst * pause_s,
        "the start limit stands where systemd reads it": not misplaced,
        "it is restarted after a failure": service["Restart"] == "on-failure",
        "pauses grow": 0 < pause_s < longest_s and int(service["RestartSteps"]) > 0,
        "a wrong configuration is not restarted": "78" in service["RestartPreventExitStatus"].split(),
    }


def _rules_of_stops(service: Mapping[str, str]) -> Mapping[str, bool]:
    policy = WorkerPolicy()
    stop_s = seconds(service["TimeoutStopSec"])
    shells = [key for key, value in service.items() if key.startswith("Exec") and _SHELL.search(value)]
    return {
        "there is time to drain and to kill": policy.drain_s + policy.kill_s < stop_s < math.inf,
        "the service is asked first": service["KillMode"] == "mixed",
        "no shell stands before the service": not shells,
        "a killed worker does not stop the service": service["OOMPolicy"] == "continue",
    }


def _rules_of_signs_of_life(service: Mapping[str, str]) -> Mapping[str, bool]:
    start_s = seconds(service.get("TimeoutStartSec", "90"))
    return {
        "it says itself when it has started": service.get("Type") == "notify",
        "nobody speaks in its name": service.get("NotifyAccess") == "main",
        "a loop that hangs is noticed, a slow disk is no hang": 60 <= seconds(service["WatchdogSec"]) <= 600,
        "a start that hangs is noticed, a slow one is no hang": 60 <= start_s <= 600,
        "a hang leaves its stacks": service.get("Environment") == "PYTHONFAULTHANDLER=1",
    }


def _rules_of_what_it_may(service: Mapping[str, str]) -> Mapping[str, bool]:
    # These need user namespaces, without which the unit would not start (systemd.exec, "user services").
    namespaces = ("Protect", "Private", "ReadOnly", "ReadWrite")
    return {
        "kernels may be compiled at run time": service.get("MemoryDenyWriteExecute", "no") == "no",
        "it starts without user namespaces": not [key for key in service if key.startswith(namespaces)],
    }


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "service" / "watcher.service").read_text(encoding="utf-8")


@pytest.mark.kind("W14", "W15", "W40", "W56", "W58", "W59")
def test_the_unit_breaks_no_rule(text: str) -> None:
    assert faults(text) == []


def test_a_start_limit_that_can_be_reached_is_no_fault(text: str) -> None:
    limited = text.replace("StartLimitIntervalSec=0", "StartLimitIntervalSec=1min\nStartLimitBurst=5")
    assert limited != text
    assert faults(limited) == []


@pytest.mark.kind("W14", "W15", "W40", "W56", "W58", "W59")
@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        ("StartLimitIntervalSec=0", "StartLimitIntervalSec=5", "the start limit is off, or can be reached"),
        ("StartLimitIntervalSec=0", "StartLimitBurst=20", "the start limit is off, or can be reached"),
        ("RestartSec=1", "RestartSec=1\nStartLimitBurst=5", "the start limit stands where systemd reads it"),
        ("Restart=on-failure", "Restart=on-abort", "it is restarted after a failure"),
        ("RestartSteps=6", "RestartSteps=0", "pauses grow"),
        ("RestartSec=1", "RestartSec=2min", "pauses grow"),
        (
            "RestartPreventExitStatus=2 78",
            "RestartPreventExitStatus=2",
            "a wrong configuration is not restarted",
        ),
        ("TimeoutStopSec=60", "TimeoutStopSec=30", "there is time to drain and to kill"),
        ("TimeoutStopSec=60", "TimeoutStopSec=infinity", "there is time to drain and to kill"),
        ("KillMode=mixed", "KillMode=control-group", "the service is asked first"),
        (
            "ExecStart=%h/.local/bin/watcher run",
            "ExecStart=/bin/sh -c '%h/.local/bin/watcher run'",
            "no shell stands before the service",
        ),
        ("KillMode=mixed", "KillMode=mixed\nExecStartPre=/bin/bash x", "no shell stands before the service"),
        ("OOMPolicy=continue", "OOMPolicy=stop", "a killed worker does not stop the service"),
        ("Type=notify", "Type=simple", "it says itself when it has started"),
        ("NotifyAccess=main", "NotifyAccess=all", "nobody speaks in its name"),
        ("WatchdogSec=120", "WatchdogSec=5", "a loop that hangs is noticed, a slow disk is no hang"),
        ("WatchdogSec=120", "WatchdogSec=infinity", "a loop that hangs is noticed, a slow disk is no hang"),
        ("TimeoutStartSec=120", "TimeoutStartSec=10", "a start that hangs is noticed, a slow one is no hang"),
        ("Environment=PYTHONFAULTHANDLER=1", "", "a hang leaves its stacks"),
        (
            "NoNewPrivileges=yes",
            "NoNewPrivileges=yes\nMemoryDenyWriteExecute=yes",
            "kernels may be compiled at run time",
        ),
        ("NoNewPrivileges=yes", "ProtectSystem=strict", "it starts without user namespaces"),
    ],
)
def test_a_unit_that_breaks_a_rule_is_found(text: str, line: str, instead: str, rule: str) -> None:
    broken, count = re.subn(rf"^{re.escape(line)}$", lambda _: instead, text, flags=re.MULTILINE)
    assert count == 1
    assert rule in faults(broken)


def test_it_starts_one_replaceable_command(text: str) -> None:
    assert re.findall(r"^ExecStart=.*$", text, re.MULTILINE) == ["ExecStart=%h/.local/bin/watcher run"]


# --- systemd's own word ------------------------------------------------------------------------------------


def _complaints(text: str, folder: Path) -> Iterator[str]:
    """What systemd says about a unit."""
    path = folder / "watcher.service"
    path.write_text(text.replace("%h/.local/bin/watcher", sys.executable), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning", "XDG_RUNTIME_DIR": str(folder)},
        timeout=30,
    )
    if "Failed to" in done.stderr and "manager" in done.stderr:
        pytest.skip(f"systemd cannot be asked here: {done.stderr.strip()}")
    newer = ("RestartSteps", "RestartMaxDelaySec")  # unknown to systemd < 254, which the unit says
    for line in done.stderr.splitlines():
        if "watcher.service" in line and not re.search(f"Unknown key( name)? '({'|'.join(newer)})'", line):
            yield line


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize(
    ("line", "instead", "is_fine"),
    [
        ("Type=notify", "Type=notify", True),
        ("Type=notify", "Type=notfy", False),
        ("WatchdogSec=120", "WatchdogSecs=120", False),
    ],
)
def test_systemd_itself_finds_no_fault(
    text: str, tmp_path: Path, line: str, instead: str, *, is_fine: bool
) -> None:
    assert line in text
    assert (list(_complaints(text.replace(line, instead), tmp_path)) == []) is is_fine
