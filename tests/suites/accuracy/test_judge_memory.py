"""The judge's peak memory for a case whose largest tensor hardly fits a GPU.

Such cases are scaled down here, and with them the sizes of pieces and chunks, and the roundoff of
sums over many keys: bounds look at more where it leaves weights open.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention import bounds, closed_form, emulation, scores
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from kernel_workbench.oracles.cases import layouts
from kernel_workbench.oracles.op import Case, Numerics
from kernel_workbench.suites.accuracy import elements, run, trial, truth
from kernel_workbench.suites.run.selection import alike_together
from kernel_workbench.suites.sandbox import originals
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory
from tests.builders.attention_trials import JUDGED, Trial
from tests.builders.by_hand import kernel_of, run_on

CPU = torch.device("cpu")
SCALE, LONG = 1024, 2048  # of 2^21 queries or keys
# Copies of the largest tensor in float64, 16 GiB each at full size. 4.8 were measured, and
# a quarter more in some runs, as if something the size of an input were freed later there.
MOST_COPIES = 5.4


@pytest.fixture
def _scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = scores._PIECE_ELEMENTS["cuda"] * scores._TIMES_LARGER  # as on a card with room
    monkeypatch.setitem(scores._PIECE_ELEMENTS, "cpu", on_gpu // SCALE)
    for module, name in (
        (bounds, "_CHUNK_ELEMENTS"),
        (closed_form, "_DELTA_ELEMENTS"),
        (emulation, "_DELTA_ELEMENTS"),
        (elements, "_CHUNK_ELEMENTS"),
        (layouts, "LARGEST_POISONED_BUFFER"),
        (originals, "LARGEST_POISONED_BUFFER"),
        (truth, "_MOST_BYTES_OF_SEVERAL_BOUNDS"),
        (trial, "MOST_BYTES"),
        (run, "_MOST_BYTES_KEPT_PACKED"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) // SCALE)


@pytest.mark.usefixtures("_scaled_down")
@pytest.mark.parametrize(
    ("op", "sizes", "roundoff"),
    [
        (GRADIENTS, (1, 8, 8, 5, LONG, 128, 8), 2.0**-23 * SCALE),  # some weights are left open
        (GRADIENTS, (1, 8, 8, LONG, 5, 128, 8), 2.0**-23),
        (BACKWARD, (1, 8, 8, 5, LONG, 128, 8), 2.0**-24),  # with probabilistic bounds
        (BACKWARD, (1, 8, 8, LONG, 5, 128, 8), 2.0**-24),
        (FORWARD, (1, 8, 8, LONG, 5, 8, 128), 2.0**-23),
    ],
    ids=["keys-open", "queries", "keys-probable", "queries-probable", "out"],
)
def test_large_case_takes_five_copies_of_its_largest_tensor(
    op: str, sizes: tuple[int, ...], roundoff: float
) -> None:
    """Inputs, two calls' outputs, truth, bounds and all that is made on the way to a verdict."""
    case, emulate = attention_case(op, sizes, torch.bfloat16, "full"), OPS[op].emulate
    assert emulate is not None

    def sound(**given: Any) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        made = emulate(case, given, Numerics())
        return tuple(made.get(name) for name in OPS[op].outputs)

    numerics = Numerics(accumulation_roundoff=roundoff, key_tile=16)
    kernel = kernel_of(sound, op=OPS[op], features=("unequal_d",), numerics=numerics)
    with fresh_memory(math.nan, CPU) as memory:
        row = run_on(CPU).try_pair(replace(kernel, origin="baseline"), case)
    assert row.rule is None, row.reason
    open_weights = any(each.powerless for each in row.outputs)
    assert open_weights == (roundoff > 2.0**-23)
    assert memory.peak_bytes is not None
    largest = max(math.prod(form.shape) for form in OPS[op].forms(case).values())
    assert memory.peak_bytes <= MOST_COPIES * largest * torch.float64.itemsize


def test_an_earlier_case_is_freed_without_a_collection() -> None:
    """On a GPU its truth and bounds would lie beside the next case's until Python collects."""
    cases = [
        attention_case(FORWARD, (1, 2, 2, s, 5, 8, 8), torch.bfloat16, "full") for s in (3, 4, 5)
    ]
    kernel = next(
        each for each in all_kernels() if each.name == "torch_eager" and each.op.name == FORWARD
    )
    judge, freed = run_on(CPU), list[Case]()
    gc.disable()
    try:
        for case in cases:
            assert judge.try_pair(kernel, case).status == "passed"
            assert judge._values is not None and judge._values.judged is not None
            weakref.finalize(judge._values.exact()["out"], freed.append, case)
        assert freed == cases[:-1]
        judge._give_back()
        assert freed == cases
    finally:
        gc.enable()


@pytest.mark.parametrize("distribution", ["normal", "nan_k", "logits1e4"])
@pytest.mark.parametrize("op", JUDGED)
def test_bounds_dont_depend_on_the_chunks_they_are_made_in(
    op: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a bit; of arguments that aren't finite, and of weights that are left open, too."""
    for feature in ("causal", "dropout, bias and sink", "bias over batch and heads"):
        trial = Trial.of(op, (2, 4, 2, 21, 40, 24, 9), torch.bfloat16, feature, distribution)
        whole = trial.bounds(Numerics())
        with monkeypatch.context() as patch:
            patch.setattr(bounds, "_CHUNK_ELEMENTS", 97)
            parts = trial.bounds(Numerics())
        for name, one in whole.items():
            other = parts[name]
            for this, that in (
                (one.deterministic, other.deterministic),
                (one.probabilistic, other.probabilistic),
                (one.powerless, other.powerless),
            ):
                assert (this is None) == (that is None)
                if this is not None and that is not None:
                    torch.testing.assert_close(this, that, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OPS)
def test_kernels_with_the_same_bounds_come_in_a_row(op: str) -> None:
    """Whatever else they declare: of a large case one set is kept, and another is made anew."""
    kernels = [each for each in all_kernels() if each.op.name == op]
    ordered = alike_together(kernels)
    assert sorted(ordered, key=kernels.index) == kernels
    sets = [
        numerics for numerics, _ in itertools.groupby(each.numerics.of_bounds for each in ordered)
    ]
    assert len(sets) == len(set(sets))
    if op == FORWARD:  # of which some differ in what bounds don't ask for
        assert len(set(sets)) < len({each.numerics for each in kernels})
