"""Ranges of a file's bytes: which are whose, and which are left over.

Rule of this module: a list of spans is an array (n, 2) of start and stop, in any order, overlapping or not.
It is never walked one by one here, for hostile files have millions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Spans = NDArray[np.int64]


def spans_of(ranges: Sequence[tuple[int, int]]) -> Spans:
    """Return starts and stops as spans."""
    return np.array(ranges, np.int64).reshape(-1, 2)


def sized(offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> Spans:
    """Return offsets and sizes as spans."""
    return np.stack([offsets, offsets + sizes], axis=1)


def gaps(spans: Spans, total: int) -> Spans:
    """Return what lies between spans, from 0 to `total`: in order, apart, none empty."""
    ordered = np.minimum(spans[np.argsort(spans[:, 0])], total)
    starts = np.append(ordered[:, 0], total)
    stops = np.maximum.accumulate(np.concatenate([[0], ordered[:, 1]]))
    between = np.stack([stops, starts], axis=1)
    return between[between[:, 0] < between[:, 1]]


def without(spans: Spans, others: Spans, total: int) -> Spans:
    """Return what of some spans is in none of the others: in order, apart, none empty."""
    return gaps(np.concatenate([gaps(spans, total), others]), total)


def total_bytes(spans: Spans) -> int:
    """Return the length of all spans together; what two have in common counts twice."""
    return int((spans[:, 1] - spans[:, 0]).sum())
