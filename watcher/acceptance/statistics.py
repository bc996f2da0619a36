"""Estimates for times that are measured on a busy machine.

Rules of this module:
- Pure, standard library only, and the same numbers for the same input: chance comes from a seeded generator.
- What disturbs a measurement makes it longer, never shorter; so the faster half tells more about the program,
  and the slower half more about the machine.
"""

from __future__ import annotations

import math
import statistics
from statistics import NormalDist
from typing import TYPE_CHECKING

from watcher.core.summary import percentile as _percentile

if TYPE_CHECKING:
    from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """Return the median: the middle value, or the mean of the two in the middle.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    return statistics.median(values)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the percentile by nearest rank: a value that occurred.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    return _percentile(sorted(values), percent)


def faster_half(values: Sequence[float]) -> float:
    """Return the mean of the smaller half of the values, the middle one included.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    count = (len(values) + 1) // 2
    return math.fsum(sorted(values)[:count]) / count


def standard_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of replicates around their mean.

    Raises:
        ValueError: there are fewer than two values.
    """
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        raise ValueError("fewer than two values")
    return statistics.stdev(values)


def student_quantile(error: float, freedom: int) -> float:
    """Return what the absolute value of Student's t exceeds with a given probability.

    Args:
        error: that probability, for both sides together, in (0, 1).
        freedom: degrees of freedom, at least 1.

    Raises:
        ValueError: an argument is out of its range.

    The formula is G. W. Hill's, Algorithm 396 of the Communications of the ACM (1970), whose relative error
    is under 1e-5 from 3 degrees of freedom on; 1 and 2 have closed forms.
    """
    if not 0 < error < 1 or freedom < 1:
        raise ValueError(f"no quantile of t for error {error} and freedom {freedom}")
    if freedom == 1:
        return 1 / math.tan(error * math.pi / 2)
    if freedom == 2:  # noqa: PLR2004 - the closed form of two degrees
        return math.sqrt(2 / (error * (2 - error)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * error) ** (2 / freedom)
    y = _near_the_middle(error, freedom, b, c, d, a) if y > a + 0.05 else _in_the_tail(freedom, y, d)
    return math.sqrt(freedom * y)


def _in_the_tail(freedom: int, y: float, d: float) -> float:
    """One branch of Hill's formula."""
    first = 1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
    return ((first + 0.5 / (freedom + 4)) * y - 1) * (freedom + 1) / (freedom + 2) + 1 / y


def _near_the_middle(error: float, freedom: int, b: float, c: float, d: float, a: float) -> float:
    """The other branch of Hill's formula: an expansion around the normal quantile."""
    x = NormalDist().inv_cdf(error / 2)
    y = x * x
    if freedom < 5:  # noqa: PLR2004 - Hill's own bound
        c += 0.3 * (freedom - 4.5) * (x + 0.6)
    c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
    y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
    return math.expm1(a * y * y)
