"""The arguments of the attention ops: values drawn in float32, rounded to the dtype and placed.

A backward's out and lse are the oracle's own, of the operands as placed, each rounded once. They
give away what a forward on those operands should return, so that the stream of every op differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.attention.closed_form import forward
from oracles.attention.distributions import DISTRIBUTIONS, Values
from oracles.attention.geometry import AXES, BACKWARD, lengths, shapes
from oracles.attention.probes import NEEDLES, shifted_out
from oracles.inputs import generator, place_tensor, place_vector
from oracles.op import Case, Inputs

SOFTCAPS = (1.5, 5.0, 30.0)
SCALES = (0.05, 0.3, 1.0)
DROPOUTS = (0.1, 0.25, 0.5)

# Families in which equal numbers are summed: their roundings repeat, and the probabilistic bound
# says nothing of them.
_EQUAL_ADDENDS = frozenset({"constant"})


def addends_vary(case: Case) -> bool:
    """Whether the numbers summed differ, as the probabilistic bound needs."""
    expanded = any(each.expanded for _, each in case.layout.tensors)
    return case.distribution not in _EQUAL_ADDENDS and not expanded


def _key(case: Case) -> tuple[object, ...]:
    """What the values depend on: all of the case but its layout."""
    options = sorted(case.options)
    return case.op, case.sizes, case.dtype_label, case.distribution, case.seed, *options


def chosen(case: Case, choices: Sequence[float]) -> float:
    """One of an option's numbers, by the case's sizes, options and seed."""
    place = sum(size for _, size in case.sizes) + len(case.options) + case.seed
    return choices[place % len(choices)]


def alibi_slopes(h_q: int) -> Tensor:
    """2^(-8 (h + 1) / h_q) [h_q] in fp32: Press, Smith & Lewis 2022, section 3."""
    heads = torch.arange(1, h_q + 1, dtype=torch.float64)
    return torch.exp2(-8 * heads / max(h_q, 1)).float()


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
    """The keyword arguments of the case's options, but for bias and sink."""
    options, sizes = case.options, dict(case.sizes)
    made: Inputs = {}
    if "causal" in options:
        made["causal"] = True
    if "window" in options:
        made["window"] = sizes.get("window_left"), sizes.get("window_right")
    if "bottom_right" in options:
        made["corner"] = "bottom_right"
    if "alibi" in options:
        slopes = alibi_slopes(case.size("h_q")).to(device)
        made["alibi_slopes"] = place_vector(slopes, torch.float32, case.layout.of("alibi_slopes"))
    if "softcap" in options:
        made["softcap"] = chosen(case, SOFTCAPS)
    if "scale" in options:
        made["scale"] = chosen(case, SCALES)
    if options & {"dropout", "torch_dropout"}:
        made["dropout_p"] = chosen(case, DROPOUTS)
        # Of one 32-bit word or of two: Triton passes either as an integer of another width.
        words = generator(torch.device("cpu"), *_key(case)).initial_seed()
        made["dropout_seed"] = words % 2**31 if case.size("b") > 1 else words
    if "varlen" in options:
        each = lengths(case)
        for name, size, of_one in (
            ("q", "s_q", [q for q, _ in each]),
            ("k", "s_kv", [k for _, k in each]),
        ):
            ends = torch.tensor([0, *of_one], device=device).cumsum(0, dtype=torch.int32)
            made[f"cu_seqlens_{name}"] = ends
            made[f"max_seqlen_{name}"] = case.size(size)
    return made


def inputs(case: Case, device: torch.device) -> Inputs:
    """The keyword arguments of a kernel for `case`, on `device`, the same at every call.

    Shapes are those of the contract; q, k, v, do, out and bias are in the case's dtype and laid
    out as it says, everything else is packed.
    """
    values = _draw(case, device)
    made: Inputs = dict.fromkeys(name for name in shapes(case) if name in values.tensors)
    for name in tuple(values.tensors):
        drawn, layout = values.tensors.pop(name), case.layout.of(name)
        if name in AXES:
            made[name] = place_tensor(drawn, case.dtype, layout, AXES[name])
        else:
            made[name] = place_vector(drawn, torch.float32, layout)
    made |= _options(case, device)
    if case.op == BACKWARD:
        stored = forward(case, made)
        out, lse = stored["out"], stored["lse"]
        assert out is not None and lse is not None
        if case.distribution == NEEDLES:
            out = shifted_out(out)
        made["out"] = place_tensor(out, case.dtype, case.layout.of("out"), AXES["out"])
        made["lse"] = place_vector(lse, torch.float32, case.layout.of("lse"))
    return made
