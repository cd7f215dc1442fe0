"""The list of attention's cases: how many, of what, and that the table of defects is true."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import FAMILIES, cases
from kernel_workbench.oracles.attention.geometry import (
    ARGUMENTS,
    BACKWARD,
    DELTA,
    FORWARD,
    GRADIENTS,
)
from kernel_workbench.oracles.attention.layouts import (
    BIAS_STRIDES,
    FAR_BATCHES,
    FAR_HEADS,
    FAR_KEYS,
    FAR_QUERIES,
    OFFSETS,
    STRIDES,
    moves,
)
from kernel_workbench.oracles.attention.values import DISTRIBUTIONS
from kernel_workbench.oracles.cases import DTYPES
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Layout, Tier, dtype_name
from tests import ROOT

OP_NAMES = (FORWARD, DELTA, BACKWARD, GRADIENTS)
WITH_OPTIONS = (FORWARD, BACKWARD, GRADIENTS)
TABLE = ROOT / "docs" / "bugs-covered.csv"
NUMBERS = (*range(1, 27), 30, *range(33, 39), *range(41, 48))


def _ci(op: str) -> list[Case]:
    return [case for case in cases(op) if case.tier == "ci"]


def test_ids_name_one_case_each() -> None:
    """Cases that share an id, and so are kept once, differ in nothing that makes their inputs."""
    tiers: tuple[Tier, ...] = ("ci", "full")
    made: dict[str, Case] = {}
    for tier, family in itertools.product(tiers, FAMILIES):
        for case in family(tier):
            same = made.setdefault(case.id(), case)
            assert replace(case, tier=same.tier, why=same.why) == same
    kept = [case for op in OP_NAMES for case in cases(op)]
    assert sorted(made) == sorted(case.id() for case in kept)
    assert len({case.id().lower() for case in kept}) == len(kept)  # -k ignores case


def test_cases_are_many_and_the_quick_ones_come_first() -> None:
    """At least 620 in ci over the four ops, at least 5000 in all."""
    assert sum(len(_ci(op)) for op in OP_NAMES) >= 620
    assert sum(len(cases(op)) for op in OP_NAMES) >= 5000
    for op in OP_NAMES:
        assert list(cases(op)[: len(_ci(op))]) == _ci(op)
        assert all(case.op == op for case in cases(op))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("op", WITH_OPTIONS)
def test_quick_cases_have_every_option_in_every_dtype(op: str, dtype: object) -> None:
    """Each option in ci, for every op that has options; torch's own dropout needs a GPU."""
    met = {option for case in _ci(op) if case.dtype == dtype for option in case.options}
    assert met == set(OPS[op].options) - {"torch_dropout"}
    assert "torch_dropout" in {option for case in cases(op) for option in case.options}


@pytest.mark.parametrize("op", WITH_OPTIONS)
def test_options_agree_with_the_sizes(op: str) -> None:
    """gqa, unequal_d and window stand just where the sizes say so; others never contradict."""
    broadcast = {"bias_over_batch", "bias_over_heads", "bias_over_queries"}
    for case in cases(op):
        sizes, options = dict(case.sizes), case.options
        assert ("gqa" in options) == (sizes["h_q"] != sizes["h_kv"]), case.id()
        assert ("unequal_d" in options) == (sizes["d"] != sizes["d_v"]), case.id()
        limits = {"window_left", "window_right"} & set(sizes)
        assert ("window" in options) == bool(limits), case.id()
        assert sizes["h_kv"] > 0 and sizes["h_q"] % sizes["h_kv"] == 0, case.id()
        assert "bias" in options or not options & broadcast, case.id()
        assert not {"bias", "varlen"} <= options, case.id()
        assert not {"dropout", "torch_dropout"} <= options, case.id()
        assert "bottom_right" not in options or options & {"causal", "window"}, case.id()
        assert 1 <= sizes["d"] <= 512 and 1 <= sizes["d_v"] <= 512, case.id()


def test_quick_cases_have_the_masks_in_both_orientations() -> None:
    """Causal with both corners in every dtype, the window with both, each with s_q < s_kv and >."""

    def met(op: str, mask: str, corner: str, dtypes: tuple[torch.dtype, ...]) -> set[bool]:
        return {
            case.size("s_q") < case.size("s_kv")
            for case in _ci(op)
            if mask in case.options
            and ("bottom_right" in case.options) == bool(corner)
            and case.dtype in dtypes
            and case.size("s_q") != case.size("s_kv")
        }

    for op, corner in itertools.product(WITH_OPTIONS, ("", "bottom_right")):
        assert all(met(op, "causal", corner, (dtype,)) == {False, True} for dtype in DTYPES)
        assert met(op, "window", corner, DTYPES) == {False, True}
    for op in (FORWARD, BACKWARD):
        limits = [{"window_left", "window_right"} & set(dict(case.sizes)) for case in _ci(op)]
        for wanted in ({"window_left"}, {"window_right"}, {"window_left", "window_right"}):
            assert wanted in limits


@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
def test_quick_cases_have_the_lengths_and_head_sizes_where_kernels_break(op: str) -> None:
    """0, 1, 2, 3, 5, 17, tiles and their neighbours; d of 1 to 512, odd ones among them."""
    wanted = {0, 1, 2, 3, 5, 17, 63, 64, 65, 127, 128, 129, 257}
    assert wanted | {1025} <= {case.size("s_q") for case in _ci(op)}
    assert wanted <= {case.size("s_kv") for case in _ci(op)}
    wanted = {1, 3, 8, 40, 59, 64, 80, 111, 128, 192, 256, 257, 320, 512}
    assert wanted <= {case.size("d") for case in _ci(op)}
    assert wanted <= {case.size("d_v") for case in _ci(op)}


@pytest.mark.parametrize("op", WITH_OPTIONS)
def test_quick_cases_have_what_is_empty(op: str) -> None:
    """No queries, no keys, no batches, in every dtype."""
    for dtype, name in itertools.product(DTYPES, ("s_q", "s_kv", "b")):
        assert any(case.size(name) == 0 for case in _ci(op) if case.dtype == dtype)


def test_quick_deltas_have_the_lengths_and_head_sizes_where_kernels_break() -> None:
    """As for the others, along the two axes that a delta has."""
    wanted = {0, 1, 2, 3, 5, 17, 63, 64, 65, 127, 128, 129, 257, 1025}
    assert wanted <= {case.size("s_q") for case in _ci(DELTA)}
    wanted = {1, 3, 8, 40, 59, 64, 80, 111, 128, 192, 256, 257, 320, 512}
    assert wanted <= {case.size("d_v") for case in _ci(DELTA)}


def test_quick_cases_have_every_distribution() -> None:
    """Finite ones in every dtype; near_overflow in fp16, whose range alone is short."""
    met = {(case.distribution, case.dtype) for op in OP_NAMES for case in _ci(op)}
    finite = [name for name in DISTRIBUTIONS if not name.startswith(("nan", "inf", "minus_inf"))]
    expected = {
        (name, dtype)
        for name, dtype in itertools.product(finite, DTYPES)
        if name != "near_overflow" or dtype_name(dtype) == "float16"
    }
    assert met >= expected
    assert {name for name, _ in met} == {*DISTRIBUTIONS}


EVERY = (*OFFSETS, *STRIDES, *BIAS_STRIDES)
FAR = (*FAR_QUERIES, *FAR_KEYS, *FAR_HEADS, *FAR_BATCHES)


def _names(layouts: Iterable[Layout], op: str) -> set[str]:
    """Return the names of the layouts that move an op's tensors."""
    taken = ARGUMENTS[op] if op == DELTA else (*ARGUMENTS[op], "bias")
    return {layout.name for layout in layouts if moves(layout, taken)}


@pytest.mark.parametrize("op", [FORWARD, DELTA])
def test_quick_cases_have_every_layout(op: str) -> None:
    """Each named layout, offsets 1 to 7 of each tensor alone among them."""
    named = _names((*EVERY, *FAR), op)
    assert {case.layout.name for case in _ci(op)} == named | {CONTIGUOUS.name}
    for name in (*ARGUMENTS[op], *(() if op == DELTA else ("bias",))):
        assert {f"{name}_offset{k}" for k in range(1, 8)} <= named


def test_quick_backwards_have_every_stride_and_offset() -> None:
    """All strides, all offsets of what the forward hasn't got, and some of the rest."""
    met = {case.layout.name for case in _ci(BACKWARD)}
    assert _names((*STRIDES, *BIAS_STRIDES, *FAR, *OFFSETS[:7]), BACKWARD) <= met
    assert {f"{name}_offset{k}" for name in ("do", "out") for k in range(1, 8)} <= met
    assert all(any(each.startswith(f"{name}_offset") for each in met) for name in "qkv")
    assert len({case.layout.name for case in _ci(GRADIENTS)}) >= 15


@pytest.mark.parametrize("op", OP_NAMES)
def test_full_has_every_layout_in_every_dtype(op: str) -> None:
    """For every op, whatever `ci` leaves to its parts."""
    met = {(case.layout.name, case.dtype) for case in cases(op)}
    assert set(itertools.product(_names(EVERY, op), DTYPES)) <= met


@pytest.mark.parametrize("op", OP_NAMES)
def test_layouts_place_a_tensor_that_the_case_has(op: str) -> None:
    """No case is a contiguous one under another name."""
    for case in cases(op):
        placed = OPS[op].geometry(case)
        if case.layout != CONTIGUOUS:
            assert set(placed) & {name for name, _ in case.layout.tensors}, case.id()


def test_full_has_the_large_and_the_many() -> None:
    """More than 65535 batches and heads, tensors past 2^31 elements, and sequences of 16384."""

    def largest(op: str) -> int:
        places = [OPS[op].geometry(case).values() for case in cases(op) if case.tier == "full"]
        return max(
            sum((size - 1) * step for size, step in zip(each.shape, each.strides, strict=True))
            for place in places
            for each in place
            if all(each.shape)
        )

    for op in OP_NAMES:
        assert max(case.size("b") for case in cases(op)) > 65535
        assert max(case.size("h_q") for case in cases(op)) > 65535
        assert largest(op) > 2**31
    for op in (FORWARD, BACKWARD):
        assert {(case.size("s_q"), case.size("d")) for case in cases(op)} >= {(16384, 128)}


def test_quick_cases_are_small() -> None:
    """Tiles of 64 x 64 under an interpreter take milliseconds: few cases have over a hundred."""
    for op in WITH_OPTIONS:
        tiles = []
        for case in _ci(op):
            q, k = -(-case.size("s_q") // 64), -(-case.size("s_kv") // 64)
            tiles.append(case.size("b") * case.size("h_q") * q * k)
        assert max(tiles) <= 150
        assert sum(tiles) / len(tiles) <= 8


@cache
def _by_id(op: str) -> dict[str, Case]:
    return {case.id(): case for case in OPS[op].cases()}


def _rows() -> dict[int, list[str]]:
    """The ids that the table names, by the defect's number."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {int(row["bug"]): row["cases"].split() for row in csv.DictReader(file)}


def test_table_of_defects_has_every_number() -> None:
    """1 to 26, 30, 33 to 38 and 41 to 47, in order, each with a case."""
    rows = _rows()
    assert tuple(rows) == NUMBERS
    assert all(rows.values())


@pytest.mark.parametrize("number", NUMBERS)
def test_table_of_defects_names_cases_that_exist_and_say_so(number: int) -> None:
    """Each id is a case; one of attention's says in its `why` which defects it covers."""
    for name in _rows()[number]:
        known = _by_id(name.partition("-")[0])
        assert name in known
        if name.startswith("attention"):
            listed = re.search(r"bugs? (\d+(?:, \d+)*)", known[name].why)
            assert listed is not None, name
            assert str(number) in listed[1].split(", "), name


def test_names_of_layouts_mean_one_layout_each() -> None:
    """An id has the layout's name alone."""
    layouts: dict[str, Layout] = {}
    for op in OP_NAMES:
        for case in cases(op):
            assert layouts.setdefault(case.layout.name, case.layout) == case.layout
