"""The values that attention is tried on, and the arguments made of them.

Values are drawn in float32, changed by a distribution, rounded to the dtype and placed.

A backward's out and lse are the oracle's own, of the operands as placed, each rounded once. They
give away what a forward on those operands should return, so that the stream of every op differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.closed_form import forward
from kernel_workbench.oracles.attention.geometry import (
    AXES,
    BACKWARD,
    key_ranges,
    lengths,
    shapes,
    spans,
)
from kernel_workbench.oracles.attention.probes import NEEDLES, integers, needles, shifted_out
from kernel_workbench.oracles.cases import distributions
from kernel_workbench.oracles.cases.distributions import (
    COARSE,
    INTEGERS,
    Distribution,
    Values,
    generator,
)
from kernel_workbench.oracles.cases.layouts import place_tensor, place_vector
from kernel_workbench.oracles.op import Case, Inputs, required

SOFTCAPS = (1.5, 5.0, 30.0, 50.0)
SCALES = (0.05, 0.3, -0.2, 1.0, 0.0)
DROPOUTS = (0.1, 0.25, 0.17, 0.5)
SLOPES = FORMULA, DRAWN_SLOPES = 0, 1  # of ALiBi, where they come from
_OPERANDS = "q k v do out"


def _near_overflow(values: Values) -> None:
    """do (without one: v) of a few times 1e4, and so dv, some of it past fp16's largest number.

    v is then small, so that dP and dS are no larger than do.
    """
    large, small = ("do", "v out") if "do" in values.tensors else ("v", "")
    for tensor in values.some(large):
        tensor.abs_().mul_(2.5e4).clamp_(max=6e4)
    for tensor in values.some(small):
        tensor.mul_(1e-3)


def _constant(values: Values) -> None:
    """Fill each tensor with one number: every key has the same weight."""
    for number, tensor in zip((0.5, 1.0, 1.5, -0.75, 1.25), values.some(_OPERANDS), strict=False):
        tensor.fill_(number)


def _one(name: str, number: float) -> Distribution:
    """Set one element of `name`, in its last batch and head and the middle, to `number`."""

    def place(values: Values) -> None:
        for tensor in values.some(name):
            if tensor.numel():
                tensor[-1, tensor.shape[1] // 2, -1, tensor.shape[3] // 2] = number

    return place


def _one_head(name: str, number: float) -> Distribution:
    """The last head's number is `number`."""

    def place(values: Values) -> None:
        for heads in values.some(name):
            heads[-1:] = number

    return place


def _nan_masked(values: Values) -> None:
    """Set every key and value that no query attends to, to NaN: no output may show it."""
    for batch, queries, keys in spans(values.case):
        s_q, s_kv = queries.stop - queries.start, keys.stop - keys.start
        first, last = key_ranges(values.case, s_q, s_kv)
        key = torch.arange(s_kv)[:, None]
        attended = ((first <= key) & (key <= last)).any(1)
        for tensor in values.some("k v"):
            tensor[batch, keys][~attended.to(tensor.device)] = math.nan


def _bias_first(number: float | None, count: int) -> Distribution:
    """Give the first `count` keys a bias of `number`; None: the dtype's lowest finite number."""

    def set_first(values: Values) -> None:
        lowest = torch.finfo(values.case.dtype).min if number is None else number
        for bias in values.some("bias"):
            bias[..., : min(count, bias.shape[3] - 1)] = lowest

    return set_first


def _bias_inf_row(values: Values) -> None:
    """Set every third row of the bias to -inf throughout: its queries attend to nothing."""
    for bias in values.some("bias"):
        bias.flatten(0, 2)[1::3] = -math.inf


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": distributions.normal,
    "uniform": distributions.uniform(_OPERANDS),
    # The rounding of out shifts every dS of a row the same way.
    "positive": distributions.changed(_OPERANDS, Tensor.abs_),
    "times3": distributions.scaled(_OPERANDS, 3),
    COARSE: distributions.coarse(_OPERANDS),
    "outliers": distributions.outliers(_OPERANDS),
    "k_plus8": distributions.shifted("k", 8),
    "v_plus8": distributions.shifted("v", 8),
    "near_flat": distributions.scaled("q", 1e-3),
    "one_hot": distributions.scaled("q", 30),
    "logits1e4": distributions.scaled("q k", 100),
    "near_overflow": _near_overflow,
    "large_do": distributions.large("do"),
    "subnormals": distributions.subnormal("v do out"),
    "qk_subnormals": distributions.subnormal("q k"),
    "constant": _constant,
    "negative_zero": distributions.negative_zero(_OPERANDS),
    "scaled_rows": distributions.scaled_rows("v do out", 1),
    NEEDLES: needles,
    INTEGERS: integers,
    "nan_q": _one("q", math.nan),
    "nan_k": _one("k", math.nan),
    "nan_v": _one("v", math.nan),
    "inf_k": _one("k", math.inf),
    "nan_do": _one("do", math.nan),
    "nan_out": _one("out", math.nan),
    "inf_q": _one("q", math.inf),
    "inf_v": _one("v", math.inf),
    "inf_do": _one("do", -math.inf),
    "nan_bias": _one("bias", math.nan),
    "nan_sink": _one_head("sink", math.nan),
    "minus_inf_sink": _one_head("sink", -math.inf),
    "nan_slopes": distributions.normal,  # `_options` makes slopes, and one of them NaN
    "nan_masked": _nan_masked,
    "sink_large": distributions.scaled("sink", 30),
    "bias_large": distributions.scaled("bias", 1000),
    "bias_inf_first": _bias_first(-math.inf, 128),
    "bias_finfo_min": _bias_first(None, 128),
    "bias_inf_row": _bias_inf_row,
}


def addends_vary(case: Case) -> bool:
    """Return True if the numbers summed differ, as the probabilistic bound needs."""
    return distributions.addends_vary(case, {"constant"})


def _key(case: Case) -> tuple[object, ...]:
    """Return what the values depend on: all of the case but its layout."""
    options = sorted(case.options)
    return case.op, case.sizes, case.dtype_label, case.distribution, case.seed, *options


def chosen(case: Case, choices: Sequence[float]) -> float:
    """Return one of an option's numbers, chosen by the case's sizes, options and seed."""
    place = sum(size for _, size in case.sizes) + len(case.options) + case.seed
    return choices[place % len(choices)]


def scale_of(case: Case) -> float:
    """Return the factor of the scores: the option's number, or 1 / sqrt(d)."""
    if "scale" in case.options:
        return chosen(case, SCALES)
    return 1 / math.sqrt(max(case.size("d"), 1))


def alibi_slopes(h_q: int) -> Tensor:
    """2^(-8 (h + 1) / h_q) [h_q] in fp32: Press, Smith & Lewis 2022, section 3."""
    heads = torch.arange(1, h_q + 1, dtype=torch.float64)
    return torch.exp2(-8 * heads / max(h_q, 1)).float()


def _slopes(case: Case) -> Tensor:
    """Return the case's slopes: the formula's in one case of two, else drawn, one of them 0."""
    h_q = case.size("h_q")
    slopes = alibi_slopes(h_q)
    if chosen(case, SLOPES) == DRAWN_SLOPES:
        draw = generator(torch.device("cpu"), "slopes", *_key(case))
        slopes = torch.rand(h_q, generator=draw).sub_(0.25)
        slopes[h_q // 2 :][:1] = 0
    if case.distribution == "nan_slopes":
        slopes[-1:] = math.nan
    return slopes


def _draw(case: Case, device: torch.device) -> Values:
    draw = generator(device, *_key(case))
    tensors = {
        name: torch.empty(shape, device=device).normal_(generator=draw)
        for name, shape in shapes(case).items()
        if (name in AXES or name == "sink") and (case.op, name) != (BACKWARD, "out")
    }
    values = Values(case, tensors, draw)
    DISTRIBUTIONS[case.distribution](values)
    return values


def _options(case: Case, device: torch.device) -> Inputs:
    """Return the keyword arguments of the case's options, but for bias and sink."""
    options, sizes = case.options, dict(case.sizes)
    result: Inputs = {}
    if "causal" in options:
        result["causal"] = True
    if "window" in options:
        result["window"] = sizes.get("window_left"), sizes.get("window_right")
    if "bottom_right" in options:
        result["corner"] = "bottom_right"
    if "alibi" in options:
        slopes = _slopes(case).to(device)
        result["alibi_slopes"] = place_vector(slopes, torch.float32, case.layout.of("alibi_slopes"))
    if "softcap" in options:
        result["softcap"] = chosen(case, SOFTCAPS)
    if "scale" in options:
        result["scale"] = scale_of(case)
    if options & {"dropout", "torch_dropout"}:
        result["dropout_p"] = chosen(case, DROPOUTS)
        # One 32-bit word, or two: Triton passes either as an integer of another width.
        words = generator(torch.device("cpu"), *_key(case)).initial_seed()
        result["dropout_seed"] = words % 2**31 if case.size("b") > 1 else words
    if "varlen" in options:
        sequences = lengths(case)
        for name, size, of_one in (
            ("q", "s_q", [q for q, _ in sequences]),
            ("k", "s_kv", [k for _, k in sequences]),
        ):
            ends = torch.tensor([0, *of_one], device=device).cumsum(0, dtype=torch.int32)
            result[f"cu_seqlens_{name}"] = ends
            result[f"max_seqlen_{name}"] = case.size(size)
    return result


def inputs(case: Case, device: torch.device) -> Inputs:
    """The keyword arguments of a kernel for `case`, on `device`, the same at every call.

    Shapes are those of the contract; q, k, v, do, out and bias are in the case's dtype and laid
    out as it says, everything else is packed.
    """
    values = _draw(case, device)
    result: Inputs = dict.fromkeys(name for name in shapes(case) if name in values.tensors)
    for name in tuple(values.tensors):
        drawn, layout = values.tensors.pop(name), case.layout.of(name)
        if name in AXES:
            result[name] = place_tensor(drawn, case.dtype, layout, AXES[name])
        else:
            result[name] = place_vector(drawn, torch.float32, layout)
    result |= _options(case, device)
    if case.op == BACKWARD:
        stored = forward(case, result)
        out, lse = required(stored, "out"), required(stored, "lse")
        if case.distribution == NEEDLES:
            out = shifted_out(out)
        result["out"] = place_tensor(out, case.dtype, case.layout.of("out"), AXES["out"])
        result["lse"] = place_vector(lse, torch.float32, case.layout.of("lse"))
    return result
