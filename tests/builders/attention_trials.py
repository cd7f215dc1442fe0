"""A case of an attention op with its inputs, truth and bounds, and errors of emulations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import Window, attention_case
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Op, Outputs
from tests.builders.emulated_attention import Emulation, Way

CPU = torch.device("cpu")
JUDGED = (FORWARD, BACKWARD, GRADIENTS)

# By name, the options of a case and its window.
FEATURES: dict[str, tuple[str, Window | None]] = {
    "none": ("", None),
    "causal": ("causal", None),
    "causal, bottom right": ("causal bottom_right", None),
    "window": ("", (9, 4)),
    "window, bottom right": ("bottom_right", (9, None)),
    "bias": ("bias", None),
    "bias over batch and heads": ("bias bias_over_batch bias_over_heads", None),
    "bias over queries": ("bias bias_over_queries causal", None),
    "alibi": ("alibi causal", None),
    "softcap": ("softcap", None),
    "softcap, bias and sink": ("softcap bias sink", None),
    "sink": ("sink causal", None),
    "dropout": ("dropout", None),
    "dropout, bias and sink": ("dropout bias sink causal", None),
    "scale": ("scale", None),
}


@dataclass(frozen=True)
class Trial:
    """An op's case, its arguments and its truth."""

    op: Op
    case: Case
    inputs: Inputs
    truth: Outputs
    _kept_bounds: dict[Numerics, dict[str, Bound]] = field(default_factory=dict)
    _emulations: dict[Numerics, Outputs] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        feature: str = "none",
        distribution: str = "normal",
    ) -> Trial:
        """Return the trial of a case with one of FEATURES."""
        options, window = FEATURES[feature]
        case = attention_case(
            name, shape, dtype, "ci", options=options, window=window, distribution=distribution
        )
        return cls.given(name, case, OPS[name].inputs(case, CPU))

    @classmethod
    def given(cls, name: str, case: Case, inputs: Inputs) -> Trial:
        """Return the trial of given arguments."""
        return cls(OPS[name], case, inputs, OPS[name].oracle(case, inputs))

    def bounds(self, numerics: Numerics) -> dict[str, Bound]:
        """Return the bounds of each output."""
        return self.op.bound(self.case, self.inputs, self.truth, numerics)

    def kept_bounds(self, numerics: Numerics) -> dict[str, Bound]:
        """Return the bounds, computed once for ways with equal numerics."""
        if numerics not in self._kept_bounds:
            self._kept_bounds[numerics] = self.bounds(numerics)
        return self._kept_bounds[numerics]

    def emulation(self, numerics: Numerics) -> Outputs:
        """Return the op's emulation, computed once."""
        assert self.op.emulate is not None
        if numerics not in self._emulations:
            self._emulations[numerics] = self.op.emulate(self.case, self.inputs, numerics)
        return self._emulations[numerics]

    def outputs(self, way: Way) -> dict[str, Tensor]:
        """Return the outputs of a kernel that computes in this way."""
        emulation = Emulation(self.inputs, way)
        if self.op.name == FORWARD:
            return emulation.forward()
        if self.op.name == GRADIENTS:
            return emulation.gradients()
        out, lse = self.inputs["out"], self.inputs["lse"]
        assert isinstance(out, Tensor) and isinstance(lse, Tensor)
        return emulation.backward(out, lse)

    def ratios(
        self, outputs: dict[str, Tensor], bounds: dict[str, Bound]
    ) -> dict[str, tuple[float, float]]:
        """Return each output's largest error / bound: deterministic, and probabilistic or 0."""
        made = {}
        for name, output in outputs.items():
            limit, exact = bounds[name], self.truth[name]
            assert exact is not None
            likely = limit.probabilistic
            made[name] = (
                _ratio(output, exact, limit.deterministic),
                0.0 if likely is None else _ratio(output, exact, likely),
            )
        return made

    def worst(self, way: Way, numerics: Numerics | None = None) -> tuple[float, float]:
        """Return the largest ratios of a kernel that declares `numerics`, or its own."""
        ratios = self.ratios(self.outputs(way), self.kept_bounds(numerics or way.numerics))
        return max(each for each, _ in ratios.values()), max(each for _, each in ratios.values())


def _ratio(output: Tensor, exact: Tensor, limit: Tensor) -> float:
    """Return the largest error / limit; 0 without a limit, or where overflow is allowed."""
    got = output.double()
    largest = torch.finfo(output.dtype).max
    overflows = got.isinf() & (exact.abs() + limit >= largest) & (got.sign() == exact.sign())
    right = (got == exact) | limit.isposinf() | overflows
    ratio = torch.where(right, 0.0, (got - exact).abs() / limit)
    return float(ratio.nan_to_num(nan=math.inf).max()) if ratio.numel() else 0.0
