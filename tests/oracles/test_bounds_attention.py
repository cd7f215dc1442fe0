"""The bounds of attention: correct arithmetic stays within them, and comes near them somewhere.

Correct arithmetic is tests/builders/emulated_attention.py in its several ways; what is wrong on
purpose is in test_bounds_attention_defects.py, underflow in test_bounds_attention_underflow.py, and
every option in test_emulation_attention.py, under the whole verdict.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from kernel_workbench.oracles.attention import bounds, scores
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from kernel_workbench.oracles.attention.values import DISTRIBUTIONS
from kernel_workbench.oracles.op import Numerics
from tests.builders.attention_trials import JUDGED, Trial
from tests.builders.emulated_attention import Way

SINGLE, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (SINGLE, FP16, BF16)
# More keys than queries and the reverse, grouped heads, widths that are no multiple of 16.
SHAPES = ((1, 4, 2, 21, 40, 24, 9), (2, 2, 2, 40, 21, 9, 16))
NOT_FINITE = ("nan", "inf", "minus_inf")
FINITE = tuple(name for name in DISTRIBUTIONS if not name.startswith(NOT_FINITE))
# Every order of summation, form of the exponential and declared rounding once at least.
WAYS = (
    Way(),
    Way(product="sequential", base2=True, folded=True),
    Way(product="truncating", coarse=True, key_tile=16),
    Way(
        base2=True,
        coarse=True,
        splits=3,
        rounds_factors=True,
        half_partials=True,
        half_bias_gradient=True,
    ),
)
TF32 = (Way(product="truncating", tf32=True, coarse=True), Way(tf32=True, base2=True, folded=True))


def _feature_of(distribution: str) -> tuple[str, ...]:
    """Features in which the distribution shows."""
    if distribution.startswith("bias"):
        return ("bias", "dropout, bias and sink")
    if distribution.startswith("sink"):
        return ("softcap, bias and sink", "sink")
    return ("none", "causal")


@cache
def _worst(distribution: str, dtype: torch.dtype) -> tuple[float, float]:
    """The largest ratios of all ways, of every op, each on the shape whose turn it is."""
    worst = (0.0, 0.0)
    turn = FINITE.index(distribution) + DTYPES.index(dtype)
    features = _feature_of(distribution)
    for place, op in enumerate(JUDGED, turn):
        shape, feature = SHAPES[place % 2], features[place % len(features)]
        trial = Trial.of(op, shape, dtype, feature, distribution)
        for way in (*WAYS, *(TF32 if dtype == SINGLE else ())):
            fresh = trial.worst(way)
            worst = max(worst[0], fresh[0]), max(worst[1], fresh[1])
    return worst


def _dtypes_of(distribution: str) -> tuple[torch.dtype, ...]:
    """near_overflow is near fp16's largest number, and is a case in fp16 alone."""
    return (FP16,) if distribution == "near_overflow" else DTYPES


@pytest.mark.parametrize("distribution", FINITE)
def test_correct_arithmetic_never_exceeds_its_bounds(distribution: str) -> None:
    """No order of summation, form of the exponential or declared cast raises a false alarm."""
    for dtype in _dtypes_of(distribution):
        assert max(_worst(distribution, dtype)) <= 1, dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saturated_softcap_stays_within_its_bounds(dtype: torch.dtype) -> None:
    """1 - t^2 is all rounding where t is nearly 1, and dq and dk are as far off as it is."""
    for op in (BACKWARD, GRADIENTS):
        trial = Trial.of(op, SHAPES[0], dtype, "softcap", "times3")
        trial = Trial.given(op, trial.case, {**trial.inputs, "softcap": 0.7})
        for way in (*WAYS, *(TF32 if dtype == SINGLE else ())):
            assert max(trial.worst(way)) <= 1, way


def test_scores_of_equal_addends_need_the_whole_gamma() -> None:
    """512 equal products, one after the other: lse is off by what the sum of them is."""
    q, k = torch.full((1, 4, 1, 512), 1.1), torch.full((1, 9, 1, 512), 1.3)
    trial = Trial.of(FORWARD, (1, 1, 1, 4, 9, 512, 8), SINGLE)
    trial = Trial.given(FORWARD, trial.case, {**trial.inputs, "q": q, "k": k})
    outputs, exact = trial.outputs(way := Way(product="sequential")), trial.truth["lse"]
    assert exact is not None
    # More than the roundings of x, S and m together: 16 units of 33 each.
    assert ((outputs["lse"].double() - exact).abs() > 20 * 2.0**-24 * exact).all()
    assert trial.ratios(outputs, trial.bounds(way.numerics))["lse"][0] <= 1


def test_weights_by_a_rounded_lse_stay_within_the_bounds() -> None:
    """exp(S - lse), divided by nothing: the weights of a row add up to 1 within lse's rounding."""
    trial = Trial.of(FORWARD, (1, 1, 1, 3, 9, 80, 4), SINGLE)
    q, k = torch.zeros(1, 3, 1, 80), torch.zeros(1, 9, 1, 80)
    q[..., 0], k[:, 0, :, 0], k[:, 1, :, 0] = 1300, 132, 131.952  # a weight is 0.999 of a row's
    v = torch.linspace(1.0, 1.1, 9)[None, :, None, None].expand(1, 9, 1, 4).contiguous()
    trial = Trial.given(FORWARD, trial.case, {**trial.inputs, "q": q, "k": k, "v": v})
    scores = torch.einsum("bihd,bjhd->bij", q, k) * 80**-0.5
    lse = scores.logsumexp(-1, keepdim=True)
    weights = (scores - lse).exp()
    assert ((weights.sum(-1) - 1).abs() > 5e-4).all()
    outputs = {"out": (weights @ v[:, :, 0])[:, :, None], "lse": lse[:, None, :, 0]}
    ratios = trial.ratios(outputs, trial.bounds(Numerics()))
    assert 0.1 < max(map(max, ratios.values())) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_are_reached_by_correct_arithmetic(dtype: torch.dtype) -> None:
    """The bounds aren't vacuous: correct arithmetic comes near them somewhere.

    In the halves the last rounding takes most of the bound, 0.99 of it is reached. In fp32 tf32's
    truncated operands reach 0.8, and plain sums 0.1 to 0.4, as worst cases don't come together.
    """
    worst = max(_worst(each, dtype)[0] for each in FINITE if dtype in _dtypes_of(each))
    assert worst > (0.5 if dtype == SINGLE else 0.95)


@pytest.mark.parametrize("shape", [(1, 1, 1, 3, 1500, 8, 4), (1, 2, 1, 1500, 3, 8, 4)])
@pytest.mark.parametrize("distribution", ["positive", "uniform", "near_flat", "v_plus8"])
def test_long_sums_stay_within_the_probabilistic_bound(
    shape: tuple[int, ...], distribution: str
) -> None:
    """1500 terms one after the other: 34 of the bound's roundings are promised, not 1500 each."""
    for op in JUDGED:
        trial = Trial.of(op, shape, SINGLE, "sink", distribution)
        way = Way(product="sequential", key_tile=2048)
        limits = trial.bounds(way.numerics)
        for name, (_, likely) in trial.ratios(trial.outputs(way), limits).items():
            narrow = limits[name].probabilistic
            assert narrow is not None
            assert (narrow <= limits[name].deterministic).all()
            assert likely <= 1, name


def test_equal_addends_exceed_the_probabilistic_formula_which_is_not_claimed_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16384 equal terms in sequence round alike: the deterministic bound holds, sqrt(n) doesn't."""
    trial = Trial.of(GRADIENTS, (1, 1, 1, 16384, 2, 1, 1), SINGLE, "none", "constant")
    do = trial.inputs["do"]
    assert isinstance(do, torch.Tensor)
    trial = Trial.given(GRADIENTS, trial.case, {**trial.inputs, "do": torch.full_like(do, 1.1)})
    way = Way(product="sequential")
    outputs, limits = {"dv": trial.outputs(way)["dv"]}, trial.bounds(way.numerics)
    assert all(limit.probabilistic is None for limit in limits.values())
    assert trial.ratios(outputs, limits)["dv"][0] <= 1
    monkeypatch.setattr(bounds, "addends_vary", lambda _: True)
    assert trial.ratios(outputs, trial.bounds(way.numerics))["dv"][1] > 1


@pytest.mark.parametrize(
    "numerics",
    [Numerics(accumulation_roundoff=2.0**-23), Numerics(tf32_operands=True)],
    ids=["truncating", "tf32"],
)
def test_truncated_sums_and_operands_have_no_probabilistic_bound(numerics: Numerics) -> None:
    """Their errors have one sign, and don't average out."""
    for op in JUDGED:
        limits = Trial.of(op, SHAPES[0], SINGLE).bounds(numerics)
        assert all(limit.probabilistic is None for limit in limits.values())


def test_both_operands_of_a_tf32_product_are_truncated() -> None:
    """Values of 1 + 2^-10 - 2^-23 lose nearly 2^-10, and weights just below 1 another 2^-10.

    The second term is needed: one truncation alone explains an error of 2^-10 |out|.
    """
    n, keys = 8, torch.zeros(1, 64, 1, 8)
    keys[..., 0] = -0.0000625  # a score of -0.0005 for q = 8: p = 0.9995, which truncates to 0.9990
    keys[:, 0, :, 0] = 0
    trial = Trial.of(FORWARD, (1, 1, 1, n, 64, 8, 8), SINGLE)
    values = torch.full((1, 64, 1, 8), 1 + 2.0**-10 - 2.0**-23)
    q = torch.full((1, n, 1, 8), 8.0)
    made = Trial.given(
        FORWARD, trial.case, {"q": q, "k": keys.expand(1, 64, 1, 8), "v": values, "scale": 1.0}
    )
    for way in TF32:
        outputs, limits = made.outputs(way), made.bounds(way.numerics)
        exact = made.truth["out"]
        assert exact is not None
        error = ((outputs["out"].double() - exact).abs() / exact.abs()).max()
        assert error > 1.4 * 2.0**-10
        assert made.ratios(outputs, limits)["out"][0] <= 1


@pytest.mark.parametrize("way", TF32)
def test_bounds_without_power_are_finite_true_and_said_to_be(way: Way) -> None:
    """tf32 scores near 1e4 are off by 10: out may be any mean of the values, and is."""
    for op, name in ((FORWARD, "lse"), (BACKWARD, "dv"), (GRADIENTS, "dv")):
        trial = Trial.of(op, SHAPES[0], SINGLE, "none", "logits1e4")
        powerless = trial.bounds(way.numerics)[name].powerless
        assert powerless is not None
        assert powerless.any()
        # In fp32 they are off by 0.01, but for those of the longest rows of q and k.
        for each in trial.bounds(Numerics(gradual_underflow=True)).values():
            assert each.powerless is None or each.powerless.double().mean() < 1 / 16
        assert max(trial.worst(way)) <= 1
    limit = Trial.of(FORWARD, SHAPES[0], SINGLE, "none", "logits1e4").bounds(way.numerics)["out"]
    assert limit.deterministic.isfinite().all()
    assert limit.deterministic.max() < 10


@pytest.mark.parametrize("op", JUDGED)
@pytest.mark.parametrize("feature", ["causal", "window", "sink", "bias"])
def test_nothing_is_allowed_where_nothing_is_attended_to(op: str, feature: str) -> None:
    """Rows and keys that meet nothing have a bound of exactly 0, and emulations reach it."""
    distribution = "bias_inf_row" if feature == "bias" else "normal"
    trial = Trial.of(op, (1, 2, 1, 37, 9, 8, 8), FP16, feature, distribution)
    if feature in {"causal", "sink"}:
        trial = Trial.given(op, trial.case, {**trial.inputs, "corner": "bottom_right"})
    limits = trial.bounds(Numerics(gradual_underflow=True))
    dead = 0
    for name, output in trial.outputs(Way()).items():
        exact, limit = trial.truth[name], limits[name].deterministic
        assert exact is not None
        nothing = limit == 0
        dead += int(nothing.sum())
        assert torch.equal(output.double()[nothing], exact[nothing]), name
        if name != "lse":
            assert (exact[nothing] == 0).all()
    assert dead > 0


def test_bounds_dont_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a row or of a head add up to the same bounds, underflow's counts and all.

    But for what no mean of the values can exceed, where a piece knows of its own keys alone.
    """
    for feature in ("causal", "dropout, bias and sink", "softcap, bias and sink", "window"):
        for op in JUDGED:
            trial = Trial.of(op, SHAPES[0], BF16, feature)
            whole = trial.bounds(Numerics())
            with monkeypatch.context() as patch:
                patch.setitem(scores._PIECE_ELEMENTS, "cpu", 97)
                parts = trial.bounds(Numerics())
            for name, limit in whole.items():
                assert limit.probabilistic is not None
                for one, other in zip(
                    (limit.deterministic, limit.probabilistic),
                    (parts[name].deterministic, parts[name].probabilistic),
                    strict=True,
                ):
                    assert other is not None
                    torch.testing.assert_close(other, one, rtol=1e-4, atol=0)


def test_a_cast_that_overflows_is_promised_nothing() -> None:
    """dS past fp16's largest number: its row of dq and its column of dk are infinite or NaN."""
    trial = Trial.of(BACKWARD, (1, 1, 1, 6, 7, 8, 8), FP16)
    do, v = trial.inputs["do"], trial.inputs["v"]
    assert isinstance(do, torch.Tensor) and isinstance(v, torch.Tensor)
    large = torch.zeros_like(do)
    large[:, 3] = 6e4
    apart = torch.where(torch.arange(7)[:, None, None] == 2, 16.0, 0.0).half().expand(1, 7, 1, 8)
    lse, out = torch.zeros(1, 1, 6), torch.zeros_like(do)
    made = Trial.given(
        BACKWARD,
        trial.case,
        {**trial.inputs, "do": large, "v": apart.clone(), "lse": lse, "out": out},
    )
    outputs, limits = made.outputs(Way()), made.bounds(Numerics(gradual_underflow=True))
    assert not outputs["dq"][0, 3].isfinite().all()
    assert limits["dq"].deterministic[0, 3].isinf().all()
    assert limits["dk"].deterministic[0, 2].isinf().all()
    assert limits["dq"].deterministic[0, :3].isfinite().all()
    assert limits["dk"].deterministic[0, 3:].isfinite().all()
    assert max(ratio for ratio, _ in made.ratios(outputs, limits).values()) <= 1
