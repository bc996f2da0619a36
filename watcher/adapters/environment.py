"""Facts about the machine that the service runs on. Looks, and never concludes anything about speed.

Rules of this file: nothing heavy is imported to find out whether it is there; what can only be known by
importing it is asked in a process of its own, with a deadline.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INOTIFY: Final = Path("/proc/sys/fs/inotify")
NVIDIA: Final = Path("/proc/driver/nvidia/gpus")
ROCM: Final = Path("/dev/kfd")
_PROBE_TIMEOUT_S: Final = 60
_PROBE: Final = """
import json, torch
devices = ["cpu"]
devices += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
if getattr(torch.backends, "mps", None) and torch.backends.mps.is_available(): devices.append("mps")
print(json.dumps({"torch": torch.__version__, "devices": devices}))
"""


def package_versions(names: Iterable[str]) -> dict[str, str | None]:
    """Installed versions of distributions; None for one that is absent. Imports none of them."""
    return {name: _version(name) for name in names}


def cpus() -> str:
    """The processors that this process may use: `4 of 8 (x86_64)`."""
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return f"{usable} of {total} ({platform.machine()})"


def graphics_devices() -> list[str]:
    """What the system says of accelerators. That a library can use one is another matter: `torch_devices`."""
    found = [f"NVIDIA: {_nvidia_model(gpu)}" for gpu in sorted(NVIDIA.glob("*/information"))]
    if ROCM.exists():
        found.append("AMD: ROCm's device is there")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        found.append("Apple: Metal")
    return found


def torch_devices() -> Mapping[str, Any]:
    """Ask PyTorch, in a process of its own: `torch` and `devices`, or `error`. Blocks for seconds."""
    try:
        run = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]}
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def inotify_limits() -> dict[str, int]:
    """`max_user_watches`, `max_user_instances`, `max_queued_events`; empty where there is no inotify."""
    limits = {}
    for name in ("max_user_watches", "max_user_instances", "max_queued_events"):
        try:
            limits[name] = int((INOTIFY / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return limits


def folder_count(root: Path, limit: int) -> int:
    """Folders below and including a root, counted up to a limit. Links are not followed."""
    count = 0
    for _path, _folders, _files in os.walk(root):
        count += 1
        if count >= limit:
            break
    return count


def free_bytes(path: Path) -> int | None:
    """What a user may still write where the path lies, or would lie; None where the system does not tell."""
    for candidate in (path, *path.parents):
        try:
            return shutil.disk_usage(candidate).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvidia_model(information: Path) -> str:
    try:
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "a device"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")), "a device")
