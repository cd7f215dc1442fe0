"""Changes of signs under which every correct kernel's outputs change signs, and nothing else.

Multiplying by -1 is exact, and rounding to nearest or towards zero knows no sign: an operation on
flipped operands gives the flipped result, in any order of summation, with subnormals, infinities
and NaN. So signs s, t, g of which a product leaves no trace can be put into a second call's inputs
and taken out of its outputs, which then are the first call's, bit by bit but for the signs of
zeros (x - x is +0 whichever way it is turned): compare them as numbers.

Attention, for each batch and key head (its query heads have the same signs):

    s on columns of q and k        q.k stays; dq and dk get s
    t on columns of v, do and out  P and do.v stay; out and dv get t
    g on do as a whole             delta, dP, dS and so dq, dk, dv, dbias and dsink get g

ATTENTION_DELTA, whose elements meet nothing but each other: t on any element of out and do, g on
any row of do and its delta. Layer norm, with x^ = (x - mean) rstd and g = weight dy:

    s on columns of weight and dy    g stays; dweight and dbias get s        not zero-centred
    t on columns of x and dy         dx and dbias get t                      RMS norm
    g on rows of dy and dresidual    dx gets g; dbias, dweight want one g for all rows
    h on rows of x and mean          x^ gets h, dx stays; dweight wants one g h for all rows

Gradients that are added to get the signs of what is added. An axis of stride 0 has one sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.attention.geometry import AXES, DELTA, shapes
from oracles.inputs import generator
from oracles.op import Case, Inputs

# By op: the argument that its outputs, but for lse, are linear in; of the others it is do.
_LINEAR = {"layer_norm_backward": "dy", "attention_forward": "v"}
# Integers as wide as a number, and the one whose single bit is the sign's.
_BITS = {2: (torch.int16, -(2**15)), 4: (torch.int32, -(2**31))}


@dataclass(frozen=True, slots=True)
class Flips:
    """Which signs to change: of each tensor some bool tensors that broadcast to it, True: flipped.

    An element's sign is changed once for each True that it meets.
    """

    of_inputs: Mapping[str, tuple[Tensor, ...]]
    of_outputs: Mapping[str, tuple[Tensor, ...]]

    def apply_(self, inputs: Inputs) -> None:
        """Change the inputs in place, whatever their strides; what lies between stays."""
        for name, factors in self.of_inputs.items():
            tensor = inputs.get(name)
            if isinstance(tensor, Tensor):
                _flip_(tensor, factors)

    def outputs(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a call on changed inputs with their signs put back, in new memory."""
        made = {}
        for name, output in outputs.items():
            made[name] = output.clone()
            _flip_(made[name], self.of_outputs.get(name, ()))
        return made


def flips(case: Case, seed: int) -> Flips:
    """Signs for a case of any op, drawn from `seed`; something is flipped wherever something can.

    Raises LookupError for an op that nothing is known of.
    """
    draw = _Signs(generator(torch.device("cpu"), "signs", seed))
    if case.op == DELTA:
        return _of_delta(case, draw)
    if case.op.startswith("attention_"):
        return _of_attention(case, draw)
    if case.op == "layer_norm_backward":
        return _of_layer_norm(case, draw)
    raise LookupError(f"there are no signs to flip in {case.op}")


def linear_flips(case: Case, inputs: Inputs, seed: int) -> Flips:
    """Signs for single elements of the argument that the op's outputs are linear in.

    No output has the signs of a call without them: dweight, dbias, dk and dv sum over such
    elements, dx, dq, out and delta hold sums of them. Only lse stays.
    """
    name = _LINEAR.get(case.op, "do")
    tensor = inputs[name]
    assert isinstance(tensor, Tensor)
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    draw = _Signs(generator(torch.device("cpu"), "linear", seed))
    return Flips({name: (draw(*(1 if step == 0 else size for size, step in sizes)),)}, {})


def _flip_(tensor: Tensor, factors: Iterable[Tensor]) -> None:
    kind, sign = _BITS[tensor.element_size()]
    bits = tensor.view(kind)
    once = tuple(
        slice(1 if step == 0 else None)
        for step in bits.stride()  # an expanded axis is one place in memory
    )
    for factor in factors:
        bits[once].bitwise_xor_(factor.to(bits.device).to(kind) * sign)


class _Signs:
    """A source of random signs."""

    def __init__(self, draw: torch.Generator) -> None:
        self._draw = draw

    def __call__(self, *shape: int) -> Tensor:
        """Bool of this shape, True for a flip: one at least, and of several not all."""
        made = self.perhaps(*shape)
        if made.numel() and len(made.unique()) == 1:
            made.view(-1)[0] = True
            made.view(-1)[1:] = False
        return made

    def perhaps(self, *shape: int) -> Tensor:
        """Likewise; none, perhaps."""
        return torch.rand(shape, generator=self._draw) < 0.5


def _expanded(case: Case, *names: str) -> str:
    """The letters of the axes that some of these tensors see one entry of, throughout."""
    return "".join(case.layout.of(name).expanded for name in names)


def _of_delta(case: Case, draw: _Signs) -> Flips:
    sizes = dict(zip("bshd", shapes(case)["do"], strict=True))

    def of(axes: str, *names: str) -> Tensor:
        fixed = _expanded(case, *names)
        return draw(*(sizes[each] if each in axes and each not in fixed else 1 for each in "bshd"))

    columns, rows, whole = of("bhd", "out", "do"), of("bsh", "out", "do"), of("bsh", "do")
    both = columns, rows
    return Flips(
        {"out": both, "do": (*both, whole)}, {"delta": (whole.squeeze(3).transpose(1, 2),)}
    )


def _of_attention(case: Case, draw: _Signs) -> Flips:
    made = shapes(case)
    b, h_kv = made["k"][0], made["k"][2]
    group = case.size("h_q") // h_kv

    def of(width: int, *names: str, summed: str = "") -> Tensor:
        """[b, 1, h_kv, width], an axis being 1 where one sign has to do for all of it."""
        fixed = _expanded(case, *(name for name in names if name in made)) + summed
        sizes = zip("bshd", (b, 1, h_kv, width), strict=True)
        return draw(*(1 if axis in fixed else size for axis, size in sizes))

    def of_queries(signs: Tensor) -> Tensor:
        return signs if signs.shape[2] == 1 else signs.repeat_interleave(group, 2)

    scored, valued = of(case.size("d"), "q", "k"), of(case.size("d_v"), "v", "do", "out")
    if "do" in made:
        # One sign for all columns would undo what a gradient gets from do's.
        scored, valued = (each & (each.shape[3] > 1) for each in (scored, valued))
    over = "b" if case.options & {"bias_over_batch", "sink"} else ""
    over += "h" if "bias_over_heads" in case.options else ""
    whole = of(1, "do", summed=over)
    rows, values = of_queries(whole), of_queries(valued)
    heads = rows.squeeze(3).transpose(1, 2)[..., None]  # [b, h_q, 1, 1]
    inputs: dict[str, tuple[Tensor, ...]]
    inputs = {"q": (of_queries(scored),), "k": (scored,), "v": (valued,)}
    inputs |= {"out": (values,), "do": (values, rows)}
    return Flips(
        {name: factors for name, factors in inputs.items() if name in AXES and name in made},
        {
            "out": (values,),
            "dq": (of_queries(scored), rows),
            "dk": (scored, whole),
            "dv": (valued, whole),
            "dbias": (heads,),
            "dsink": (heads[0, :, 0, 0],) if b else (),
        },
    )


def _of_layer_norm(case: Case, draw: _Signs) -> Flips:
    options, n, batches = case.options, case.size("n"), case.layout.batches
    rows = (case.size("m"),) if batches is None else (batches, case.size("m") // batches)
    one = (1,) * len(rows)
    has_weight, zero_centred = "no_weight" not in options, "zero_centred" in options
    has_bias = has_weight and "no_bias" not in options
    dy, x = _expanded(case, "dy"), _expanded(case, "x")
    none = torch.zeros(1, dtype=torch.bool)
    # One sign for all columns would undo what a gradient gets from dy's.
    columns = n > 1 and "all" not in dy + x
    weights = draw(n) if columns and has_weight and not zero_centred else none
    inner = draw(n) if columns and "rms_norm" in options else none
    # Of dy x^, each row's share of dweight.
    product = draw.perhaps(1) if len(weights) > 1 else draw(1)
    of_dy = draw(*(one if has_bias or dy or (has_weight and x) else rows), 1)
    of_x = of_dy ^ product if has_weight else draw(*(one if x else rows), 1)
    inputs = {
        "dy": (weights, inner, of_dy),
        "x": (inner, of_x),
        "mean": (of_x.squeeze(-1),),
        "weight": (weights,),
        "dresidual": (inner, of_dy),
        "dweight": (weights, product),
        "dbias": (weights, inner, of_dy.reshape(-1)) if has_bias else (),
    }
    outputs = {"dx": (inner, of_dy), "dweight": inputs["dweight"], "dbias": inputs["dbias"]}
    return Flips(inputs, outputs)
