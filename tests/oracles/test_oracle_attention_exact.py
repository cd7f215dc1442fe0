"""The float64 oracle of attention against its definition at 50 digits, element by element.

dS isn't taken from the closed form with D, but from the derivative of the softmax itself:
d out_c / dS_j = sum_k w_k v_kc P_k ([j = k] - P_j).
"""

from __future__ import annotations

from collections.abc import Iterator

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.closed_form import backward, forward, gradients
from kernel_workbench.oracles.attention.dropout import keep_mask
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from kernel_workbench.oracles.attention.values import inputs as inputs_of
from kernel_workbench.oracles.op import Case, Inputs

CPU = torch.device("cpu")
# More keys than queries, no width equal to another, two query heads for a key head.
SHAPE = (1, 2, 1, 5, 7, 3, 2)
OPTIONS = (
    *("", "causal", "causal bottom_right", "window", "window bottom_right", "bias", "scale"),
    *("alibi", "softcap", "sink", "dropout", "bias softcap sink dropout alibi causal"),
)
FAMILIES = ("normal", "positive", "k_plus8", "outliers", "one_hot", "subnormals", "near_flat")
# Relative to the largest number added up anywhere in the output: 450 unit roundoffs of float64.
# Ten operations and sums of seven, and scores up to 50, whose rounding an exponential multiplies.
TOLERANCE = 1e-13


def _numbers(inputs: Inputs, name: str) -> list[list[list[list[mpmath.mpf]]]]:
    """An argument of four axes as exact numbers."""
    value = inputs[name]
    assert isinstance(value, Tensor)

    def exact(each: object) -> object:
        return [exact(one) for one in each] if isinstance(each, list) else mpmath.mpf(each)

    made = exact(value.double().tolist())
    assert isinstance(made, list)
    return made


def _vector(inputs: Inputs, name: str) -> list[mpmath.mpf] | None:
    value = inputs.get(name)
    if not isinstance(value, Tensor):
        return None
    return [mpmath.mpf(each) for each in value.double().tolist()]


class _Exact:
    """Outputs of one case of batch 1 and the largest addend of each, by name and index."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self.case, self.inputs = case, inputs
        self.h, self.m, self.n = (case.size(name) for name in ("h_q", "s_q", "s_kv"))
        self.q, self.k, self.v = (_numbers(inputs, name)[0] for name in ("q", "k", "v"))
        self.group = self.h // case.size("h_kv")
        self.sink, self.slopes = _vector(inputs, "sink"), _vector(inputs, "alibi_slopes")
        self.bias = _numbers(inputs, "bias")[0] if "bias" in inputs else None
        self.values: dict[tuple[str, tuple[int, ...]], mpmath.mpf] = {}
        self.scale: dict[str, mpmath.mpf] = {}
        p, seed = inputs.get("dropout_p"), inputs.get("dropout_seed")
        self.w = [[[mpmath.mpf(1)] * self.n for _ in range(self.m)] for _ in range(self.h)]
        if isinstance(p, float) and isinstance(seed, int):
            blocks = torch.arange(self.h)
            kept = keep_mask(seed, p, blocks, torch.arange(self.m), range(self.n)).tolist()
            self.w = [[[each / (1 - mpmath.mpf(p)) for each in row] for row in h] for h in kept]

    def put(self, name: str, index: tuple[int, ...], addends: list[mpmath.mpf]) -> None:
        """Add numbers to an output's element."""
        key = (name, index)
        self.values[key] = self.values.get(key, mpmath.mpf(0)) + mpmath.fsum(addends)
        largest = max((abs(each) for each in addends), default=mpmath.mpf(0))
        self.scale[name] = max(self.scale.get(name, mpmath.mpf(0)), largest)

    def attended(self, i: int) -> list[int]:
        """The keys that query i may attend to."""
        shift = self.n - self.m if self.inputs.get("corner") == "bottom_right" else 0
        window = self.inputs.get("window", (None, None))
        assert isinstance(window, tuple)
        right = 0 if self.inputs.get("causal") else window[1]
        low = 0 if window[0] is None else i + shift - window[0]
        high = self.n - 1 if right is None else i + shift + right
        return [j for j in range(self.n) if low <= j <= high]

    def score(self, h: int, i: int, j: int) -> tuple[mpmath.mpf, mpmath.mpf]:
        """S, and its derivative by scale q.k."""
        tau = self.inputs.get("scale")
        tau = 1 / mpmath.sqrt(len(self.q[i][h])) if tau is None else mpmath.mpf(tau)
        x = tau * mpmath.fdot(self.q[i][h], self.k[j][h // self.group])
        slope, cap = mpmath.mpf(1), self.inputs.get("softcap")
        if isinstance(cap, float):
            t = mpmath.tanh(x / cap)
            x, slope = cap * t, 1 - t * t
        if self.bias is not None:
            x += self.bias[h][i][j]
        if self.slopes is not None:
            shift = self.n - self.m if self.inputs.get("corner") == "bottom_right" else 0
            x -= self.slopes[h] * abs(i + shift - j)
        return x, slope

    def rows(
        self,
    ) -> Iterator[tuple[int, int, dict[int, mpmath.mpf], dict[int, mpmath.mpf], mpmath.mpf]]:
        """Head, query, P and the slope of each attended key, and lse; dead rows have no keys."""
        for h in range(self.h):
            for i in range(self.m):
                scored = {j: self.score(h, i, j) for j in self.attended(i)}
                powers = {j: mpmath.exp(s) for j, (s, _) in scored.items()}
                total = mpmath.fsum(powers.values())
                if self.sink is not None:
                    total += mpmath.exp(self.sink[h])
                lse = mpmath.log(total) if total else mpmath.mpf("-inf")
                p = {j: each / total for j, each in powers.items()}
                yield h, i, p, {j: slope for j, (_, slope) in scored.items()}, lse

    def forward(self) -> None:
        """out and lse."""
        for h, i, p, _, lse in self.rows():
            self.put("lse", (0, h, i), [lse])
            for c in range(len(self.v[0][0])):
                weighted = [
                    self.w[h][i][j] * each * self.v[j][h // self.group][c] for j, each in p.items()
                ]
                self.put("out", (0, i, h, c), weighted)

    def gradients(self) -> None:
        """dq, dk, dv, dbias and dsink of loss = sum do out."""
        do = _numbers(self.inputs, "do")[0]
        tau = self.inputs.get("scale")
        tau = 1 / mpmath.sqrt(len(self.q[0][0])) if tau is None else mpmath.mpf(tau)
        for h, i, p, slopes, lse in self.rows():
            g = h // self.group
            by_value = {j: self.w[h][i][j] * mpmath.fdot(do[i][h], self.v[j][g]) for j in p}
            for j, own in p.items():
                # As two addends where j = k: float64 is as near as the numbers it adds are large.
                terms = [own * by_value[j], *(-by_value[k] * p[k] * own for k in p)]
                ds = mpmath.fsum(terms)
                for c, each in enumerate(do[i][h]):
                    self.put("dv", (0, j, g, c), [self.w[h][i][j] * own * each])
                for c in range(len(self.q[i][h])):
                    along = tau * slopes[j]
                    self.put("dq", (0, i, h, c), [along * each * self.k[j][g][c] for each in terms])
                    self.put("dk", (0, j, g, c), [along * each * self.q[i][h][c] for each in terms])
                if self.bias is not None:
                    self.put("dbias", (0, h, i, j), [ds])
            if self.sink is not None:
                share = mpmath.exp(self.sink[h] - lse)
                self.put("dsink", (h,), [-share * by_value[k] * p[k] for k in p])

    def check(self, name: str, got: Tensor) -> None:
        """Every element is within the tolerance; what nothing was added to is 0."""
        scale = self.scale.get(name, mpmath.mpf(0))
        for index in torch.cartesian_prod(*(torch.arange(size) for size in got.shape)).tolist():
            place = tuple(index) if isinstance(index, list) else (index,)
            value, exact = float(got[place]), self.values.get((name, place), mpmath.mpf(0))
            if mpmath.isinf(exact):
                assert value == exact
            else:
                assert abs(value - exact) <= TOLERANCE * scale, (name, place, self.case.id())


def _case(op: str, options: str, family: str) -> Case:
    window = (1, 2) if "window" in options else None
    dtype = torch.bfloat16 if family == "outliers" else torch.float32
    return attention_case(
        op, SHAPE, dtype, "ci", options=options, window=window, distribution=family
    )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_agrees_with_mpmath(family: str, options: str) -> None:
    """Forward and gradients of every option and of many together, on each distribution."""
    case = _case(GRADIENTS, options, family)
    inputs = inputs_of(case, CPU)
    with mpmath.workdps(50):
        exact = _Exact(case, inputs)
        exact.forward()
        exact.gradients()
        for outputs in (forward(case, inputs), gradients(case, inputs)):
            for name, value in outputs.items():
                if value is not None:
                    exact.check(name, value)


def test_oracle_agrees_with_mpmath_where_scores_are_large() -> None:
    """Logits of 1e4 cost four digits more: each score is rounded at 2e-12 before exp."""
    case = _case(FORWARD, "", "logits1e4")
    inputs = inputs_of(case, CPU)
    with mpmath.workdps(50):
        exact = _Exact(case, inputs)
        exact.forward()
        got = forward(case, inputs)
        for name in ("out", "lse"):
            value = got[name]
            assert value is not None
            for (key, place), expected in exact.values.items():
                if key == name:
                    assert abs(float(value[place]) - expected) <= 1e-11 * exact.scale[name]


def test_backward_of_the_exact_statistics_is_the_gradients() -> None:
    """Given lse and out in float64, a backward gives what the gradients end to end are."""
    case = _case(BACKWARD, "softcap sink dropout", "normal")
    inputs = inputs_of(case, CPU)
    made = backward(case, {**inputs, **forward(case, inputs)})
    for name, value in gradients(case, inputs).items():
        other = made[name]
        assert (value is None) == (other is None)
        assert value is None or other is None or torch.equal(value, other)
