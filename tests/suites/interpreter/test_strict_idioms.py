"""Idioms of sound kernels pass the strict interpreter; each with a fault planted in it is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
import triton
from _pytest.mark import ParameterSet
from triton.runtime import interpreter

from tests.builders.strict_calls import violation_of
from tests.candidates.strict_idioms import (  # noqa: F401  (each adds its idioms)
    IDIOMS,
    Idiom,
    arithmetic,
    atomics,
    blocks,
    kernels,
    loops,
    masks,
    pointers,
    reductions,
    shapes,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated"),
    pytest.mark.filterwarnings("ignore:Logical operators 'and' and 'or' are deprecated"),
]

_NO_BLOCK_POINTERS = pytest.mark.skipif(
    not hasattr(interpreter, "BlockPointerHandle"), reason="this Triton has no block pointers"
)


def _parameter(each: Idiom) -> ParameterSet:
    name = each.name.replace(": ", "-").replace(" ", "_")
    return pytest.param(
        each, id=name, marks=_NO_BLOCK_POINTERS if "block pointer" in each.name else ()
    )


ALL = [_parameter(each) for each in IDIOMS.values()]


@pytest.fixture(autouse=True)
def _on_the_device(request: pytest.FixtureRequest, device: torch.device) -> Iterator[None]:
    torch.manual_seed(0)
    if device.type != "cpu":
        of_rows = re.search("rows_(gathered|scattered)_by_a_descriptor", request.node.name)
        if of_rows and torch.cuda.get_device_capability(device) < (10, 0):
            pytest.skip("a GPU gathers and scatters rows by a descriptor from sm 100 on")
        # Descriptors that a kernel makes lie in memory of the caller's.
        triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=device))
    with device:
        yield


# Triton 3.9 deprecates an argument of tl.cat that users still give.
@pytest.mark.filterwarnings("ignore:tl.cat:UserWarning")
@pytest.mark.parametrize("idiom", ALL)
def test_idiom_is_sound(idiom: Idiom, device: torch.device) -> None:
    """No check alarms, and it computes what torch does; on a GPU the latter alone."""
    made: list[tuple[torch.Tensor, torch.Tensor]] = []
    if device.type == "cpu":
        assert violation_of(lambda: made.append(idiom.call(0))) is None
    else:
        made.append(idiom.call(0))
    computed, right = made[0]
    torch.testing.assert_close(computed, right, check_dtype=False)


@pytest.mark.parametrize("idiom", ALL)
def test_fault_of_idiom_is_found(idiom: Idiom, device: torch.device) -> None:
    """By the check that it breaks."""
    if device.type != "cpu":
        pytest.skip("the strict interpreter is for machines without a GPU")
    found = violation_of(lambda: idiom.call(1))
    assert found is not None
    assert idiom.found in found


def test_catalogue_has_60_idioms_and_more() -> None:
    """Idioms of masks, pointers, blocks, atomics, loops, reductions, shapes and arithmetic."""
    assert len(IDIOMS) >= 60
