"""Engine `auto`: LaMa where it can run, else patchmatch, and the reason in the record.

It never fails for want of weights: a wrong file, a missing package or a model that gives nonsense all end in
patchmatch, and in a reason that says what was wrong and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.wire import EngineFacts
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.engines.load_clock import added
from watcher.worker.engines.patchmatch import PatchmatchEngine
from watcher.worker.engines.protocol import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from watcher.wire import DeviceFacts, EngineChoice
    from watcher.worker import devices
    from watcher.worker.engines.protocol import Crop, Engine, LoadSegments


class AutoEngine:
    """Stands before the engine that it chose."""

    name = "auto"

    def __init__(self, choice: EngineChoice, *, accelerators: devices.Accelerators | None = None) -> None:
        self._lama = LamaEngine(choice, accelerators=accelerators)
        self._patchmatch = PatchmatchEngine(choice)
        self._chosen: Engine = self._lama
        self._reason = "verified LaMa weights are present"

    @property
    def model_loads(self) -> int:
        """Loads of both: weights that were loaded in vain are counted, too."""
        return self._lama.model_loads + self._patchmatch.model_loads

    def load(self) -> LoadSegments:
        """Load LaMa, or patchmatch if LaMa cannot be."""
        try:
            return self._lama.load()
        except EngineUnavailableError as error:
            return added(self._lama.spent, self._fall_back(error))

    def warm_up(self) -> None:
        """Warm up what was chosen; weights that give nonsense are left for patchmatch."""
        try:
            self._chosen.warm_up()
        except EngineUnavailableError as error:
            if self._chosen is self._patchmatch:
                raise
            self._fall_back(error)
            self._patchmatch.warm_up()

    def give_way(self, reason: str) -> bool:
        """LaMa may have a CPU left; after that there is patchmatch."""
        if self._chosen.give_way(reason):
            return True
        if self._chosen is self._patchmatch:
            return False
        remedy = "Use the published weights, or a file that was exported the same way."
        self._fall_back(EngineUnavailableError(f"its self-test failed: {reason}", remedy))
        return True

    def work_px(self, crop: Crop) -> int:
        """Ask what was chosen."""
        return self._chosen.work_px(crop)

    def fill(
        self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.uint8]]:
        """Fill by what was chosen."""
        return self._chosen.fill(crops, progress=progress)

    def facts(self) -> EngineFacts:
        """Return what was chosen and why."""
        chosen = self._chosen.facts()
        reason = f"{self._reason}; {chosen.reason}" if chosen.reason else self._reason
        return EngineFacts(
            configured=self.name, actual=chosen.actual, reason=reason, model_sha256=chosen.model_sha256
        )

    def device(self) -> DeviceFacts:
        """Return the device facts of what was chosen."""
        return self._chosen.device()

    def _fall_back(self, error: EngineUnavailableError) -> LoadSegments:
        self._chosen = self._patchmatch
        self._reason = f"no LaMa: {error}. {error.remedy}"
        return self._patchmatch.load()
