"""Which cases of the attention ops there can be: what a user's own is held to."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from oracles.attention.distributions import COARSE
from oracles.attention.geometry import DELTA, shapes
from oracles.attention.probes import INTEGERS, NEEDLES
from oracles.op import Allowed, Case

SIZES = ("b", "h_q", "h_kv", "s_q", "s_kv", "d", "d_v")
DELTA_SIZES = ("b", "h_q", "s_q", "d_v")
_WINDOW = ("window_left", "window_right")
# A truth is counted row by row, and the lengths of sequences are listed one by one.
_LONGEST, _MOST_SEQUENCES = 2**24, 2**16
_OWN = {NEEDLES, INTEGERS, COARSE}  # their cases' sizes are chosen for them
_OPTIONAL = ("bias", "sink")  # tensors that distributions and layouts may be of


def implied(sizes: Mapping[str, int]) -> frozenset[str]:
    """The options that follow from the sizes."""
    follows = {
        "gqa": sizes.get("h_q") != sizes.get("h_kv", sizes.get("h_q")),
        "unequal_d": sizes.get("d_v") != sizes.get("d", sizes.get("d_v")),
        "window": any(name in sizes for name in _WINDOW),
    }
    return frozenset(name for name, holds in follows.items() if holds)


def _of_sizes(case: Case) -> str | None:
    sizes = dict(case.sizes)
    for name in ("h_q", "h_kv", "d", "d_v"):
        if sizes.get(name, 1) < 1:
            return f"{name} must be 1 or more"
    for name in ("s_q", "s_kv"):
        if sizes.get(name, 0) > _LONGEST:
            return f"{name} is {sizes[name]:,}, and the longest here is {_LONGEST:,}"
    h_q, h_kv = sizes["h_q"], sizes.get("h_kv", sizes["h_q"])
    if h_q % h_kv:
        return f"h_q {h_q} is no multiple of h_kv {h_kv}; each key head has as many query heads"
    if "varlen" in case.options and sizes["b"] > _MOST_SEQUENCES:
        return f"b is {sizes['b']:,} sequences, and varlen has {_MOST_SEQUENCES:,} at most here"
    return None


def _of_options(case: Case) -> str | None:
    options, sizes = case.options, dict(case.sizes)
    follows = implied(sizes)
    if "window" in options - follows:
        return "window needs window_left, window_right or both among the sizes"
    if "gqa" in options - follows:
        return f"gqa means that h_q and h_kv differ, and both are {sizes['h_q']}; leave it out"
    if "unequal_d" in options - follows:
        return f"unequal_d means that d and d_v differ, and both are {sizes['d']}; leave it out"
    if {"bias", "varlen"} <= options:
        return "bias and varlen don't go together: no case has both; leave one out"
    over = sorted(each for each in options if each.startswith("bias_over_"))
    if over and "bias" not in options:
        return f"{over[0]} is about a bias, and there is none; add bias to the options"
    if {"dropout", "torch_dropout"} <= options:
        return "dropout and torch_dropout are two masks of one dropout; leave one out"
    if "bottom_right" in options and not options & {"causal", "window", "alibi"}:
        return "bottom_right moves a mask or a distance; add causal, a window or alibi"
    return None


def _of_values(case: Case) -> str | None:
    drawn = case.distribution
    if drawn in _OWN:
        return f"distribution {drawn} is for the op's own cases, whose sizes suit it; name another"
    if drawn == "near_overflow" and case.dtype != torch.float16:
        return "near_overflow is about float16's range; give dtype float16, or another distribution"
    present = shapes(case)
    for name in _OPTIONAL:
        if drawn.startswith(f"{name}_") and name not in present:
            return f"distribution {drawn} is about a {name}, and there is none; add {name}"
    return None


def _objection(case: Case) -> str | None:
    return _of_sizes(case) or _of_options(case) or _of_values(case)


def allowed(op: str) -> Allowed:
    """What a case of the attention op may be."""
    if op == DELTA:
        return Allowed(DELTA_SIZES, (), implied, _objection)
    return Allowed(SIZES, _WINDOW, implied, _objection)
