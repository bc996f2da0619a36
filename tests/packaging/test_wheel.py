"""The wheel holds what a user needs, and works away from the source tree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from watcher.ports import RemediableError

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture(scope="session")
def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_holds_every_sample_the_configuration_and_the_unit_byte_for_byte(wheel: Path, root: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    shipped = [
        path
        for folder in ("sample_inbox", "config", "service")
        for path in (root / folder).rglob("*")
        if path.is_file()
    ]
    assert len(shipped) > 20
    for path in shipped:
        assert archive.read(f"watcher/_data/{path.relative_to(root).as_posix()}") == path.read_bytes(), path


def test_holds_the_licence(wheel: Path, root: Path, contents: set[str]) -> None:
    (name,) = (name for name in contents if name.endswith(".dist-info/licenses/LICENSE"))
    assert zipfile.ZipFile(wheel).read(name) == (root / "LICENSE").read_bytes()
    assert "Apache License" in (root / "LICENSE").read_text(encoding="utf-8")


def test_holds_every_module_and_nothing_that_is_not_the_product(root: Path, contents: set[str]) -> None:
    modules = {path.relative_to(root).as_posix() for path in (root / "watcher").rglob("*.py")}
    assert modules <= contents
    strangers = {name for name in contents if not name.startswith("watcher/") and ".dist-info/" not in name}
    assert strangers == set()
    assert not [
        name for name in contents if "tests/" in name or "__pycache__" in name or name.endswith(".pyc")
    ]


@pytest.mark.kind("PD8")
def test_declares_the_command_and_its_needs(wheel: Path, contents: set[str]) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in contents if name.endswith("entry_points.txt"))
    assert "watcher = watcher.cli:main" in archive.read(entry_points).decode()
    (metadata,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    lines = archive.read(metadata).decode().splitlines()
    assert "License-Expression: Apache-2.0" in lines
    base = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert not [line for line in base if "torch" in line or "lama" in line], (
        "the base package must stay small"
    )


def test_the_source_archive_can_be_tested_and_worked_on(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "constraints.txt",
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "config/watcher.toml",
        "service/watcher.service",
        "sample_inbox/SOURCES.md",
        "tests/packaging/test_wheel.py",
    } <= names


# --- installed ----------------------------------------------------------------------------------------------


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into an empty environment that borrows the dependencies of this one.

    A path in a .pth file comes after the environment's own packages, and .pth files found there are not
    read: an editable install of the tree that runs the tests is never seen.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
    done = subprocess.run(
        [*pip, "--quiet", "--no-deps", "--no-index", str(wheel)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv")


def run(command: Sequence[str | Path], *, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


WHERE = """
import json, watcher
from watcher.adapters import resources
print(json.dumps({
    "package": watcher.__file__,
    "samples": str(resources.sample_inbox()),
    "erased": [path.name for path in (resources.sample_inbox() / "erased").iterdir()],
    "config": resources.default_config_text(),
    "unit": resources.unit_template_text(),
}))
"""


def test_installed_package_finds_its_own_files(
    installed: Path, root: Path, user_env: dict[str, str], tmp_path: Path
) -> None:
    done = run([installed, "-c", WHERE], env=user_env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    environment = installed.parent.parent
    assert Path(found["package"]).is_relative_to(environment), "the tree was imported, not the wheel"
    assert Path(found["samples"]).is_relative_to(environment)
    assert found["erased"] == ["camera.png"]
    assert found["config"] == (root / "config" / "watcher.toml").read_text(encoding="utf-8")
    assert found["unit"] == (root / "service" / "watcher.service").read_text(encoding="utf-8")


def test_source_tree_finds_the_same_files(root: Path) -> None:
    from watcher.adapters import resources  # noqa: PLC0415 - so that the other tests need not import it

    assert resources.sample_inbox() == root / "sample_inbox"
    assert resources.default_config_text() == (root / "config" / "watcher.toml").read_text(encoding="utf-8")
    assert "ExecStart=" in resources.unit_template_text()


def test_damaged_installation_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from watcher.adapters import resources  # noqa: PLC0415 - as above

    monkeypatch.setattr(resources, "_ROOTS", (tmp_path,))
    with pytest.raises(RemediableError, match="sample_inbox is missing") as caught:
        resources.sample_inbox()
    assert "Install watcher again" in caught.value.remedy
    assert caught.value.exit_code == 70


def test_installed_command_teaches(installed: Path, user_env: dict[str, str], tmp_path: Path) -> None:
    done = run([installed.parent / "watcher", "--help"], env=user_env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for command in ("init", "run", "once", "demo", "status", "jobs", "retry", "preview", "doctor"):
        assert command in done.stdout


def walk_the_main_job(python: Path, env: dict[str, str], folder: Path) -> None:
    """`init`, two marked pictures of the installed samples, `once`: two results and their two records."""
    env = {**env, "WATCHER_ENGINE__NAME": "patchmatch"}
    command = python.parent / "watcher"
    config_path = folder / "retouch" / "watcher.toml"
    made = run([command, "init", "--config", config_path, folder / "retouch"], env=env, cwd=folder)
    assert made.returncode == 0, made.stderr
    config = tomllib.loads(config_path.read_text(encoding="utf-8"))
    inbox, outbox = Path(config["inbox"]), Path(config["outbox"])
    assert inbox.is_relative_to(folder), "init DIR must not leave the default folders in the configuration"

    asked = run([python, "-c", WHERE], env=env, cwd=folder)
    samples = Path(json.loads(asked.stdout)["samples"])
    wanted = ("rocket.jpg", "rocket.mask.png", "erased/camera.png")
    for name in wanted:
        (inbox / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(samples / name, inbox / name)

    done = run([command, "once", "--config", config_path], env=env, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in outbox.rglob("*.*") if path.suffix in {".jpg", ".png"}) == [
        "camera.png",
        "rocket.jpg",
    ]
    assert (outbox / "rocket.jpg").read_bytes() != (samples / "rocket.jpg").read_bytes()
    lines = [
        json.loads(line)
        for log in sorted((outbox / "logs").glob("timings-*.jsonl"))
        for line in log.read_text(encoding="utf-8").splitlines()
    ]
    assert {(line["source"], line["outcome"], line["recipe"], line["marks"]) for line in lines} == {
        ("rocket.jpg", "done", "default", "mask"),
        ("erased/camera.png", "done", "erased", "alpha"),
    }
    assert len(lines) == 2
    for name in wanted:
        assert (inbox / name).read_bytes() == (samples / name).read_bytes(), "after = keep"
    serve_one_more(command, config_path, env, samples / "brick", inbox, outbox)


def serve_one_more(
    command: Path, config: Path, env: dict[str, str], sample: Path, inbox: Path, outbox: Path
) -> None:
    """`run`: the service, one more picture, SIGTERM."""
    service = subprocess.Popen([command, "run", "--config", config], env=env, stderr=subprocess.DEVNULL)
    try:
        shutil.copyfile(f"{sample}_mask.png", inbox / "brick_mask.png")
        shutil.copyfile(f"{sample}.png", inbox / "brick.png")
        deadline = time.monotonic() + 60
        while not (outbox / "brick.png").exists():
            assert service.poll() is None, "the service ended"
            assert time.monotonic() < deadline, "no result after a minute"
            time.sleep(0.05)
        service.terminate()
        assert service.wait(30) == 0
    finally:
        service.kill()
        service.wait()


def test_installed_wheel_does_the_main_job(installed: Path, user_env: dict[str, str], tmp_path: Path) -> None:
    walk_the_main_job(installed, user_env, tmp_path)


@pytest.mark.soak
def test_main_job_with_every_dependency_really_installed(
    wheel: Path, root: Path, user_env: dict[str, str], tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        root / "constraints.txt",
        wheel,
    ]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    walk_the_main_job(python, user_env, tmp_path)
