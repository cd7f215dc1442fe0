"""Relations of attention's outputs for inputs that are changed in a known way.

    keys, queries, columns in another order    outputs in that order
    batches and heads in another order         likewise
    K + c, c the same for all keys     S_ij + scale q_i.c, so that out and all gradients stay, and
                                       lse gains scale q_i.c: sum_j dS_ij = 0 keeps dq
    V + c, c the same for all keys     out + c, where weights add up to 1; D gains do.c as dP does,
                                       so that dS and all gradients stay
    2^n do                             2^n of every gradient, bit for bit: each is linear in do
    a bias over all keys               dS adds up to 0 along each row of dbias

"coarse" values are multiples of 1/8, to which c adds without a rounding in every type. The factor
2^n is exact but in fp16, where a small dS is subnormal when it is cast, and not when it is larger.

A kernel is batch-invariant if a batch, or a key head with its query heads, or a sequence, gets the
same bits alone: so does each of its rows, whatever lies beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.geometry import DELTA, FORWARD, GRADIENTS, key_ranges, spans
from kernel_workbench.oracles.attention.scores import Problem
from kernel_workbench.oracles.cases.distributions import COARSE, generator
from kernel_workbench.oracles.op import (
    CONTIGUOUS,
    Balance,
    Case,
    Inputs,
    Relation,
    Relations,
    optional,
    required,
)
from kernel_workbench.oracles.relations import FACTOR, Tensors, copied, is_sampled, scaled

# Letters of axes: batch, query, its head, key, its head, column of q and k, column of v.
_AXES = {
    "q": "bqhd",
    "k": "bjgd",
    "v": "bjgc",
    "do": "bqhc",
    "out": "bqhc",
    "lse": "bhq",
    "delta": "bhq",
    "bias": "bhqj",
    "sink": "h",
    "alibi_slopes": "h",
}
_AXES |= {f"d{name}": _AXES[name] for name in ("q", "k", "v", "bias", "sink")}
_SIZES = {"b": "b", "q": "s_q", "h": "h_q", "j": "s_kv", "g": "h_kv", "d": "d", "c": "d_v"}
Orders = dict[str, Tensor]


def relations(case: Case) -> Relations:
    """The relations that a case is good for: those of coarse values; of others invariance alone."""
    if case.layout != CONTIGUOUS or not all(size for _, size in case.sizes):
        return ()
    if case.distribution == COARSE:
        return tuple(_all(case))
    small = case.op != DELTA and case.size("s_q") * case.size("s_kv") <= 2**20
    return tuple(_alone(case)) if small and is_sampled(case, one_in=4) else ()


def _all(case: Case) -> Iterator[Relation | Balance]:
    options = case.options
    yield from _reordered(case)
    if case.op in (FORWARD, GRADIENTS):
        if not options & {"softcap", "sink"}:
            yield _keys_shifted(case)
        if not options & {"dropout", "sink"}:
            yield _values_shifted(case)
    if case.op != FORWARD:
        name, exact = f"{FACTOR:.0f} do scales every gradient", case.dtype != torch.float16
        yield scaled(name, case, {"do"}, exact=exact)
    if case.op == GRADIENTS and "bias" in options and "sink" not in options:
        yield Balance("dS adds up to 0 along a row", "dbias", None, _no_sums)
    yield from _alone(case)


def _arranged(case: Case, orders: Orders, tensors: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the tensors of `_AXES` with axes reordered, but for axes that are broadcast."""
    sizes = dict(case.sizes)
    result = {}
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or name not in _AXES:
            continue
        for axis, letter in enumerate(_AXES[name]):
            if letter in orders and value.shape[axis] == sizes[_SIZES[letter]]:
                value = value.index_select(axis, orders[letter].to(value.device))
        result[name] = value
    return result


def _reordering(name: str, case: Case, orders: Orders) -> Relation:
    return Relation(
        name,
        case,
        change=lambda inputs: copied(inputs, _arranged(case, orders, inputs)),
        carry=partial(_arranged, case, orders),
    )


def _reordered(case: Case) -> Iterator[Relation]:
    """Axes in another order, as far as masks and dropout leave their places without a meaning."""
    options, sizes = case.options, dict(case.sizes)
    draw = generator(torch.device("cpu"), "orders", case.id())

    def shuffled(letter: str) -> Orders:
        return {letter: torch.randperm(sizes[_SIZES[letter]], generator=draw)}

    placed = options & {"causal", "window", "alibi", "dropout", "torch_dropout", "varlen"}
    if case.op == DELTA:
        yield _reordering("rows in another order", case, shuffled("q"))
    else:
        if not placed:
            yield _reordering("keys in another order", case, shuffled("j"))
            yield _reordering("queries in another order", case, shuffled("q"))
        if case.op == FORWARD or case.tier == "full":
            yield _reordering("columns of q and k in another order", case, shuffled("d"))
    if case.op in (FORWARD, DELTA) or case.tier == "full":
        yield _reordering("columns of v in another order", case, shuffled("c"))
    if (
        not options & {"dropout", "torch_dropout", "varlen"}
        and case.size("b") * case.size("h_q") > 1
    ):
        yield _reordering("batches and heads reversed", case, _reversed(case))


def _reversed(case: Case) -> Orders:
    """Batches, and groups of query heads with their key heads, from the last to the first."""
    b, h_q = case.size("b"), case.size("h_q")
    h_kv = h_q if case.op == DELTA else case.size("h_kv")
    groups = torch.arange(h_q).view(h_kv, -1)
    return {
        "b": torch.arange(b).flip(0),
        "g": torch.arange(h_kv).flip(0),
        "h": groups.flip(0).reshape(-1),
    }


def _offsets(width: int) -> Tensor:
    """c [width], multiples of 1/8 up to 4 of both signs, in float64."""
    return ((7 * torch.arange(width)) % 65 - 32).double() / 8


def _added(name: str, inputs: Inputs) -> Inputs:
    tensor = required(inputs, name)
    changed: Inputs = {name: tensor + _offsets(tensor.shape[-1]).to(tensor)}
    return copied(inputs, changed)


def _keys_shifted(case: Case) -> Relation:
    def of_lse(inputs: Inputs) -> dict[str, Tensor]:
        if case.op != FORWARD:
            return {}
        problem = Problem.of(case, inputs)
        q = problem.q.double()
        return {"lse": problem.scale * (q @ _offsets(q.shape[3]).to(q)).transpose(1, 2)}

    name = "K + c leaves out" if case.op == FORWARD else "K + c leaves all gradients"
    return Relation(name, case, partial(_added, "k"), dict, shift=of_lse)


def _values_shifted(case: Case) -> Relation:
    def of_out(inputs: Inputs) -> dict[str, Tensor]:
        if case.op != FORWARD:
            return {}
        q, v = required(inputs, "q"), required(inputs, "v")
        shift = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=torch.float64)
        for batch, queries, keys in spans(case):
            first, last = key_ranges(case, queries.stop - queries.start, keys.stop - keys.start)
            attends = (first <= last).to(q.device)
            shift[batch, queries] = attends[:, None, None] * _offsets(v.shape[3]).to(shift)
        return {"out": shift}

    name = "V + c shifts out by c" if case.op == FORWARD else "V + c leaves all gradients"
    return Relation(name, case, partial(_added, "v"), dict, shift=of_out)


def _no_sums(inputs: Inputs) -> Tensor:
    bias = required(inputs, "bias")
    return bias.new_zeros(bias.shape[:-1], dtype=torch.float64)


def _alone(case: Case) -> Iterator[Relation]:
    """A part of the case on its own."""
    if case.options & {"dropout", "torch_dropout"}:
        return  # a pair is kept or dropped by the number of its batch and head
    if "varlen" in case.options:
        yield _sequence_alone(case)
        return
    b, h_q = case.size("b"), case.size("h_q")
    h_kv = h_q if case.op == DELTA else case.size("h_kv")
    if b > 1:
        yield _part(case, "a batch alone", {"b": torch.tensor([b - 1])}, {"b": 1})
    if h_kv > 1:
        group = h_q // h_kv
        orders = {"g": torch.tensor([h_kv - 1]), "h": torch.arange(h_q - group, h_q)}
        yield _part(case, "a key head alone", orders, {"h_q": group, "h_kv": 1})


def _part(case: Case, name: str, orders: Orders, sizes: Mapping[str, int]) -> Relation:
    """Return the relation of the part that `orders` choose; its outputs sum over no other part."""
    part = replace(
        case, sizes=tuple((axis_name, sizes.get(axis_name, size)) for axis_name, size in case.sizes)
    )

    def carry(outputs: Tensors) -> dict[str, Tensor]:
        summed = {
            output
            for output in outputs
            for axis, letter in enumerate(_AXES[output])
            if letter in orders and outputs[output].shape[axis] != case.size(_SIZES[letter])
        }
        summed |= {"dsink"} if "b" in orders else set()
        kept = {output: value for output, value in outputs.items() if output not in summed}
        return _arranged(case, orders, kept)

    def change(inputs: Inputs) -> Inputs:
        return copied(inputs, _arranged(case, orders, inputs))

    return Relation(name, part, change, carry, exact=True, of="batch-invariant")


def _sequence_alone(case: Case) -> Relation:
    """Return the relation of the longest sequence, the first of several, in a batch of its own."""
    longest = max(
        enumerate(spans(case)), key=lambda numbered: numbered[1][1].stop - numbered[1][1].start
    )
    _, queries, keys = longest[1]
    lengths = {"s_q": queries.stop - queries.start, "s_kv": keys.stop - keys.start, "b": 1}
    part = replace(
        case,
        sizes=tuple((axis_name, lengths.get(axis_name, size)) for axis_name, size in case.sizes),
    )
    along: dict[str, tuple[int, slice]] = {}
    for name, axes in _AXES.items():
        if "q" in axes[1:]:
            along[name] = axes.index("q", 1), queries
        elif "j" in axes:
            along[name] = axes.index("j"), keys

    def cut(tensors: Mapping[str, object]) -> dict[str, Tensor]:
        result = {}
        for name, value in tensors.items():
            if isinstance(value, Tensor) and name in along:
                axis, places = along[name]
                result[name] = value.narrow(axis, places.start, places.stop - places.start)
        return result

    def change(inputs: Inputs) -> Inputs:
        changed: Inputs = {**cut(inputs)}
        for name, size in (("q", lengths["s_q"]), ("k", lengths["s_kv"])):
            ends = optional(inputs, f"cu_seqlens_{name}")
            assert ends is not None
            changed[f"cu_seqlens_{name}"] = ends.new_tensor([0, size])
            changed[f"max_seqlen_{name}"] = size
        return copied(inputs, changed)

    def carry(outputs: Tensors) -> dict[str, Tensor]:
        return cut({name: tensor for name, tensor in outputs.items() if name != "dsink"})

    return Relation("a sequence alone", part, change, carry, exact=True, of="batch-invariant")
