"""Coverings: each pair of levels that a kernel's cases can have meets, and nothing else is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernel_workbench.kernels.domain import Domain
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.covering import Coverage, cover_pairs
from kernel_workbench.oracles.cases.factors import levels_of
from kernel_workbench.oracles.cases.names import case_named, joined, layout_named, objection
from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.oracles.reference import ReferenceOp

# The ops of packages, and one reference each with a gradient, whole numbers, an axis that must be
# even, scales and no normalisation: coverings of the rest are made in the same way.
_NAMES = (
    *(name for name, op in OPS.items() if not isinstance(op, ReferenceOp)),
    *("rms_norm_backward", "cross_entropy_forward", "rope_forward", "quantise_blocks"),
    "matmul_forward",
)
_NARROW = Domain(dtypes=(torch.float32, torch.bfloat16), strides="contiguous")
_BY_NAME = pytest.mark.parametrize("op", [OPS[name] for name in _NAMES], ids=_NAMES)


def _small(case: Case) -> bool:
    return OPS[case.op].bytes(case) <= 2**21


def _narrow(case: Case) -> bool:
    """Tell whether a kernel of few features might serve a case."""
    sizes = dict(case.sizes)
    return (
        _small(case)
        and case.dtype == torch.float16
        and case.options <= {"causal", "rms_norm"}
        and sizes.get("d", 64) == 64
        and sizes.get("n", 8) % 8 == 0
    )


@cache
def _covering(name: str) -> tuple[Coverage, NDArray[np.bool_], tuple[Case, ...]]:
    """That of an op's small cases, the pairs that were found possible, and its cases."""
    coverage = Coverage(OPS[name], _small)
    coverage.search()
    return coverage, coverage.possible.copy(), tuple(coverage.cover("ci", "why"))


@_BY_NAME
def test_covering_leaves_no_possible_pair_unmet(op: Op) -> None:
    """Each pair that the search finds possible is in one of the cases, whatever counts it."""
    coverage, before, made = _covering(op.name)
    assert not coverage.missing().any()
    assert (coverage.possible == before).all(), "no pair was given up"
    met = {pair for case in made for pair in combinations(enumerate(levels_of(op, case)), 2)}
    assert op.allowed is not None
    names = [each.name for each in op.allowed.factors]
    for one, other in combinations(range(len(names)), 2):
        for a in op.allowed.factors[one].levels:
            for b in op.allowed.factors[other].levels:
                place = [
                    coverage.names.index(each) for each in ((names[one], a), (names[other], b))
                ]
                assert not before[place[0], place[1]] or ((one, a), (other, b)) in met, (a, b)


@_BY_NAME
def test_covering_has_only_cases_that_are_served(op: Op) -> None:
    """And each once, also of a kernel that serves little."""
    little = Coverage(op, _narrow)
    little.search()
    for serves, made in (
        (_small, _covering(op.name)[2]),
        (_narrow, tuple(little.cover("ci", "why"))),
    ):
        assert len(made) > 10
        assert all(serves(case) and objection(op, case) is None for case in made)
        assert len({case.id() for case in made}) == len(made)


def test_covering_is_the_same_each_time() -> None:
    """Every process of a run makes it anew."""

    def ids() -> list[str]:
        coverage = Coverage(OPS["layer_norm_backward"], _narrow)
        coverage.search()
        return [case.id() for case in coverage.cover("ci", "")]

    assert ids() == ids()


def test_cases_that_are_named_ahead_change_no_covering() -> None:
    """Whoever asks about all that are named at once asks half as often, or less."""
    answered: set[Case] = set()
    questions: list[int] = []

    def learn(cases: Sequence[Case]) -> None:
        new = set(cases) - answered
        questions.extend([len(new)] * bool(new))
        answered.update(new)

    def serves(case: Case) -> bool:
        learn([case])
        return _small(case) and _NARROW.reject(case, 90, "cpu") is None

    def covering(ahead: Callable[[Sequence[Case]], object]) -> tuple[list[Case], int]:
        answered.clear()
        questions.clear()
        made = cover_pairs(OPS["layer_norm_backward"], serves, (), "ci", "", ahead=ahead)
        return made, len(questions)

    (alone, one_by_one), (made, together) = covering(lambda _: None), covering(learn)
    assert made == alone
    assert 0 < 2 * together < one_by_one


def test_kernel_that_serves_nothing_has_an_empty_covering() -> None:
    """It ends, too."""
    coverage = Coverage(OPS["layer_norm_backward"], lambda _: False)
    coverage.search()
    assert list(coverage.cover("ci", "")) == []


@_BY_NAME
def test_each_part_makes_a_case_of_its_level(op: Op) -> None:
    """So that what is asked for is what a covering counts; but for parts that need another one."""
    assert op.allowed is not None
    coverage = Coverage(op, lambda _: True)
    coverage.search()
    for factor in op.allowed.factors:
        for level in factor.levels:
            place = coverage.names.index((factor.name, level))
            assert coverage.possible[place].any(), (factor.name, level)


@_BY_NAME
def test_id_says_all_of_a_case(op: Op) -> None:
    """Ids of the op's own cases and of a covering's cases say all but why the case is there."""
    for case in (*op.cases(), *_covering(op.name)[2]):
        named = case_named(op, case.id())
        assert named is not None, case.id()
        assert replace(named, tier=case.tier, why=case.why) == case


@pytest.mark.parametrize(
    "name",
    [
        "",
        "layer_norm_backward",
        "layer_norm_backward-m3-float32-contiguous",
        "layer_norm_backward-m3-n5-float33-contiguous",
        "layer_norm_backward-m3-n5-float32-elsewhere",
        "layer_norm_backward-m3-n5-float32-contiguous-softcap",
        "layer_norm_backward-n5-m3-float32-contiguous",
        "layer_norm_backward-m3-n5-float32-contiguous-no_bias-accumulate",
        "layer_norm_backward-m03-n5-float32-contiguous",
        "attention_delta-b1-h_q1-s_q5-d_v8-float32-contiguous",
    ],
)
def test_what_is_no_id_names_no_case(name: str) -> None:
    """Whatever of it is wrong."""
    assert case_named(OPS["layer_norm_backward"], name) is None


def test_joined_layouts_place_each_tensor_as_they_say() -> None:
    """Two that say different things of one tensor don't go together."""
    op = OPS["attention_forward"]
    layout = layout_named(op, "q_offset3+q_rowpad3+v_transposed")
    assert layout is not None
    assert (layout.of("q").offset, layout.of("q").row_padding) == (3, 3)
    assert layout.of("v").order == "bhds"
    assert layout.of("k").offset == 0
    offsets = [layout_named(op, f"q_offset{number}") for number in (3, 4)]
    assert joined([each for each in offsets if each is not None]) is None, "two offsets for one q"
    assert layout_named(op, "q_offset3+elsewhere") is None
