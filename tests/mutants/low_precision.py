"""Plain PyTorch's outputs for a case in its own dtype: other tests compare with these outputs.

flash-attention's rule asks whether a kernel is at most twice as far from the truth as the outputs:
products, softmax and sums in the half itself, gradients by autograd. An fp32 case is in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
    LAYER_NORM_BACKWARD,
    OPS,
)
from kernel_workbench.oracles.analysis.trace import run
from kernel_workbench.oracles.layer_norm.values import EPS
from kernel_workbench.oracles.op import Inputs
from kernel_workbench.oracles.reference import ReferenceOp
from tests.builders.plain_attention import Attention, Given, heads_first


class _InItsDtype(Attention):
    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        """As it is."""
        del name, backward
        return tensor

    def differentiable(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> tuple[Tensor, ...]:
        """out [b, s_q, h_q, d_v] and lse [b, h_q, s_q]."""
        outs, statistics = [], []
        for part in self.parts(q, k, v, given):
            scores = self.scores(part)[0].to(q.dtype)
            sink = given.get("sink")
            if sink is not None:
                column = sink.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)
                scores = torch.cat([scores, column], -1)
            dead = (scores == -math.inf).all(-1, keepdim=True)
            p = scores.masked_fill(dead, 0).softmax(-1).masked_fill(dead, 0)
            p = p if sink is None else p[..., :-1]
            w = self.keep(part)
            outs.append((p if w is None else p * w.to(q.dtype)) @ part.v)
            statistics.append(scores.float().logsumexp(-1))
        return heads_first(torch.cat(outs, 2)), torch.cat(statistics, 2)


def _attention(inputs: dict[str, Any]) -> dict[str, Tensor]:
    given = {name: each for name, each in inputs.items() if name not in ("q", "k", "v", "do")}
    out, lse = _InItsDtype().differentiable(inputs["q"], inputs["k"], inputs["v"], given)  # type: ignore[arg-type]
    return {"out": out, "lse": lse}


def _gradients(inputs: dict[str, Any]) -> dict[str, Tensor]:
    given = {name: each for name, each in inputs.items() if name not in ("out", "lse")}
    names = [name for name in ("q", "k", "v", "bias", "sink") if given.get(name) is not None]
    leaves = {name: given[name].detach().clone().requires_grad_() for name in names}
    out = _attention(given | leaves)["out"]
    if not out.numel():
        return {f"d{name}": torch.zeros_like(leaf) for name, leaf in leaves.items()}
    made: tuple[Tensor | None, ...] = torch.autograd.grad(
        out, list(leaves.values()), given["do"], allow_unused=True
    )
    return {
        f"d{name}": torch.zeros_like(leaves[name]) if each is None else each
        for name, each in zip(names, made, strict=True)
    }


def _delta(inputs: dict[str, Any]) -> dict[str, Tensor]:
    return {"delta": heads_first(inputs["out"] * inputs["do"]).sum(-1).float()}


def _layer_norm(inputs: dict[str, Any]) -> dict[str, Tensor]:
    dy, x = inputs["dy"], inputs["x"].detach()
    weight: Tensor | None = inputs["weight"]
    scale = torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight.detach()
    leaves = [each.clone().requires_grad_() for each in (x, scale, torch.zeros_like(scale))]
    wide, shown, shift = leaves[0].to(scale.dtype), leaves[1], leaves[2]
    shown = shown + 1 if inputs.get("zero_centred") else shown
    if inputs["mean"] is None:
        rstd = (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
        out = wide * rstd * shown + shift
    else:
        out = torch.nn.functional.layer_norm(wide, wide.shape[-1:], shown, shift, EPS)
    dx, dweight, dbias = torch.autograd.grad(out.to(x.dtype), leaves, dy)
    if "dresidual" in inputs:
        dx = dx + inputs["dresidual"]
    made = {"dx": dx, "dweight": dweight, "dbias": dbias}
    return made | {name: made[name] + inputs[name] for name in made if name in inputs}


_OF = {
    ATTENTION_FORWARD.name: _attention,
    ATTENTION_DELTA.name: _delta,
    ATTENTION_BACKWARD.name: _gradients,
    ATTENTION_GRADIENTS.name: _gradients,
    LAYER_NORM_BACKWARD.name: _layer_norm,
}


def _reference(op: ReferenceOp, inputs: Inputs) -> dict[str, Tensor]:
    """Return a reference's outputs where all its numbers are in the first argument's dtype."""
    given = (each.dtype for each in inputs.values() if isinstance(each, Tensor))
    dtype = next(each for each in given if each.is_floating_point)
    return dict(zip(op.outputs, run(op.reference.function, inputs, dtype), strict=True))


def low_precision(op: str, inputs: Inputs) -> Mapping[str, Tensor]:
    """The outputs of an op by name, in the dtypes that PyTorch gives them."""
    known = OPS[op]
    with torch.enable_grad():
        made = (
            _reference(known, inputs) if isinstance(known, ReferenceOp) else _OF[op](dict(inputs))
        )
    return {name: each.detach() for name, each in made.items()}
