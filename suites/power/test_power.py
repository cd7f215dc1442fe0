"""The suite: each kernel's accuracy first; what is right is then looped, all rows in turn."""

from __future__ import annotations

import pytest

from kernels.registry import Kernel
from oracles.op import Case
from suites.power.session import SESSION, PowerSession


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each pair, case by case, so that a case's truth is computed once."""
    session = metafunc.config.stash[SESSION]
    pairs = [
        pytest.param(kernel, case, id=case.id(kernel.name))
        for case in session.cases
        for kernel in session.kernels_of[case.id()]
    ]
    metafunc.parametrize(("kernel", "case"), pairs)


def test_kernel_is_right_before_its_energy_is_measured(
    kernel: Kernel, case: Case, power: PowerSession, request: pytest.FixtureRequest
) -> None:
    """A kernel whose accuracy fails on the case, or can't be told, gets no figure."""
    wrong = power.admit(kernel, case)
    if wrong is not None:
        request.node.user_properties.append(("judged", True))
        if power.run.gates(kernel):
            pytest.fail(wrong, pytrace=False)
        pytest.xfail(f"a baseline, which doesn't gate: {wrong}")
