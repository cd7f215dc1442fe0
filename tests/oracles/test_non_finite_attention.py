"""Attention's policy on values that aren't finite: what truth and bounds promise, and what not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from kernel_workbench.oracles.op import Bound, Inputs, Numerics
from kernel_workbench.suites.accuracy.verdict import judge
from kernel_workbench.suites.sandbox.call import Call
from tests.builders.attention_trials import CPU, JUDGED, Trial
from tests.builders.emulated_attention import Way

SHAPE = (2, 4, 2, 21, 40, 8, 8)
FAMILIES = ("nan_q", "nan_k", "nan_v", "inf_k", "nan_do", "nan_masked")
PLAIN = Numerics(gradual_underflow=True)


def _rule(trial: Trial, outputs: dict[str, Tensor]) -> str | None:
    """The rule that outputs break, by the suite's own verdict."""
    call = Call(outputs, 0.0)
    return judge(call, call, trial.truth, trial.bounds(PLAIN), PLAIN).rule


@pytest.mark.parametrize("feature", ["none", "causal", "window", "bias", "softcap", "sink"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sound_arithmetic_meets_the_policy(family: str, feature: str) -> None:
    """Products of whole tiles, which multiply masked weights by NaN, break no rule."""
    for op in JUDGED:
        trial = Trial.of(op, SHAPE, torch.float32, feature, family)
        assert _rule(trial, trial.outputs(Way())) is None, op
        assert _rule(trial, trial.outputs(Way(base2=True, splits=3))) is None, op


@pytest.mark.parametrize("family", ["nan_q", "nan_k", "nan_v", "nan_do"])
def test_a_nan_shows_and_stays_in_its_head(family: str) -> None:
    """Where the formulas say NaN a number breaks the rules, and NaN in another head does."""
    for op in JUDGED:
        if (family, op) == ("nan_do", FORWARD):
            continue  # the op has no such argument
        trial = Trial.of(op, SHAPE, torch.float32, "causal", family)
        sound = trial.outputs(Way())
        name = "dq" if "dq" in sound else "out"
        assert sound[name].isnan().any()
        hidden = {**sound, name: sound[name].nan_to_num(0.0)}
        assert _rule(trial, hidden) == "non-finite values"
        for place in ((0, slice(None), -1), (-1, slice(None), 0)):  # another batch, another head
            leaked = sound[name].clone()
            assert leaked[place].isfinite().all()
            leaked[place] = math.nan
            assert _rule(trial, {**sound, name: leaked}) == "non-finite values"


def test_nothing_shows_of_keys_that_nobody_attends_to() -> None:
    """NaN in every masked key and value: truth and bounds are those of zeros there."""
    for op in JUDGED:
        trial = Trial.of(op, (1, 2, 1, 9, 40, 8, 8), torch.float32, "causal", "nan_masked")
        k, v = trial.inputs["k"], trial.inputs["v"]
        assert isinstance(k, Tensor) and isinstance(v, Tensor)
        assert k.isnan().any() and v.isnan().any()
        clean: Inputs = {**trial.inputs, "k": k.nan_to_num(0.0), "v": v.nan_to_num(0.0)}
        other = Trial.given(op, trial.case, clean)
        limits, expected = trial.bounds(PLAIN), other.bounds(PLAIN)
        for name, value in trial.truth.items():
            exact = other.truth[name]
            if value is None or exact is None:
                continue
            assert torch.equal(value, exact), name
            assert torch.equal(limits[name].deterministic, expected[name].deterministic), name


def _expected(
    trial: Trial, attends: Callable[[int, int], bool], key: int
) -> tuple[list[bool], list[bool]]:
    """Which queries and keys of the head are promised nothing, of a bad key or value at `key`."""
    s_q, s_kv = trial.case.size("s_q"), trial.case.size("s_kv")
    met = [i for i in range(s_q) if attends(i, key)]
    queries = [bool(met) and i not in met for i in range(s_q)]
    # A key that some row leaves out whose scores, or D, are NaN, or whose weights are mixed.
    keys = [any(queries) or any(not attends(i, j) for i in met) for j in range(s_kv)]
    return queries, keys


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("key", [0, 20, 21, 39])
def test_rows_beside_a_bad_key_are_promised_nothing(name: str, key: int) -> None:
    """Rows that don't attend to it while others do, and no row of another head, batch or key."""
    for op in JUDGED:
        clean = Trial.of(op, SHAPE, torch.float32, "causal")
        value = clean.inputs[name]
        assert isinstance(value, Tensor)
        bad = value.clone()
        bad[1, key, 0, 3] = math.nan
        trial = Trial.given(op, clean.case, {**clean.inputs, name: bad})
        queries, keys = _expected(trial, lambda i, j: j <= i, key)
        for output, limit in trial.bounds(PLAIN).items():
            nothing = limit.deterministic.isposinf()
            if output in {"dk", "dv"}:
                hit = torch.tensor(keys)[:, None].expand(nothing[1, :, 0].shape)
                own = nothing[1, :, 0].clone()
                nothing[1, :, 0] = False
            elif output == "lse":
                hit, own = torch.tensor(queries).expand(2, -1), nothing[1, :2].clone()
                nothing[1, :2] = False
            else:
                hit = torch.tensor(queries)[:, None, None].expand(nothing[1, :, :2].shape)
                own = nothing[1, :, :2].clone()
                nothing[1, :, :2] = False
            finite = trial.truth[output]
            assert finite is not None
            assert not nothing.any(), (op, output)
            assert (own <= hit).all(), (op, output)
            assert (own | ~hit | ~_own(finite, output).isfinite()).all(), (op, output)


def _own(value: Tensor, output: str) -> Tensor:
    """The part of an output that belongs to batch 1 and key head 0, whose queries are of 0, 1."""
    if output in {"dk", "dv"}:
        return value[1, :, 0]
    return value[1, :2] if output == "lse" else value[1, :, :2]


@pytest.mark.parametrize("name", ["q", "do"])
def test_keys_beside_a_bad_query_are_promised_nothing(name: str) -> None:
    """Its row's P and dS are NaN, and 0 times NaN in the keys that it doesn't attend to."""
    clean = Trial.of(BACKWARD, SHAPE, torch.float32, "causal")
    value = clean.inputs[name]
    assert isinstance(value, Tensor)
    bad = value.clone()
    bad[0, 5, 3] = math.nan
    trial = Trial.given(BACKWARD, clean.case, {**clean.inputs, name: bad})
    for output in ("dk", "dv"):
        exact, limit = trial.truth[output], trial.bounds(PLAIN)[output].deterministic
        assert exact is not None
        assert exact[0, :6, 1].isnan().all()
        assert limit[0, 6:, 1].isposinf().all()
        assert limit[1].isfinite().all()
        assert limit[0, :, 0].isfinite().all()


def test_sequences_dont_meet() -> None:
    """A NaN in the keys of the longest sequence leaves the others finite and judged."""
    options = "varlen causal"
    case = attention_case(GRADIENTS, (7, 2, 1, 21, 21, 8, 8), torch.float32, "ci", options=options)
    inputs = OPS[GRADIENTS].inputs(case, CPU)
    ends, k = inputs["cu_seqlens_k"], inputs["k"]
    assert isinstance(ends, Tensor) and isinstance(k, Tensor)
    first, end = (int(each) for each in ends[2:4])
    assert end - first == 21
    bad = k.clone()
    bad[0, end - 1, 0, 0] = math.nan
    trial = Trial.given(GRADIENTS, case, {**inputs, "k": bad})
    beside = torch.ones(k.shape[1], dtype=torch.bool)
    beside[first:end] = False
    for name, limit in trial.bounds(PLAIN).items():
        exact = trial.truth[name]
        assert exact is not None
        assert exact[:, beside].isfinite().all() and exact.isnan().any()
        assert limit.deterministic[:, beside].isfinite().all()
        # The last row attends to all keys, and makes NaN of their gradients.
        if name == "dq":
            assert limit.deterministic[:, first : end - 1].isposinf().all()
        else:
            assert exact[:, first:end].isnan().all()


def test_delta_of_a_nan_is_a_nan_in_its_row_alone() -> None:
    """No product mixes the rows of a delta pass: every other row is judged."""
    case = attention_case(DELTA, SHAPE, torch.float32, "ci", distribution="nan_do")
    trial = Trial.given(DELTA, case, OPS[DELTA].inputs(case, CPU))
    exact, limit = trial.truth["delta"], trial.bounds(PLAIN)["delta"]
    assert exact is not None and isinstance(limit, Bound)
    assert int(exact.isnan().sum()) == 1
    assert torch.equal(exact.isnan(), limit.deterministic.isnan())
    assert not limit.deterministic.isinf().any()


@pytest.mark.parametrize("number", [-math.inf, math.nan])
def test_a_bias_of_minus_infinity_masks_and_nan_shows(number: float) -> None:
    """-inf at all keys of a row makes a dead row, whose bound is 0; NaN makes a row of NaN."""
    for op in (FORWARD, GRADIENTS):
        clean = Trial.of(op, SHAPE, torch.float32, "bias")
        bias = clean.inputs["bias"]
        assert isinstance(bias, Tensor)
        changed = bias.clone()
        changed[0, 1, 7] = number
        trial = Trial.given(op, clean.case, {**clean.inputs, "bias": changed})
        name = "out" if op == FORWARD else "dq"
        exact, limit = trial.truth[name], trial.bounds(PLAIN)[name].deterministic
        assert exact is not None
        if math.isnan(number):
            assert exact[0, 7, 1].isnan().all()
        else:
            assert (exact[0, 7, 1] == 0).all() and (limit[0, 7, 1] == 0).all()
        rest = torch.ones(exact.shape[:3], dtype=torch.bool)
        rest[0, 7, 1] = False
        assert exact[rest].isfinite().all() and limit[rest].isfinite().all()
        assert _rule(trial, trial.outputs(Way())) is None


def test_a_bad_query_without_keys_has_no_gradient() -> None:
    """A softcap's slope is NaN there, of a score that nobody asked for."""
    case = attention_case(
        GRADIENTS, (1, 1, 1, 37, 11, 16, 16), torch.float32, "ci", options="softcap", window=(0, 0)
    )
    inputs = OPS[GRADIENTS].inputs(case, CPU)
    q = inputs["q"]
    assert isinstance(q, Tensor)
    changed = q.clone()
    changed[0, 20, 0, 3] = math.nan
    trial = Trial.given(GRADIENTS, case, {**inputs, "q": changed})
    exact = trial.truth["dq"]
    assert exact is not None
    assert (exact[0, 20] == 0).all()
    assert exact.isfinite().all()
