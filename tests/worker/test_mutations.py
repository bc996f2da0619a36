"""Forged structure: whatever is done to the parts of a file, it gets one answer, and a result is a picture.

The small and repeatable part of `benchmarks/mutation_corpus.py`, which feeds the same to a real service for
ten minutes. Here damage is to segments, chunks, entries and lengths; `test_hostile` has single bytes.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest
import pyvips

from tests.worker.bench import Bench, rectangle, save_mask
from tests.worker.mutations import hole, mutants, seeds
from watcher.wire import ItemDone, ItemFailed, ItemIncomplete, Limits

if TYPE_CHECKING:
    from tests.worker.mutations import Seed

DRAWS = 6
EACH = 30
NOT_OF_LIBVIPS = ("BMP", "HEIF")


@pytest.fixture(scope="module")
def corpus() -> list[Seed]:
    return seeds()


def is_readable(data: bytes) -> bool:
    try:
        pyvips.Image.new_from_buffer(data, "", access="random", fail_on="error").numpy()
    except pyvips.Error:
        return False
    return True


@pytest.mark.parametrize("number", range(DRAWS))
def test_a_mutant_gets_one_answer_and_a_result_is_a_picture(
    bench: Bench, corpus: list[Seed], number: int
) -> None:
    bench.limits = Limits(max_pixels=1_000_000)
    for mutant in islice(mutants(corpus, number), EACH):
        size = mutant.seed.size
        source = bench.folder / "mutant"
        source.write_bytes(mutant.data)
        report = bench.serve(source, save_mask(bench.folder / "mask.png", rectangle(*size, hole(size))))

        finals = [r for r in bench.reports if isinstance(r, ItemDone | ItemFailed | ItemIncomplete)]
        assert finals == [report], mutant
        if isinstance(report, ItemFailed):
            assert report.code != "engine", (str(mutant), report)
            assert report.reason, mutant
            assert report.remedy, mutant
        if isinstance(report, ItemDone) and mutant.seed.container not in NOT_OF_LIBVIPS:
            result = (bench.folder / "staging" / "mutant.staged").read_bytes()
            assert is_readable(result) or not is_readable(mutant.data), str(mutant)
