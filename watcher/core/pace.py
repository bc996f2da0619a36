"""What the phases of the work took here, by size: for deadlines, and for what a cold job would cost.

Rules of this file:
- Nothing is known before it was measured: until a size has enough samples, a deadline goes by a prior that no
  healthy machine exceeds, or by a guess. The golden picture of a start says how far the guess may be cut.
- Sizes are taken together by powers of two. A size that was never met borrows from the nearest smaller one,
  in proportion, else from the nearest larger one as it is: either may be too much, neither too little. What
  had nothing to do (0) stands in for what has only where nothing else is known.
- Work is known by its phase; decoding and encoding also by the picture's format: one takes a hundred times as
  long as another for the same pixels. A format that was never met is given what a first picture is.
- What was ended for taking too long is no sample: whether it was slow or hung is not known. The one-shot that
  serves the picture next has longer, and tells.
- All memory is bounded: the last samples of each phase and size.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ITEM: Final = "item"
"""All of one picture's work in the worker, by the bytes of its files."""
PICKUP: Final = "pickup"
"""From the hand-over of a batch to its reading; it has no size."""
TURN: Final = "turn"
"""From the end of one picture to the beginning of the next, or to the end of the batch."""

_SAMPLES: Final = 128
_ENOUGH: Final = 20
"""So many samples of a size make its slowest one believable as one of a hundred."""
_SLOW_QUANTILE: Final = 0.99
_PATIENCE_FACTOR: Final = 3.0
_GOLDEN_FACTOR: Final = 5.0
"""Pictures take up to so many times as long as the golden one of a start does, for the work that they are."""
_FIRST_BASE_S: Final = (0.25, 1.0)
_FIRST_SHARE: Final = 0.3
"""The first picture's phases: at least and at most so long, as the golden one took long or not, and by their
size a share of the priors, three times what the two x86 cores took."""
_LEAST_PATIENCE_S: Final = 3.0
"""A machine that is busy elsewhere may leave any process alone for so long."""

_PRIOR_S: Final[Mapping[str, tuple[float, float]]] = {
    "read": (5.0, 1.0),
    "decode": (2.0, 0.1),
    "mask": (2.0, 0.5),
    "preprocess": (2.0, 0.5),
    "inference": (5.0, 170.0),
    "composite": (2.0, 0.5),
    "encode": (2.0, 0.15),
    PICKUP: (5.0, 0.0),
    TURN: (2.0, 0.0),
}
"""Seconds, and seconds a million units more: ten times what two x86 cores took for a 12-megapixel photo:
decode 3 ms a megabyte of pixels, mask operations below 50 ms, JPEG at 12 ms and LaMa at 17 s a megapixel."""


_CODING: Final = frozenset({"decode", "encode"})


def kind_of_work(phase: str, picture_format: str) -> str:
    """Return what a phase's durations are kept by."""
    return f"{phase} {picture_format}" if phase in _CODING and picture_format else phase


def _is_of_a_format(kind: str) -> bool:
    return " " in kind


def _prior(kind: str) -> tuple[float, float]:
    return _PRIOR_S[kind.partition(" ")[0]]


def prior_s(kind: str, units: int) -> float:
    """What no healthy machine exceeds, whatever is in the picture."""
    base_s, per_million_s = _prior(kind)
    return base_s + per_million_s * units / 1e6


class Pace:
    """The last durations of each kind of work and size."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[int, deque[tuple[int, float]]]] = {}

    def note(self, kind: str, units: int, seconds: float) -> None:
        """Work of this kind with so much to do took so long."""
        sizes = self._samples.setdefault(kind, {})
        samples = sizes.setdefault(units.bit_length(), deque(maxlen=_SAMPLES))
        samples.append((units, seconds))

    def usual_s(self, kind: str, units: int) -> float | None:
        """The median for this size, or None before anything was measured."""
        scaled = self._scaled(kind, units)
        return median(scaled) if scaled else None

    def slow_s(self, kind: str, units: int) -> float | None:
        """What one of a hundred takes or exceeds, or None before anything was measured."""
        scaled = sorted(self._scaled(kind, units))
        return scaled[ceil(_SLOW_QUANTILE * len(scaled)) - 1] if scaled else None

    def patience_s(self, kind: str, units: int) -> float:
        """So long without a word means that nothing is done any more."""
        slow_s = self.slow_s(kind, units)
        known_s = 0.0 if slow_s is None else _PATIENCE_FACTOR * slow_s
        if len(self._samples.get(kind, {}).get(units.bit_length(), ())) < _ENOUGH:
            known_s = max(known_s, prior_s(kind, units))
        return max(_LEAST_PATIENCE_S, known_s)

    def _scaled(self, kind: str, units: int) -> list[float]:
        sizes = self._samples.get(kind, {})
        wanted = units.bit_length()
        comparable = [size for size in sizes if size and wanted] or list(sizes)
        if not comparable:
            return []
        met = max((size for size in comparable if size <= wanted), default=min(comparable))
        return [seconds * max(1.0, units / size if size else 1.0) for size, seconds in sizes[met]]


class ColdTime:
    """What a cold job takes: the start of a process, and the picture's work.

    Args:
        pace: of the work; shared with the deadlines.
        guess_s: for the work, and for all of it, until something was measured.
    """

    def __init__(self, pace: Pace, guess_s: float) -> None:
        self._pace = pace
        self._guess_s = guess_s
        self._cold_starts: deque[float] = deque(maxlen=9)
        self._hot_starts: deque[float] = deque(maxlen=9)

    def note_start(self, seconds: float, *, cold: bool) -> None:
        """A process took so long from its start to its readiness."""
        (self._cold_starts if cold else self._hot_starts).append(seconds)

    @property
    def start_s(self) -> float | None:
        """What a start usually takes: one-shots know best, the resident worker is the same program."""
        starts = self._starts
        return median(starts) if starts else None

    def usual_s(self, size: int, *, crowd: int = 1) -> float:
        """What a one-shot with a picture of this size (bytes of its files) usually takes in all.

        Its work shares the machine with a crowd; starts were measured in one themselves.
        """
        if self.start_s is None:
            return self._guess_s
        work_s = self._pace.usual_s(ITEM, size)
        return self.start_s + crowd * (self._guess_s if work_s is None else work_s)

    def slow_s(self, size: int, kind: str, units: int, *, crowd: int = 1) -> float:
        """What a one-shot usually takes for a picture that is slow in one phase, with so much to do in it.

        Its work shares the machine with a crowd; its start was measured in one. Only that phase is taken to
        be slow: the slowest start and the slowest picture of all tell how noisy the machine was once.
        """
        item_s, phase_s = self._pace.usual_s(ITEM, size), self._pace.slow_s(kind, units)
        if item_s is None:
            item_s = self._guess_s if self.start_s is None else self._first_s(kind, units, phase_s)
        elif phase_s is None and _is_of_a_format(kind):  # its first one
            item_s = max(item_s, self._first_s(kind, units, None))
        return (self.start_s or 0.0) + crowd * max(item_s, phase_s or 0.0)

    def _first_s(self, kind: str, units: int, phase_s: float | None) -> float:
        """For the first picture, of which only the phase is known, and how fast the golden one was filled."""
        if kind == "inference":
            return self._guess_s if phase_s is None else min(self._guess_s, _GOLDEN_FACTOR * phase_s)
        least_s, most_s = _FIRST_BASE_S
        golden_s = self._pace.usual_s("inference", 1)
        base_s = most_s if golden_s is None else min(most_s, max(least_s, _GOLDEN_FACTOR * golden_s))
        return base_s + _FIRST_SHARE * _prior(kind)[1] * units / 1e6

    @property
    def _starts(self) -> deque[float]:
        return self._cold_starts or self._hot_starts
