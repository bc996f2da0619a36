"""Mounts that only the service sees, made without being root.

Rules of this file: a program is put before the service's own (`Service.wrapper`), and ends by becoming it, so
that the process that the test started is the service.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

UNSHARE: Final = ("unshare", "--mount", "--map-root-user")


def with_mounts(*commands: Sequence[str]) -> list[str]:
    """Return a program that carries out these commands in a namespace, and runs its arguments there.

    The test is skipped where the kernel does not let us.
    """
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody make a mount of their own")
    script = " && ".join([*(shlex.join(command) for command in commands), 'exec "$0" "$@"'])
    return [*UNSHARE, "sh", "-c", script]


def read_only(folder: Path) -> list[str]:
    """Return a program that runs its arguments where nobody can write this folder, not even root."""
    return with_mounts(
        ["mount", "--bind", str(folder), str(folder)],
        ["mount", "-o", "remount,bind,ro", str(folder)],
    )


def without_network() -> list[str]:
    """Return a program that runs its arguments where there is no network, not even this machine's own.

    It is empty where the kernel does not let us: the arguments are run as they are.
    """
    command = ["unshare", "--net", "--map-root-user"]
    try:
        allowed = subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    return command if allowed else []


def inside(pid: int, *command: str) -> None:
    """Carry out a command in the namespaces of a process."""
    subprocess.run(
        ["nsenter", f"--target={pid}", "--mount", "--user", "--preserve-credentials", *command], check=True
    )


def seen_by(pid: int, folder: Path) -> Path:
    """Where the folder lies, as the process sees it."""
    return Path(f"/proc/{pid}/root") / folder.relative_to("/")
