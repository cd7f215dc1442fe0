"""A kernel that a user brings is tried on cases drawn within its own domain."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.cases.covering import Coverage
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.accuracy.own_cases import FEWEST, is_small, own_cases
from kernel_workbench.suites.accuracy.suite import Accuracy

pytestmark = pytest.mark.long_run

_KERNELS = {each.name: each for each in all_kernels()}


def _narrow(case: Case) -> str | None:
    """Return what a kernel of few features would say."""
    sizes = dict(case.sizes)
    served = (
        case.dtype == torch.float16
        and case.weight_dtype == torch.float16
        and case.options <= {"causal", "rms_norm"}
        and case.layout.name == "contiguous"
        and sizes.get("d", 64) == sizes.get("d_v", 64) == 64
        and not sizes.get("s_q", 128) % 128
        and not sizes.get("s_kv", 128) % 128
        and not sizes.get("n", 256) % 256
    )
    return None if served else "it is out of the domain"


@pytest.fixture(scope="module", params=["flash", "row_persistent"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Return a kernel whose op is the narrow kernel's too."""
    return _KERNELS[request.param]


def _quick(kernel: Kernel) -> list[Case]:
    return [case for case in kernel.op.cases() if case.tier == "ci"]


def test_narrow_kernel_meets_no_fewer_than_sixty_cases(kernel: Kernel) -> None:
    """It serves few of the op's cases, and each that is drawn for it."""
    beside = _quick(kernel)
    served = [case for case in beside if _narrow(case) is None]
    made = own_cases(kernel, _narrow, beside, "ci")
    assert len(served) < FEWEST <= len(served) + len(made)
    assert len({case.id() for case in (*served, *made)}) == len(served) + len(made)
    assert all(_narrow(case) is None for case in made)


def test_narrow_kernel_meets_each_pair_that_its_cases_can_have(kernel: Kernel) -> None:
    """As one that serves all does."""
    beside = _quick(kernel)
    made = own_cases(kernel, _narrow, beside, "ci")
    coverage = Coverage(
        kernel.op, lambda case: is_small(kernel.op, case, 1e6) and _narrow(case) is None
    )
    coverage.search()
    for case in (*made, *(each for each in beside if _narrow(each) is None)):
        coverage.add(case)
    assert coverage.possible.any()
    assert not coverage.missing().any()


def test_kernel_that_serves_many_meets_each_pair_of_small_cases(kernel: Kernel) -> None:
    """Each pair meets that the search finds; a case is called once, as generated cases are."""
    beside = [case for case in _quick(kernel) if case.why != GENERATED]

    def refusal(case: Case) -> str | None:
        return None if case.options <= {"causal", "rms_norm"} else "it has other options"

    served = [case for case in beside if refusal(case) is None]
    made = own_cases(kernel, refusal, beside, "ci")
    coverage = Coverage(
        kernel.op,
        lambda case: is_small(kernel.op, case, 1e6) and refusal(case) is None,
        in_turn=True,
    )
    coverage.search()
    for case in (*made, *served):
        coverage.add(case)
    assert len(served) > FEWEST
    assert coverage.possible.any()
    assert not coverage.missing().any()
    assert {case.why for case in made} == {GENERATED}


def test_cases_are_the_same_in_each_process(kernel: Kernel) -> None:
    """The processes of a run each draw them."""
    beside = _quick(kernel)
    ids = [[case.id() for case in own_cases(kernel, _narrow, beside, "ci")] for _ in range(2)]
    assert ids[0] == ids[1]


def test_kernel_that_serves_nothing_is_given_nothing(kernel: Kernel) -> None:
    """The run says that nothing ran."""
    assert own_cases(kernel, lambda _: "nothing is served", _quick(kernel), "ci") == []


@pytest.mark.parametrize("other", ["quantise_blocks", "swiglu_forward"])
def test_kernels_of_two_ops_are_given_cases_of_their_own(other: str) -> None:
    """Their sizes may have the same names: each has the cases that it has alone."""
    ops = "rms_norm_forward", other
    kernels = [
        replace(next(each for each in all_kernels() if each.op.name == name), origin="user")
        for name in ops
    ]

    def refusal(kernel: Kernel, case: Case) -> str | None:
        assert case.op == kernel.op.name
        return None if case.dtype == torch.float16 and not case.size("m") % 3 else "not served"

    def drawn(*several: Kernel) -> list[str]:
        run = SimpleNamespace(
            cases=tuple(case for each in several for case in _quick(each)),
            judge=SimpleNamespace(refusal=refusal, learn=lambda *_: None),
            options=SimpleNamespace(seed=[0], dtype=[], tier="ci"),
        )
        made = Accuracy._own_cases(cast("Accuracy", run), several)
        return [case.id() for case in made]

    alone = [drawn(each) for each in kernels]
    assert all(alone)
    assert drawn(*kernels) == [*alone[0], *alone[1]]
