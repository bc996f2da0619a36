"""Broken supervisors: each must fail the random life of `supervised_life`, or that life proves nothing.

A mutant is the module's own source with one passage replaced, so that the shipped code is what is broken.
"""

from __future__ import annotations

import inspect
import sys
from random import Random
from types import ModuleType
from typing import Final
from unittest.mock import patch

import pytest

from tests.core.supervised_life import SupervisedLife, wander
from watcher.core import supervision

SOURCE: Final = inspect.getsource(supervision)
LIVES: Final = 800
STEPS: Final = 120
MUTANTS: Final = """
a stale incarnation is accepted
-|return incarnation == self.incarnation and self.state in ALIVE
+|return self.state in ALIVE

a dead incarnation is accepted
-|return incarnation == self.incarnation and self.state in ALIVE
+|return incarnation == self.incarnation

a kill is taken for dead
-|            KillWorker(self.incarnation, reason),
-|        ]
+|            KillWorker(self.incarnation, reason),
+|            *self.exited(-9, now_ns),
+|        ]

one that is being killed may become ready
-|    _S.KILLING: {
-|
+|    _S.KILLING: {
+|        _R.BECAME_READY: _S.READY,
+|

the breaker never opens
-|if too_often or self._on_trial:
+|if self._on_trial:

the breaker never closes
-|self.fault = None
-|            self._on_trial = False
+|self.fault = None

a trial is not told from a start
-|if too_often or self._on_trial:
+|if too_often:

old crashes are held against it for ever
-|while self._crashed_ns and self._crashed_ns[0] < now_ns - window_ns:
+|while False:

the breaker is open for ever shorter
-|2 ** min(self._openings, 30)
+|0.5 ** min(self._openings, 30)

the breaker's ceiling is forgotten
-|self._policy.breaker_open_max_s, self._policy.breaker_open_s *
+|1e9, self._policy.breaker_open_s *

a half-open breaker takes a batch
-|    _S.HALF_OPEN: {
-|
+|    _S.HALF_OPEN: {
+|        _R.BATCH_GIVEN: _S.BUSY,
+|

a busy worker takes a second batch
-|    _S.DRAINING: {
-|
+|    _S.DRAINING: {
+|        _R.BATCH_GIVEN: _S.BUSY,
+|

exit 78 restarts
-|if exit_code == EXIT_CONFIGURATION and was in GETTING_READY:
+|if False:

exit 78 is always believed
-|if exit_code == EXIT_CONFIGURATION and was in GETTING_READY:
+|if exit_code == EXIT_CONFIGURATION:

exit 75 is a crash
-|asked_for_it = exit_code == EXIT_USED_UP
+|asked_for_it = False

exit 75 is never a crash
-| and self.items_served > 0 and was
+| and was

exit 75 of one that is being killed is no crash
-| and was is not WorkerState.KILLING
-|
+|
+|

a successor of a recycled one is a restart
-|if was is WorkerState.DRAINING or asked_for_it
+|if asked_for_it

the backoff is never reset
-|self._crashes_in_a_row = 0
-|            self._openings
+|self._openings

the breaker's pauses are never reset
-|            self._openings = 0
-|
+|            pass
+|

the backoff is reset without health
-| and now_ns - self._ready_ns >= healthy_ns
+|

the backoff is reset without a good batch
-|if self._good_batches and now_ns
+|if self._ready_ns and now_ns

a good batch of another life counts
-|self.items_served = self._good_batches = 0
+|self.items_served = 0

items of another life count
-|self.items_served = self._good_batches = 0
+|self._good_batches = 0

the backoff grows without end
-|            self._policy.backoff_max_s,
-|            self._policy.backoff_first_s
+|            1e9,
+|            self._policy.backoff_first_s

no jitter
-|wait_s = ceiling_s * self._jitter()
+|wait_s = ceiling_s

a start has no deadline
-|self.deadline_ns = now_ns + round(self._policy.start_timeout_s * _NS_PER_S)
+|self.deadline_ns = None

an idle worker has no deadline
-|self.deadline_ns = now_ns + round(self._policy.ping_s * _NS_PER_S)
+|self.deadline_ns = None

a busy worker has no deadline
-|            self.deadline_ns = due_ns
-|        return []
+|            self.deadline_ns = None
+|        return []

a ping has no deadline
-|self.deadline_ns = now_ns + round(self._policy.pong_s * _NS_PER_S)
+|self.deadline_ns = None

a drain has no deadline
-|self.deadline_ns = now_ns + round(self._policy.drain_s * _NS_PER_S)
+|self.deadline_ns = None

a kill has no deadline
-|self.deadline_ns = now_ns + round(min(patience_s, ceiling_s) * _NS_PER_S)
+|self.deadline_ns = None

a backoff has no deadline
-|self.deadline_ns = now_ns + round(wait_s * _NS_PER_S)
-|        return [Log("warning"
+|self.deadline_ns = None
+|        return [Log("warning"

an open breaker has no deadline
-|self.deadline_ns = now_ns + round(wait_s * _NS_PER_S)
-|        return [
-|
+|self.deadline_ns = None
+|        return [
+|

a kill is repeated at full speed
-|self._kills = self._kills + 1 if again else 1
+|self._kills = 1

a ping that is never answered is ignored
-|case WorkerState.READY if self._ping_open:
+|case WorkerState.READY if False:

any pong will do
-| and number == self._pings
+|

a pong of a busy worker is one of an idle one
-|if self.state is WorkerState.READY and number == self._pings:
+|if number == self._pings:

a ping stays open
-|        self._ping_open = False
-|        self.deadline_ns
+|        self.deadline_ns

it is recycled in mid-batch
-|return self._kill_stalled(reason, now_ns)
+|return self._recycle(reason, now_ns)

a batch ends although it is being killed
-|        if not self._move(Report.BATCH_ENDED):
-|            return []
-|
+|        self._move(Report.BATCH_ENDED)
+|

growth is measured from nothing
-|usage.rss_bytes - self._baseline.rss_bytes
+|usage.rss_bytes

the baseline is of another life
-|            self._baseline = usage
-|
+|            self._baseline = self._baseline if self._baseline.rss_bytes else usage
+|

open files are not looked at
-|if more > self._policy.recycle_files:
+|if False:

age is not looked at
-|or self._too_old(now_ns), now_ns)
+|or None, now_ns)

age is not looked at while idle
-|self._recycle(self._too_old(now_ns), now_ns) or self._ping(now_ns)
+|self._ping(now_ns)

scarce memory is not looked at
-|if scarce and grown_bytes
+|if False and grown_bytes

all recycle at once
-|            self._spread = _LEAST_SPREAD
+|            self._spread = 1.0  # _LEAST_SPREAD

it is restarted while unwanted
-|        if not self._wanted:
-|
+|        if False:
+|

a drain is forgotten
-|        self._wanted = False
-|        return self._drain(now_ns)
+|        return self._drain(now_ns)

a backoff outlives the drain
-|        _R.DRAIN_BEGUN: _S.STOPPED,
-|        _R.DEADLINE_PASSED: _S.STARTING,
+|        _R.DEADLINE_PASSED: _S.STARTING,

one that starts is drained
-|        _R.DRAIN_BEGUN: _S.KILLING,  # it has no work
+|        _R.DRAIN_BEGUN: _S.DRAINING,  # it has no work

the service does not listen first
-|if self._is_late_to_look(now_ns):
+|if False:

the service listens for ever
-|if self._listened or self.deadline_ns is None
+|if self.deadline_ns is None

a fault outlives a good start
-|            self.fault = None
-|
+|            pass
+|

a stall is not told
-|self.fault = "stalled"
+|pass

progress is not heard
-|        if self.state is WorkerState.BUSY:
-|            self.deadline_ns = due_ns
+|        if False:
+|            self.deadline_ns = due_ns

progress is heard of one that is being killed
-|        if self.state is WorkerState.BUSY:
-|            self.deadline_ns = due_ns
+|        if self.state in ALIVE:
+|            self.deadline_ns = due_ns
"""
"""A name, the passage that is taken out, the one that is put in its place; in pieces of lines."""


def read_mutants() -> dict[str, tuple[str, str]]:
    """Each mutant's two passages, by its name."""
    found = {}
    for told in MUTANTS.strip("\n").split("\n\n"):
        name, *lines = told.split("\n")
        before = [line[2:] for line in lines if line.startswith("-|")]
        after = [line[2:] for line in lines if line.startswith("+|")]
        assert len(before) + len(after) == len(lines), name
        found[name] = ("\n".join(before), "\n".join(after))
    return found


def mutant(before: str, after: str) -> ModuleType:
    """The module with this passage replaced."""
    assert before in SOURCE, f"the module has changed, and this mutant with it: {before!r}"
    module = ModuleType("mutant_of_supervision")
    with patch.dict(sys.modules, {module.__name__: module}):  # its dataclasses look themselves up
        code = compile(SOURCE.replace(before, after), "<mutant>", "exec")
        exec(code, module.__dict__)  # noqa: S102 - our own source
    return module


def live(of: ModuleType) -> None:
    """Many lives, the same every time."""
    kind = type("MutantLife", (SupervisedLife,), {"supervisor_type": of.Supervisor})
    draw = Random(9)
    for _ in range(LIVES):
        wander(kind(), draw, STEPS)


def test_what_is_not_broken_passes() -> None:
    live(mutant(SOURCE, SOURCE))


@pytest.mark.parametrize(("before", "after"), read_mutants().values(), ids=read_mutants())
def test_a_broken_supervisor_is_found_out(before: str, after: str) -> None:
    broken = mutant(before, after)
    with pytest.raises(AssertionError):
        live(broken)
