"""Many starts of the real command, each to its end, at the price of one.

Rules of this file: one process loads the program, and each command runs in a fork of it, with arguments,
environment, current folder, exit code and last words of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests.service.namespaces import with_mounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.service.harness import Service

Case: TypeAlias = "tuple[list[str], Mapping[str, str]]"
"""Arguments of the program, and variables besides the environment that all have."""

_PROGRAM: Final = """
import json, os, signal, sys
import watcher.app, watcher.cli.logging_setup, watcher.cli.reports, watcher.cli.views, watcher.cli.working_off
from watcher.cli import main

def start(case):
    told = [os.memfd_create("stdout"), os.memfd_create("stderr")]
    child = os.fork()
    if child == 0:
        for number, file in enumerate(told, 1):
            os.dup2(file, number)
        os.environ.update(case["environment"])
        os.chdir(case["folder"])
        signal.alarm(20)
        try:
            main(case["arguments"])
        except SystemExit as end:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code or 0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out, err = (os.pread(file, 100_000, 0).decode() for file in told)
    return {"code": code, "out": out, "err": err}

print(json.dumps([start(case) for case in json.load(sys.stdin)]))
"""


def start_each(
    service: Service, cases: Sequence[Case], *mounts: Sequence[str], before: str = ""
) -> list[dict[str, Any]]:
    """Run each command to its end; returns its `code` (negative: a signal, after 20 s), `out` and `err`.

    Args:
        service: lends its environment and its folder.
        cases: what to run.
        mounts: commands that are carried out before, in a mount namespace of their own.
        before: a line of Python that runs in the program before all.
    """
    asked = [
        {"arguments": arguments, "environment": dict(more), "folder": str(service.root)}
        for arguments, more in cases
    ]
    ran = subprocess.run(
        [*(with_mounts(*mounts) if mounts else ()), sys.executable, "-c", f"{before}\n{_PROGRAM}"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
        env=service.environment(),
    )
    answers: list[dict[str, Any]] = json.loads(ran.stdout)
    return answers


def configuration(service: Service, folders: Mapping[str, str], *more: str) -> list[str]:
    """Write a configuration with these folders, and return the option that names it."""
    file = service.root / f"{len(list(service.root.glob('*.toml')))}.toml"
    lines = [f'{key} = "{path}"' for key, path in folders.items()]
    file.write_text("\n".join([*lines, *more]), encoding="utf-8")
    return ["--config", str(file)]
