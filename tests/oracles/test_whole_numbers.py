# ruff: noqa: F722, F821, UP037  # shapes in annotations
"""Whole numbers of a reference: pointers, distinct and rising ones, and what they leave unread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from kernel_workbench import Sizes, op
from kernel_workbench.oracles.cases.distributions import NEEDLES
from kernel_workbench.oracles.cases.names import layout_named
from kernel_workbench.oracles.op import ArgumentsError, Inputs, required
from kernel_workbench.oracles.reference import OpError, ReferenceOp
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.oracles.reference.whole_numbers import UNREAD, overwriting

_CPU = torch.device("cpu")
_SINGLE = (torch.float32, torch.float32)


def _some(*values: int) -> Sizes:
    return Sizes("some", {"some": values}, lambda _: "some")


_SIZES = {"t": _some(12, 20), "b": _some(4, 3), "n": _some(8, 6)}


@op(sizes=_SIZES, pointers={"ends": "t"}, name="segment_sums")
def segment_sums(x: Float[Tensor, "t n"], ends: Int32[Tensor, "b+1"]) -> Float[Tensor, "b n"]:
    """Sums of the rows of each part."""
    before = torch.cat([torch.zeros_like(x[:1]), x.cumsum(0)])
    return before[ends[1:].long()] - before[ends[:-1].long()]


@op(sizes=_SIZES, labels={"slot": "t"}, name="slots_written")
def slots_written(
    cache: Float[Tensor, "t n"], new: Float[Tensor, "b n"], slot: Int[Tensor, "b"]
) -> Float[Tensor, "t n"]:
    """The cache with new rows in some slots."""
    return cache.index_put((slot,), new)


@op(sizes=_SIZES, labels={"slot": "t"}, name="slots_read")
def slots_read(cache: Float[Tensor, "t n"], slot: Int[Tensor, "b"]) -> Float[Tensor, "b n"]:
    """Some rows of the cache."""
    return cache[slot]


@op(sizes=_SIZES, labels={"slot": "t"}, name="slots_added")
def slots_added(new: Float[Tensor, "b n"], slot: Int[Tensor, "b"]) -> Float[Tensor, "b n"]:
    """Rows, each with the rows of its own slot added."""
    return (slot[:, None] == slot[None, :]).to(new.dtype) @ new


def _inputs(made: ReferenceOp, distribution: str = "normal", seed: int = 0) -> Inputs:
    case = case_of(made.name, {"t": 12, "b": 4, "n": 8}, _SINGLE, "ci", distribution)
    wanted = {name: size for name, size in case.sizes if name in made.reference.sizes}
    chosen = case_of(made.name, wanted, _SINGLE, "ci", distribution)
    return made.inputs(replace(chosen, seed=seed), _CPU)


def test_pointers_rise_from_nothing_to_the_end() -> None:
    """Pointers rise so with each seed, and an axis of one more than a size has one more."""
    for seed in range(20):
        ends = required(_inputs(segment_sums, seed=seed), "ends")
        assert ends.shape == (5,)
        assert (int(ends[0]), int(ends[-1])) == (0, 12)
        assert bool((ends.diff() >= 0).all())


def test_indices_that_overwrite_are_distinct() -> None:
    """Indices that read, or add up, are as they come: some number comes twice in some draw."""
    assert overwriting(slots_written.reference) == {"slot"}
    assert not overwriting(slots_read.reference)
    assert not overwriting(slots_added.reference)
    drawn = [required(_inputs(slots_written, seed=seed), "slot") for seed in range(20)]
    assert all(len(each.unique()) == len(each) for each in drawn)
    needles = [required(_inputs(slots_written, "needles", seed), "slot") for seed in range(9)]
    assert all(len(each.unique()) == len(each) for each in needles)
    assert "slot_expanded_all" not in {case.layout.name for case in slots_written.cases()}
    read = [required(_inputs(slots_read, seed=seed), "slot") for seed in range(20)]
    assert any(len(each.unique()) < len(each) for each in read)


def test_slots_that_nobody_reads_hold_nan() -> None:
    """All of them, and no other; the truth stays as it is."""
    assert slots_read.allowed is not None
    assert UNREAD in slots_read.allowed.distributions
    inputs = _inputs(slots_read, UNREAD)
    cache, slot = required(inputs, "cache"), required(inputs, "slot")
    unread = torch.ones(12, dtype=torch.bool).index_fill(0, slot, value=False)
    assert torch.equal(cache.isnan().all(1), unread)
    assert torch.equal(cache.isnan().any(1), unread)


def test_written_slots_are_read_where_they_are_not_overwritten() -> None:
    """A slot that stays is an output's: NaN stands in those alone that new rows replace."""
    inputs = _inputs(slots_written, UNREAD)
    cache, slot = required(inputs, "cache"), required(inputs, "slot")
    replaced = torch.zeros(12, dtype=torch.bool).index_fill(0, slot, value=True)
    assert torch.equal(cache.isnan().all(1), replaced)


def test_rising_numbers_rise_and_users_draw_their_own() -> None:
    """And no sign of an argument that a user draws is turned."""

    @op(
        sizes={name: _SIZES[name] for name in ("t", "n")},
        labels={"s": "n"},
        rising=("s",),
        distributions={"x": torch.sigmoid},
        name="own",
    )
    def own(x: Float[Tensor, "t n"], s: Int[Tensor, "t"]) -> Float[Tensor, "t"]:
        return x.gather(1, s[:, None]).squeeze(1)

    inputs = own.inputs(case_of("own", {"t": 12, "n": 8}, _SINGLE, "ci", "times3"), _CPU)
    x, s = required(inputs, "x"), required(inputs, "s")
    assert bool((s.diff() >= 0).all())
    assert bool(((x > 0) & (x < 1)).all())
    assert not own.signs(case_of("own", {"t": 12, "n": 8}, _SINGLE, "ci"), 1).of_inputs.get("x")


_WRONG: Mapping[str, Callable[[], object]] = {
    "pointers names 'x'": lambda: op(sizes=_SIZES, labels={"slot": "t"}, pointers={"x": "t"}),
    "rising names 'x'": lambda: op(sizes=_SIZES, labels={"slot": "t"}, rising=("x",)),
    "distributions names 'y'": lambda: op(
        sizes=_SIZES, labels={"slot": "t"}, distributions={"y": torch.sigmoid}
    ),
}


@pytest.mark.parametrize("told", _WRONG)
def test_word_for_another_argument_is_told(told: str) -> None:
    """In one sentence, which names it."""

    def read(x: Float[Tensor, "t n"], slot: Int[Tensor, "b"]) -> Float[Tensor, "b n"]:
        return x[slot]

    with pytest.raises(OpError, match=told):
        _WRONG[told]()(read)  # type: ignore[operator]


def test_every_argument_is_laid_out_in_some_case() -> None:
    """Each layout but offsets is in a case of sizes above 1; t is too long to be far apart."""
    for made in (slots_read, segment_sums):
        assert made.allowed is not None
        listed = [case for case in made.cases() if case.tier == "ci"]
        met = {case.layout.name for case in listed if all(size > 1 for _, size in case.sizes)}
        assert {name for name in made.allowed.layouts if "offset" not in name} - met <= {
            "cache_far",
            "x_far",
        }


def test_vector_is_placed_as_a_column_and_expanded() -> None:
    """Its strides are those that its geometry says."""
    for name, stride in (("slot_column", 3), ("slot_expanded_all", 0)):
        layout = layout_named(slots_read, name)
        assert layout is not None
        plain = case_of(slots_read.name, {"t": 12, "b": 4, "n": 8}, _SINGLE, "ci")
        case = replace(plain, layout=layout)
        slot = required(slots_read.inputs(case, _CPU), "slot")
        assert slot.stride() == slots_read.geometry(case)["slot"].strides == (stride,)


def test_size_that_an_expression_alone_says_is_solved() -> None:
    """Offsets of b + 1 numbers have the b of their op; others fit no b."""
    made = _inputs(segment_sums)
    assert segment_sums.case_from is not None
    assert segment_sums.case_from(made).size("b") == 4
    with pytest.raises(ArgumentsError, match="no argument's shape says the size b"):
        segment_sums.case_from({**made, "ends": required(made, "ends")[:0]})


@op(sizes={"n": _some(8, 6)}, name="halves_summed")
def halves_summed(x: Float[Tensor, "n//2"]) -> Float[Tensor, "1"]:
    """The sum of half as many numbers."""
    return x.sum()[None]


def test_size_that_does_not_follow_is_said_to_be_unknown() -> None:
    """Several sizes have such a half."""
    assert halves_summed.case_from is not None
    with pytest.raises(ArgumentsError, match="no argument's shape says the size n"):
        halves_summed.case_from({"x": torch.ones(4)})


def test_needles_leave_parts_empty() -> None:
    """One part has all rows: the first, the last, and one between two empty ones, by the seed."""
    ends = {seed: required(_inputs(segment_sums, NEEDLES, seed), "ends") for seed in range(3)}
    middles = {tuple(end[1:-1].tolist()) for end in ends.values()}
    assert all(end[0] == 0 and end[-1] == 12 for end in ends.values())
    assert middles == {(0, 0, 0), (0, 0, 12), (12, 12, 12)}


@op(sizes={"t": _some(12, 20), "n": _some(8, 6)}, name="guarded_softmax")
def guarded_softmax(x: Float[Tensor, "t n"], mask: Bool[Tensor, "t n"]) -> Float[Tensor, "t n"]:
    """Softmax of some numbers; 0 where there are none."""
    e = torch.where(mask, torch.exp(x), 0.0)
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total)


@op(sizes={"t": _some(12, 20), "n": _some(8, 6)}, name="unguarded_softmax")
def unguarded_softmax(x: Float[Tensor, "t n"], mask: Bool[Tensor, "t n"]) -> Float[Tensor, "t n"]:
    """NaN where there are no numbers."""
    return torch.where(mask, x, -torch.inf).softmax(-1)


def test_needles_empty_a_mask_where_that_is_defined() -> None:
    """Rows keep one number, some of the last quarter, none, and all of them."""
    counts = required(_inputs(guarded_softmax, NEEDLES), "mask").sum(-1)
    assert {0, 1, 8} <= set(counts.tolist())
    counts = required(_inputs(unguarded_softmax, NEEDLES), "mask").sum(-1)
    assert {1, 8} <= set(counts.tolist())
    assert counts.min() == 1


@op(sizes=_SIZES, labels={"slot": "t"}, distinct={"slot": "b"}, updates=("cache",))
def slots_filled(
    cache: Float[Tensor, "t n"], new: Float[Tensor, "b n"], slot: Int[Tensor, "b"]
) -> None:
    """New rows in some slots."""
    cache[slot] = new


def test_argument_that_is_written_to_has_a_place_for_each_number() -> None:
    """No kernel can write two rows to one place."""
    assert slots_filled.allowed is not None
    expanded = {
        name
        for layout in slots_filled.allowed.layouts.values()
        for name, tensor_layout in layout.tensors
        if tensor_layout.expanded
    }
    assert expanded == {"new"}
