"""Metamorphic relations hold of sound kernels, and tell of wrong ones without an oracle's truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD, OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from kernel_workbench.oracles.cases.distributions import COARSE
from kernel_workbench.oracles.op import Balance, Case, Numerics, dtype_name
from kernel_workbench.oracles.reference import ReferenceOp
from tests.builders.by_hand import DTYPES, kernel_of
from tests.builders.changed_inputs import OnCase
from tests.builders.plain_attention import Attention, Given, Part
from tests.builders.wrong_layer_norms import Outputs, closed_form

CPU = torch.device("cpu")
PLAIN = (2, 2, 2, 19, 23, 64, 64)
CARRIERS = [
    case
    for op in OPS.values()
    if not isinstance(op, ReferenceOp)  # theirs have none, and are searched for
    for case in op.cases()
    if case.tier == "ci" and case.distribution == COARSE
]


def _attention(
    op: str, dtype: torch.dtype, options: str = "", sizes: tuple[int, ...] = PLAIN
) -> Case:
    return attention_case(op, sizes, dtype, "ci", options=options, distribution=COARSE)


def _layer_norm(m: int, n: int, dtype: torch.dtype, options: str = "") -> Case:
    known = next(case for case in CARRIERS if case.op == LAYER_NORM_BACKWARD.name)
    sizes, wanted = (("m", m), ("n", n)), frozenset(options.split())
    return replace(known, sizes=sizes, dtype=dtype, weight_dtype=dtype, options=wanted)


def _function(op: str, attention: Attention) -> Callable[..., object]:
    functions: dict[str, Callable[..., object]] = {
        FORWARD: attention.forward,
        BACKWARD: attention.backward,
        GRADIENTS: attention.gradients,
        DELTA: attention.delta,
    }
    return functions[op]


def _on(
    case: Case, function: Callable[..., object], device: torch.device, **declared: bool
) -> OnCase:
    op = OPS[case.op]
    numerics = Numerics(**declared)  # type: ignore[arg-type]  # one of its fields is a str
    return OnCase(kernel_of(function, op=op, features=op.options, numerics=numerics), case, device)


@pytest.mark.parametrize(
    "case", [case for case in CARRIERS if case.op != LAYER_NORM_BACKWARD.name], ids=Case.id
)
def test_relations_hold_of_sound_attention(case: Case, device: torch.device) -> None:
    """Every relation of every case of `ci` that carries some."""
    found = _on(case, _function(case.op, Attention()), device).related()
    assert found
    assert [each for each in found if not each.holds] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_relations_hold_of_sound_layer_norm(dtype: torch.dtype, device: torch.device) -> None:
    """Every relation of a case without options."""
    for m, n in ((13, 256), (3, 1024)):
        found = _on(_layer_norm(m, n, dtype), closed_form, device).related()
        assert len(found) == 7
        assert [each for each in found if not each.holds] == []


@pytest.mark.parametrize("case", CARRIERS, ids=Case.id)
def test_changes_leave_the_inputs_and_their_gradients_truth(case: Case) -> None:
    """The oracle itself obeys each relation to 1e-9, and what is changed is a copy."""
    op = OPS[case.op]
    inputs = op.inputs(case, CPU)
    kept = {name: each.clone() for name, each in inputs.items() if isinstance(each, Tensor)}
    truth = {name: each for name, each in op.oracle(case, inputs).items() if each is not None}
    assert op.relations is not None
    for each in op.relations(case):
        if isinstance(each, Balance):
            weights = 1.0 if each.weights is None else each.weights(inputs)
            sums = (truth[each.output] * weights).sum(-1)
            assert torch.allclose(sums, each.total(inputs), rtol=0, atol=1e-9), each.name
            continue
        changed = each.change(inputs)
        again = op.oracle(each.case, changed)
        shifts = {} if each.shift is None else each.shift(inputs)
        for name, value in each.carry(truth).items():
            wanted = value + shifts.get(name, 0)
            other = again[name]
            assert other is not None
            same = (other == wanted) | ((other - wanted).abs() <= 1e-9 * (1 + wanted.abs()))
            assert bool(same.all()), (each.name, name)
    for name, tensor in kept.items():
        assert torch.equal(tensor, inputs[name]), name  # type: ignore[arg-type]


class _FirstKeyHeavier(Attention):
    """The first key's score is 2 percent too large."""

    def scores(self, part: Part) -> tuple[Tensor, Tensor | None]:
        s, tanh = super().scores(part)
        s[..., 0] *= 1.02
        return s, tanh


class _EvenRowsOff(Attention):
    """Every other query is a little too large."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        wide = super().read(name, tensor, backward=backward).clone()
        if name == "q":
            wide[:, ::2] *= 1.02
        return wide


class _LastBatchOff(Attention):
    """The last batch's values are a little too large."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        wide = super().read(name, tensor, backward=backward).clone()
        if name in {"v", "do"}:
            wide[-1] *= 1.05
        return wide


class _FirstColumnOff(Attention):
    """The first column of q, and of v and do, is a little too large."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        wide = super().read(name, tensor, backward=backward).clone()
        wide[..., 0] *= 1.05
        return wide


class _ScoresClamped(Attention):
    """Scores above 4 are cut, which coarse ones alone seldom reach."""

    def scores(self, part: Part) -> tuple[Tensor, Tensor | None]:
        s, tanh = super().scores(part)
        return s.clamp(max=4), tanh


class _WeightsShort(Attention):
    """The weights add up to less than 1."""

    def closed(
        self, part: Part, out: Tensor, total: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, lse = super().closed(part, out, total, largest)
        return rows * 0.97, lse


class _DeltaOffset(Attention):
    """delta is too large by a constant."""

    def row_products(self, do: Tensor, out: Tensor) -> Tensor:
        return super().row_products(do, out) + 0.25


class _DeltaOnAGrid(Attention):
    """delta is kept in fixed point."""

    def row_products(self, do: Tensor, out: Tensor) -> Tensor:
        return super().row_products(do, out).mul(32).round().div(32)


WRONG: dict[str, tuple[str, str, Attention, str]] = {
    "a key": (FORWARD, "", _FirstKeyHeavier(), "keys in another order"),
    "a key in the backward": (BACKWARD, "", _FirstKeyHeavier(), "keys in another order"),
    "rows": (FORWARD, "", _EvenRowsOff(), "queries in another order"),
    "a batch": (FORWARD, "", _LastBatchOff(), "batches and heads reversed"),
    "a batch in the backward": (BACKWARD, "", _LastBatchOff(), "batches and heads reversed"),
    "a column": (FORWARD, "", _FirstColumnOff(), "columns of q and k in another order"),
    "a column of v": (FORWARD, "causal", _FirstColumnOff(), "columns of v in another order"),
    "large scores": (FORWARD, "", _ScoresClamped(), "K + c leaves out"),
    "large scores end to end": (GRADIENTS, "", _ScoresClamped(), "K + c leaves all gradients"),
    "weights": (FORWARD, "", _WeightsShort(), "V + c shifts out by c"),
    "weights end to end": (GRADIENTS, "", _WeightsShort(), "V + c leaves all gradients"),
    "delta": (BACKWARD, "", _DeltaOffset(), "8 do scales every gradient"),
    "delta end to end": (GRADIENTS, "bias", _DeltaOffset(), "dS adds up to 0 along a row"),
    "delta alone": (DELTA, "", _DeltaOnAGrid(), "8 do scales every gradient"),
    "rows of delta": (DELTA, "", _LastBatchOff(), "batches and heads reversed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_relation_tells_of_a_wrong_attention(name: str, device: torch.device) -> None:
    """The relation that the defect breaks says so, with the element that shows it, in fp32."""
    op, options, attention, relation = WRONG[name]
    found = _on(_attention(op, torch.float32, options), _function(op, attention), device).related()
    broken = {each.name: each.reason for each in found if not each.holds}
    assert relation in broken, [each.name for each in found]
    assert broken[relation]
    assert "expected" in str(broken[relation])


def _first_row_off(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    wide = rstd.clone()
    wide[0] *= 1.01
    return closed_form(dy, x, weight, mean, wide)


def _first_column_off(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    wide = x.float().clone()
    wide[:, 0] *= 1.01
    dx, dweight, dbias = closed_form(dy, wide, weight, mean, rstd)
    return dx.to(x.dtype), dweight, dbias


def _x_in_half(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """x is rounded to a type in which coarse numbers are exact, and mean with it."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean.to(torch.bfloat16).float(), rstd)
    return dx, dweight, dbias


def _dy_offset(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    return closed_form((dy.float() + 2.0**-9).to(dy.dtype), x, weight, mean, rstd)


def _weight_offset(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    return closed_form(dy, x, (weight.float() + 2.0**-6).to(weight.dtype), mean, rstd)


def _c1_short(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """c1 is 10 percent too small."""
    wide_dy, x_hat = dy.float(), (x.float() - mean[:, None]) * rstd[:, None]
    g = wide_dy * weight.float()
    c1, c2 = 0.9 * g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    full = closed_form(dy, x, weight, mean, rstd)
    return ((g - c1 - x_hat * c2) * rstd[:, None]).to(x.dtype), *full[1:]


def _c2_short(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """Likewise c2."""
    wide_dy, x_hat = dy.float(), (x.float() - mean[:, None]) * rstd[:, None]
    g = wide_dy * weight.float()
    c1, c2 = g.mean(1, keepdim=True), 0.9 * (g * x_hat).mean(1, keepdim=True)
    full = closed_form(dy, x, weight, mean, rstd)
    return ((g - c1 - x_hat * c2) * rstd[:, None]).to(x.dtype), *full[1:]


WRONG_LAYER_NORMS: dict[str, tuple[Callable[..., Outputs], torch.dtype, str]] = {
    "a row": (_first_row_off, torch.float32, "rows in another order"),
    "a column": (_first_column_off, torch.float32, "columns in another order"),
    "mean": (_x_in_half, torch.float32, "x + c leaves all gradients"),
    "dy": (_dy_offset, torch.float32, "8 dy scales every gradient"),
    "weight": (_weight_offset, torch.float32, "8 weight scales dx alone"),
    "c1": (_c1_short, torch.bfloat16, "the sum of dx along a row is known"),
    "c2": (_c2_short, torch.bfloat16, "the sum of dx x^ along a row is known"),
}


@pytest.mark.parametrize("name", WRONG_LAYER_NORMS)
def test_relation_tells_of_a_wrong_layer_norm(name: str, device: torch.device) -> None:
    """The relation that the defect breaks says so."""
    function, dtype, relation = WRONG_LAYER_NORMS[name]
    found = _on(_layer_norm(13, 1024, dtype), function, device).related()
    broken = {each.name: each.reason for each in found if not each.holds}
    assert relation in broken, broken
    assert broken[relation]


def test_exact_relation_is_asked_within_bounds_of_a_kernel_that_does_not_repeat(
    device: torch.device,
) -> None:
    """A kernel whose sums have no order can't scale bit by bit; one that repeats must."""
    draw = torch.Generator().manual_seed(0)

    def shuffled(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
        order = torch.randperm(x.shape[0], generator=draw)
        dx, _, dbias = closed_form(dy, x, weight, mean, rstd)
        wide = (x.float() - mean[:, None]) * rstd[:, None] * dy.float()
        total = torch.zeros_like(wide[0])
        for row in order.tolist():
            total = total + wide[row]
        return dx, total.to(weight.dtype), dbias

    case = _layer_norm(37, 256, torch.float32)
    name = "8 dy scales every gradient"
    for repeats in (True, False):
        found = _on(case, shuffled, device, bitwise_repeatable=repeats).related()
        holds = {each.name: each.holds for each in found}
        assert holds[name] is not repeats


def test_relation_whose_case_is_not_served_is_left(device: torch.device) -> None:
    """Nothing is called where the domain doesn't hold the changed case; sums need no call."""
    on = _on(_layer_norm(13, 256, torch.float32), closed_form, device)
    on.serves = lambda _: False
    assert [each.name for each in on.related()] == [
        "the sum of dx along a row is known",
        "the sum of dx x^ along a row is known",
    ]
    assert on.called == []


def test_call_that_fails_on_changed_inputs_breaks_the_relation(device: torch.device) -> None:
    """A kernel that raises where it should not says no, with its error for a reason."""

    class _Fussy(Attention):
        def parts(  # type: ignore[override]
            self, q: Tensor, k: Tensor, v: Tensor, given: Given, *, backward: bool = False
        ) -> object:
            if float(k.abs().max()) > 4:
                raise ValueError("keys are too large")
            return super().parts(q, k, v, given, backward=backward)

    case = _attention(FORWARD, torch.float32)
    found = _on(case, _Fussy().forward, device).related()
    broken = {each.name: each.reason for each in found if not each.holds}
    assert list(broken) == ["K + c leaves out"]
    assert "keys are too large" in str(broken["K + c leaves out"])
