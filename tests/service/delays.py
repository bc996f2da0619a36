"""Delays in the real code of a service and its workers, planted from outside: the program knows of none.

Python imports a module `sitecustomize` from the path before the first line of any program, and this file is
copied under that name: it wraps the functions that are named below as soon as their module is imported. A
test plants a delay by making a file; the first call that finds it takes the file away, so that each delay
strikes once, and sleeps before it does its own work.

Rules of this file:
- The standard library only: it runs in every process of the service before anything else.
- A point is a function that does the work of a segment, not the code that takes the times.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE: Final = "WATCHER_TEST_DELAYS"
"""Names the folder of the planted delays."""
FIRST_LINE: Final = "first line of a worker"
IMPORT: Final = "import of "
FUNCTIONS: Final = (
    "watcher.adapters.tree:look_at",
    "watcher.adapters.tree:hash_file",
    "watcher.adapters.journal:SqliteJournal.prior_jobs",
    "watcher.adapters.journal:SqliteJournal.commit",
    "watcher.adapters.file_operations:FileOperations.fsync",
    "watcher.adapters.file_operations:FileOperations.rename_without_replacing",
    "watcher.worker.engines.registry:build_engine",
    "watcher.worker.devices:TorchAccelerators.available",
    "watcher.worker.models.store:locate_verified",
    "torch.jit:load",
    "watcher.worker.engines.patchmatch:PatchmatchEngine.warm_up",
    "watcher.worker.golden:run_golden_test",
    "watcher.worker.channel:ReportWriter.send",
    "watcher.worker.imaging.files:read_file",
    "watcher.worker.imaging.picture:Picture.load",
    "watcher.worker.marking:find_mark",
    "watcher.worker.imaging.crops:plan_crops",
    "watcher.worker.imaging.crops:cut",
    "watcher.worker.engines.patchmatch:PatchmatchEngine.fill",
    "watcher.worker.imaging.blending:levelled",
    "watcher.worker.imaging.composite:_PlainCanvas.paste",
    "watcher.worker.imaging.picture:save",
    "watcher.worker.imaging.files:stage",
)
_CRASHED: Final = 139
IMPORTS: Final = ("cv2", "PIL.Image", "watcher.worker.engines.registry")


class Planter:
    """Plants delays in a service that runs with this environment."""

    def __init__(self, folder: str) -> None:
        """Make the folder that processes will look into.

        Args:
            folder: is made; gets a folder for `PYTHONPATH` beside the delays.
        """
        self._plans = os.path.join(folder, "plans")  # noqa: PTH118 - this file runs before everything
        self.library = os.path.join(folder, "library")  # noqa: PTH118
        os.makedirs(self._plans)  # noqa: PTH103
        os.makedirs(self.library)  # noqa: PTH103
        with open(__file__, "rb") as source:  # noqa: PTH123
            content = source.read()
        with open(os.path.join(self.library, "sitecustomize.py"), "wb") as copy:  # noqa: PTH118, PTH123
            copy.write(content)

    @property
    def environment(self) -> Mapping[str, str]:
        """For the service; `PYTHONPATH` gets `library` besides."""
        return {VARIABLE: self._plans}

    def plant(self, point: str, seconds: float, *, argument: str = "", then: str = "") -> None:
        """Let the next call of a point sleep first.

        Args:
            point: of `FUNCTIONS`, `FIRST_LINE`, or `IMPORT` with one of `IMPORTS`.
            seconds: how long.
            argument: only a call with this text as an argument, or with an object of a class of this name, or
                with a list of commands that moves a job to this state.
            then: `die`: the process ends without a word after it.
        """
        known = (*FUNCTIONS, FIRST_LINE, *(IMPORT + name for name in IMPORTS))
        assert point in known, f"nobody looks for {point}"
        path = os.path.join(self._plans, point)  # noqa: PTH118
        with open(f"{path}.new", "w", encoding="ascii") as file:  # noqa: PTH123
            json.dump([seconds, argument, then], file)
        os.replace(f"{path}.new", path)  # noqa: PTH105

    @property
    def waiting(self) -> Sequence[str]:
        """The points that nobody has come to yet."""
        return [name for name in os.listdir(self._plans) if not name.endswith(".new")]  # noqa: PTH208


def _strike(plans: str, point: str, arguments: Sequence[object] = ()) -> None:
    path = os.path.join(plans, point)  # noqa: PTH118
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            seconds, wanted, then = json.load(file)
        if wanted and not any(_is_meant(argument, wanted) for argument in arguments):
            return
        os.unlink(path)  # noqa: PTH108 - whoever takes it away sleeps
    except FileNotFoundError:
        return
    time.sleep(seconds)
    if then == "die":
        os._exit(_CRASHED)


def _is_meant(argument: object, wanted: str) -> bool:
    if isinstance(argument, list):
        return any(getattr(getattr(each, "job", None), "state", None) == wanted for each in argument)
    return wanted in (argument, type(argument).__name__)


def _delayed(function: Callable[..., Any], plans: str, point: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        _strike(plans, point, arguments)
        return function(*arguments, **named)

    return call


class _Wrapping:
    """Finds modules as others do, and wraps what is named in them once they were imported."""

    def __init__(self, plans: str) -> None:
        self._plans = plans
        self._points: dict[str, list[str]] = {name: [] for name in IMPORTS}
        for point in FUNCTIONS:
            module, _, name = point.partition(":")
            self._points.setdefault(module, []).append(name)
        self._is_searching = False

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name not in self._points or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            if name in IMPORTS:
                _strike(self._plans, IMPORT + name)
            execute(module)
            for qualified in self._points[name]:
                self._wrap(module, qualified)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign] # of this one loader
        return spec

    def _wrap(self, module: ModuleType, qualified: str) -> None:
        *owners, name = qualified.split(".")
        owner = functools.reduce(getattr, owners, module)
        setattr(owner, name, _delayed(getattr(owner, name), self._plans, f"{module.__name__}:{qualified}"))


def _install(plans: str) -> None:
    import importlib.util  # noqa: F401, PLC0415 - `importlib` alone lacks it

    sys.meta_path.insert(0, _Wrapping(plans))
    if "watcher.worker" in sys.orig_argv:
        _strike(plans, FIRST_LINE)


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    _install(os.environ[VARIABLE])
