"""The inputs of the cases: the same at every call, placed as their layouts say, amid poison."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.cases.layouts import alike
from kernel_workbench.oracles.layer_norm.arguments import OPTIONS
from kernel_workbench.oracles.layer_norm.cases import (
    _FAMILIES,
    FAR,
    OFFSETS,
    STRIDES,
    layer_norm_case,
)
from kernel_workbench.oracles.layer_norm.values import DISTRIBUTIONS, EPS
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Inputs, Layout, TensorLayout, Tier
from tests.builders.memory import assert_poison_around, bits, resident_bytes

CPU = torch.device("cpu")
M, N = 11, 264  # rows of no power of two; a width that 16-byte vectors divide, as offsets need
TENSORS = ("dy", "x", "weight", "mean", "rstd")
WITH_ALL_TENSORS = frozenset({"residual", "accumulate"})
ALL_TENSORS = (*TENSORS, "dresidual", "dweight", "dbias")
MATRICES = ("dy", "x", "dresidual")
RANK_3 = tuple(
    replace(alike(f"rank3_pad{padding}", MATRICES, TensorLayout(batch_padding=padding)), batches=3)
    for padding in (0, 8, 5)
)
# (row stride, column stride) of each matrix that a layout's name speaks of.
NAMED_STRIDES = {
    "rowpad1": {"dy": (N + 1, 1), "x": (N + 1, 1), "dresidual": (N + 1, 1)},
    "rowpad3": {"dy": (N + 3, 1), "x": (N + 3, 1), "dresidual": (N + 3, 1)},
    "rowpad8": {"dy": (N + 8, 1), "x": (N + 8, 1), "dresidual": (N + 8, 1)},
    "rowpad16": {"dy": (N + 16, 1), "x": (N + 16, 1), "dresidual": (N + 16, 1)},
    "dy_rowpad3": {"dy": (N + 3, 1)},
    "x_rowpad5": {"x": (N + 5, 1)},
    "dy_rowpad24": {"dy": (N + 24, 1), "x": (N + 8, 1)},
    "colstride2": {"dy": (2 * N, 2), "x": (2 * N, 2)},
    "dy_colstride3": {"dy": (3 * N, 3)},
    "x_colstride2": {"x": (2 * N, 2)},
    "dy_transposed": {"dy": (1, M)},
    "x_transposed": {"x": (1, M)},
    "expanded_rows": {"dy": (0, 1)},
    "expanded_all": {"dy": (0, 0)},
    "x_far": {"x": (2**30 + 8, 1)},
    "dy_far": {"dy": (2**30 + 8, 1)},
}


def _case(
    layout: Layout = CONTIGUOUS,
    *,
    m: int = M,
    n: int = N,
    dtype: torch.dtype = torch.bfloat16,
    distribution: str = "normal",
    options: frozenset[str] = WITH_ALL_TENSORS,
) -> Case:
    return layer_norm_case(
        m, n, (dtype, dtype), layout=layout, distribution=distribution, options=options
    )


def _tensors(case: Case) -> dict[str, Tensor]:
    made = LAYER_NORM_BACKWARD.inputs(case, CPU)
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}


def _ci() -> list[Case]:
    return [case for case in LAYER_NORM_BACKWARD.cases() if case.tier == "ci"]


def _named(layout: Layout) -> str:
    return layout.name


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_inputs_are_the_same_bits_in_fresh_memory_at_every_call(distribution: str) -> None:
    """Values depend on the case alone, and no two tensors or calls share a storage."""
    case = _case(OFFSETS[0], distribution=distribution)
    torch.manual_seed(1)  # the global stream must not matter
    first = _tensors(case)
    torch.manual_seed(2)
    second = _tensors(case)
    assert sorted(first) == sorted(ALL_TENSORS)
    for name in ALL_TENSORS:
        assert torch.equal(bits(first[name]), bits(second[name])), name
    storages = {each.untyped_storage().data_ptr() for each in (*first.values(), *second.values())}
    assert len(storages) == 2 * len(ALL_TENSORS)


def test_inputs_differ_with_the_seed_the_sizes_and_the_distribution() -> None:
    """A case's own name seeds its stream."""
    case = _case()
    others = replace(case, seed=1), _case(m=M + 1), _case(distribution="uniform")
    for other in others:
        assert not torch.equal(_tensors(case)["x"][0], _tensors(other)["x"][0])


def _assert_at_offset(tensor: Tensor, offset: int) -> None:
    """The first element lies `offset` elements past a multiple of 256 bytes."""
    assert tensor.data_ptr() % 256 == offset * tensor.element_size()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", OFFSETS, ids=_named)
def test_offset_misaligns_the_tensors_that_it_names(layout: Layout, dtype: torch.dtype) -> None:
    """The address is off by that many elements; other tensors are aligned and all are packed."""
    match = re.fullmatch(r"(?:(\w+)_)?offset(\d)", layout.name)
    assert match is not None
    for name, tensor in _tensors(_case(layout, dtype=dtype)).items():
        _assert_at_offset(tensor, int(match[2]) if match[1] in {None, name} else 0)
        assert tensor.is_contiguous()


@pytest.mark.parametrize("layout", STRIDES, ids=_named)
def test_strides_are_those_that_the_layout_names(layout: Layout) -> None:
    """Named matrices have their strides, the others are packed, and all start aligned."""
    for name, tensor in _tensors(_case(layout)).items():
        packed = (N, 1) if name in MATRICES else (1,)
        assert tensor.stride() == NAMED_STRIDES[layout.name].get(name, packed), name
        _assert_at_offset(tensor, 0)


@pytest.mark.parametrize("layout", RANK_3, ids=_named)
def test_batches_apart_in_memory_are_not_one_matrix(layout: Layout) -> None:
    """Rank-3 tensors have the padding between batches, and then can't be seen as [m, n]."""
    tensors = _tensors(_case(layout, m=12))
    for name in MATRICES:
        tensor = tensors[name]
        assert tensor.shape == (3, 4, N)
        padding = layout.of(name).batch_padding
        assert tensor.stride() == (4 * N + padding, N, 1)
        if padding:
            with pytest.raises(RuntimeError, match="view size is not compatible"):
                tensor.view(12, N)
        else:
            assert tensor.view(12, N).is_contiguous()
    assert tensors["mean"].shape == tensors["rstd"].shape == (3, 4)


@pytest.mark.parametrize("layout", [*OFFSETS[:7], *STRIDES, RANK_3[2]], ids=_named)
def test_values_do_not_depend_on_the_layout(layout: Layout) -> None:
    """A misaligned or strided case holds the contiguous case's values, so that both compare."""
    plain = _tensors(_case(m=12))
    for name, tensor in _tensors(_case(layout, m=12)).items():
        expected = plain[name]
        expanded = layout.of(name).expanded
        if expanded:
            first = expected[:1, :1] if expanded == "mn" else expected[:1]
            expected = first.expand_as(expected)
        assert torch.equal(bits(tensor).flatten(), bits(expected).flatten()), name


@pytest.mark.parametrize("layout", [CONTIGUOUS, *OFFSETS[:7], *STRIDES, RANK_3[2]], ids=_named)
def test_memory_around_the_elements_holds_nan(layout: Layout) -> None:
    """At least 256 elements before and after, and all that strides skip, are poison."""
    for tensor in _tensors(_case(layout, m=12)).values():
        assert_poison_around(tensor)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see memory")
@pytest.mark.parametrize("layout", FAR, ids=_named)
def test_far_rows_touch_little_memory(layout: Layout) -> None:
    """The last row starts past element 2^31, of a buffer of 4 GiB that stays untouched."""
    before = resident_bytes()
    tensors = _tensors(_case(layout, m=3))
    outputs = LAYER_NORM_BACKWARD.oracle(_case(layout, m=3), {**tensors})
    # The rows take kilobytes; a copy of the buffer, or its poison, would take gigabytes.
    assert resident_bytes() - before < 200 * 2**20
    for name, strides in NAMED_STRIDES[layout.name].items():
        assert tensors[name].stride() == strides
        assert 2 * tensors[name].stride(0) > 2**31
    assert all(value is not None and bool(value.isfinite().all()) for value in outputs.values())


@pytest.mark.parametrize("rms_norm", [False, True], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("distribution", ["normal", "mean1e4", "constant_rows", "tiny_variance"])
def test_statistics_are_the_exact_ones_rounded_once(distribution: str, *, rms_norm: bool) -> None:
    """mean and rstd are those of the placed x, after its rounding, nearest in fp32."""
    options = frozenset({"rms_norm"} if rms_norm else ())
    case = _case(distribution=distribution, dtype=torch.float32, options=options)
    inputs: Inputs = LAYER_NORM_BACKWARD.inputs(case, CPU)
    tensors = _tensors(case)
    assert tensors["rstd"].dtype == torch.float32
    assert (inputs["mean"] is None) == rms_norm
    for i, row in enumerate(tensors["x"].double().tolist()):
        mean = 0.0 if rms_norm else math.fsum(row) / N
        variance = math.fsum((each - mean) ** 2 for each in row) / N
        rstd = torch.tensor(1 / math.sqrt(variance + EPS), dtype=torch.float32)
        assert torch.equal(tensors["rstd"][i], rstd)
        if not rms_norm:
            assert torch.equal(tensors["mean"][i], torch.tensor(mean, dtype=torch.float32))


def test_options_make_the_arguments_that_they_name() -> None:
    """Without options a case has the op's arguments alone; each option adds or clears its own."""
    plain = {"dy", "x", "weight", "mean", "rstd"}
    added: dict[str, dict[str, object]] = {
        "no_bias": {"has_bias": False},
        "zero_centred": {"zero_centred": True},
        "device_independent": {"device_independent": True},
    }
    for option in OPTIONS:
        made = LAYER_NORM_BACKWARD.inputs(_case(options=frozenset({option})), CPU)
        tensors = {"residual": {"dresidual"}, "accumulate": {"dweight", "dbias"}}.get(option, set())
        assert set(made) == plain | tensors | set(added.get(option, {}))
        assert all(made[name] is value for name, value in added.get(option, {}).items())
        assert (made["weight"] is None) == (option == "no_weight")
        assert (made["mean"] is None) == (option == "rms_norm")


def test_ids_name_one_case_each() -> None:
    """Cases that share an id, and so are kept once, differ in nothing that makes their inputs."""
    tiers: tuple[Tier, ...] = ("ci", "full")
    made: dict[str, Case] = {}
    for tier, maker in itertools.product(tiers, _FAMILIES):
        for case in maker(tier):
            same = made.setdefault(case.id(), case)
            assert replace(case, tier=same.tier, why=same.why) == same
    kept = LAYER_NORM_BACKWARD.cases()
    assert sorted(made) == sorted(case.id() for case in kept if case.why != GENERATED)
    assert len({case.id().lower() for case in kept}) == len(kept)  # -k ignores case


def test_cases_are_many_and_the_quick_ones_come_first() -> None:
    """At least 300 in ci, at least 2000 in all."""
    kept = LAYER_NORM_BACKWARD.cases()
    ci = _ci()
    assert len(ci) >= 300
    assert len(kept) >= 2000
    assert list(kept[: len(ci)]) == ci


def test_quick_cases_all_have_inputs_of_the_shapes_and_dtypes_that_they_name() -> None:
    """Every case of ci can be made, and is what its id says."""
    for case in _ci():
        tensors = _tensors(case)
        forms = LAYER_NORM_BACKWARD.forms(case)
        for name in ("dy", "x"):
            assert tensors[name].shape == forms["dx"].shape, case.id()
            assert tensors[name].dtype == case.dtype, case.id()
        if "weight" in tensors:
            assert tensors["weight"].shape == (case.size("n"),), case.id()
            assert tensors["weight"].dtype == case.weight_dtype, case.id()
        assert tensors["rstd"].shape == forms["dx"].shape[:-1], case.id()


def test_quick_cases_cover_every_dtype_option_distribution_and_layout() -> None:
    """All five pairs of dtypes, each option (alone too), each distribution, each named layout."""
    ci = _ci()
    singles = {torch.float32, torch.float16, torch.bfloat16}
    pairs = {(each, each) for each in singles} | {(each, torch.float32) for each in singles}
    assert {(case.dtype, case.weight_dtype) for case in ci} == pairs
    assert {frozenset({option}) for option in OPTIONS} <= {case.options for case in ci}
    assert {case.distribution for case in ci} == set(DISTRIBUTIONS)
    layouts = {layout.name for layout in (CONTIGUOUS, *OFFSETS, *STRIDES, *FAR)}
    assert layouts <= {case.layout.name for case in ci}


@pytest.mark.parametrize("name", TENSORS)
def test_quick_cases_cover_every_offset_of_each_tensor_alone(name: str) -> None:
    """0 to 7 elements, the other tensors aligned: a missing check can't hide behind another's."""
    alone = {
        each.offset
        for case in _ci()
        for tensor, each in case.layout.tensors
        if tensor == name and len(case.layout.tensors) == 1
    }
    packed = {0 for case in _ci() if case.layout == CONTIGUOUS}
    assert alone | packed == set(range(8))


def test_geometry_says_where_the_tensors_of_a_quick_case_lie() -> None:
    """Shape, strides, dtype and offset of every tensor argument, as `inputs` places it."""
    for case in _ci():
        tensors, places = _tensors(case), LAYER_NORM_BACKWARD.geometry(case)
        assert set(places) == set(tensors), case.id()
        for name, place in places.items():
            tensor = tensors[name]
            assert (tensor.shape, tensor.dtype) == (place.shape, place.dtype), case.id()
            assert tensor.stride() == place.strides, (case.id(), name)
            if tensor.numel():
                _assert_at_offset(tensor, place.offset)
