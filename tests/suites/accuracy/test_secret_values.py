"""Kernels are asked for values that nothing was seen of before, and a failure there comes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import LAYER_NORM_BACKWARD, OPS
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.oracles.signs import linear_flips
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.truth import CaseValues
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.originals import Originals
from tests import ROOT

_CPU = torch.device("cpu")
_CHEATS = ROOT / "tests" / "candidates" / "cheats"
_CASE = next(
    each
    for each in LAYER_NORM_BACKWARD.cases()
    if each.id() == "layer_norm_backward-m37-n760-float32-contiguous"
)
_SECRET = 123_456_789


def _normal_cases(op: str) -> list[Case]:
    """Small ones of `ci`, of every option and layout."""
    return [
        case
        for case in OPS[op].cases()
        if case.tier == "ci" and case.distribution == "normal" and OPS[op].bytes(case) < 2**17
    ]


def _values(case: Case, secret: int = _SECRET) -> CaseValues:
    op = OPS[case.op]
    return CaseValues.of(op, case, Originals(op, case, _CPU), secret)


def _numbers(inputs: Inputs) -> dict[str, Tensor]:
    return {
        name: each.detach().clone()
        for name, each in inputs.items()
        if isinstance(each, Tensor) and each.is_floating_point()
    }


@pytest.mark.parametrize("op", OPS)
def test_linear_argument_alone_gets_other_signs(op: str) -> None:
    """Its magnitudes stay, all else stays, and every output but lse has other numbers."""
    for case in _normal_cases(op)[::11]:
        inputs = OPS[op].inputs(case, _CPU)
        before, truth = _numbers(inputs), OPS[op].oracle(case, inputs)
        linear_flips(OPS[case.op], inputs, _SECRET).apply_(inputs)
        after, again = _numbers(inputs), OPS[op].oracle(case, inputs)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert len(changed) <= 1, case.id()
        assert all(torch.equal(before[name].abs(), after[name].abs()) for name in before)
        for name, value in truth.items():
            other = again[name]
            if name == "lse" or value is None or other is None or not (value != 0).any():
                continue
            assert not torch.equal(value, other), (case.id(), name)


@pytest.mark.parametrize("op", OPS)
def test_values_are_drawn_from_the_secret(op: str) -> None:
    """The same secret gives the same values, another others; each has a truth of its own."""
    # Random signs of few rows may change none.
    case = max(_normal_cases(op), key=lambda case: min(size for _, size in case.sizes))
    one, same = (_values(case).draw_others(both=True) for _ in range(2))
    other = _values(case, _SECRET + 2).draw_others(both=True)
    assert [each.case.seed for each in one] == [_SECRET, case.seed]
    for mine, again, else_ in zip(one, same, other, strict=True):
        first, second, third = (_numbers(each.originals.read()) for each in (mine, again, else_))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert any(not torch.equal(first[name], third[name]) for name in first)
        outputs = zip(mine.exact().values(), _values(case).exact().values(), strict=True)
        changed = [a is not None and b is not None and not torch.equal(a, b) for a, b in outputs]
        assert any(changed)


def test_one_of_two_ways_is_taken_by_the_secret() -> None:
    """A new seed or new signs; and signs that mean something are left alone."""
    seeds = [_values(_CASE, each).draw_others(both=False) for each in (8, 9)]
    assert [[each.case.seed for each in made] for made in seeds] == [[8], [0]]
    constant = replace(_CASE, distribution="constant_dy")
    assert [each.case.seed for each in _values(constant, 9).draw_others(both=True)] == [9]


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Workers]]:
    """Yield workers of two cheats, and of honest kernels."""
    names = ("first_seed_alone", "cached_with_signs")
    made = {each: Workers(_CPU, 90, files=(_CHEATS / f"{each}.py",)) for each in names}
    made["honest"] = Workers(_CPU, 90, files=(ROOT / "tests" / "mutants" / "plain_kernels.py",))
    yield made
    for each in made.values():
        each.close()


def _kernel(of: Workers, name: str) -> Kernel:
    return next(each for each in of.kernels() if each.name == name)


def _row(of: Workers, name: str, *, signs: int | None = None, further: float = 1.0) -> AccuracyRow:
    run = Run(_CPU, 90, workers=of, signs=signs, further=further)
    return run.try_pair(_kernel(of, name), _CASE)


@pytest.mark.parametrize("cheat", ["first_seed_alone", "cached_with_signs"])
def test_failure_on_secret_values_comes_again(cheat: str, workers: dict[str, Workers]) -> None:
    """The row holds what they were drawn from, and its command has it too."""
    row = _row(workers[cheat], cheat)
    assert row.rule == "deterministic bound"
    assert row.reason is not None and row.reason.startswith("on values drawn from a secret: dx[")
    assert row.reproduce.endswith(f" --case {_CASE.id()} --signs {row.signs}")
    again = _row(workers[cheat], cheat, signs=row.signs, further=0.0)
    assert (again.rule, again.reason) == (row.rule, row.reason)


def test_share_of_cases_is_asked_for_further_values(workers: dict[str, Workers]) -> None:
    """With none, what is right on seed 0 alone passes: it is these values that find it."""
    assert _row(workers["first_seed_alone"], "first_seed_alone", further=0.0).status == "passed"
    assert _row(workers["honest"], "plain_ln_sound", further=1.0).status == "passed"
