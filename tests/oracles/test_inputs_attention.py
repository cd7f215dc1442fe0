"""The inputs of attention's cases: the same at every call, placed as their layouts say."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import (
    AXES,
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
    OPERANDS,
    STRIDES,
)
from kernel_workbench.oracles.attention.values import DROPOUTS, SCALES, SOFTCAPS, alibi_slopes
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Layout
from tests.builders.memory import assert_poison_around, bits, resident_bytes

CPU = torch.device("cpu")
BY_NAME = (FORWARD, DELTA, BACKWARD, GRADIENTS)
B, H, S_Q, S_KV, D = 2, 3, 5, 7, 64
SIZES = (B, H, H, S_Q, S_KV, D, D)
# Strides of axes b, s, h, d (of a bias b, h, q, k) of each tensor that a layout's name speaks of.
_Q, _K = H * D, H * D  # elements of a query's, and of a key's, heads
_BHSD_Q, _BHSD_K = (H * S_Q * D, D, S_Q * D, 1), (H * S_KV * D, D, S_KV * D, 1)
NAMED_STRIDES: dict[str, dict[str, tuple[int, ...]]] = {
    "bhsd": {"q": _BHSD_Q, "do": _BHSD_Q, "out": _BHSD_Q, "k": _BHSD_K, "v": _BHSD_K},
    "sbhd": dict.fromkeys(OPERANDS, (_Q, B * _Q, D, 1)),
    "qkv_interleaved": {
        "q": (3 * S_Q * _Q, 3 * _Q, D, 1),
        "k": (3 * S_KV * _K, 3 * _K, D, 1),
        "v": (3 * S_KV * _K, 3 * _K, D, 1),
    },
    "kv_interleaved": dict.fromkeys("kv", (2 * S_KV * _K, 2 * _K, D, 1)),
    **{
        f"rowpad{pad}": {
            name: (s * H * (D + pad), H * (D + pad), D + pad, 1)
            for name, s in (("q", S_Q), ("k", S_KV), ("v", S_KV), ("do", S_Q), ("out", S_Q))
        }
        for pad in (1, 3, 8, 16)
    },
    "q_rowpad3": {"q": (S_Q * H * (D + 3), H * (D + 3), D + 3, 1)},
    "k_rowpad5": {"k": (S_KV * H * (D + 5), H * (D + 5), D + 5, 1)},
    "v_rowpad1": {"v": (S_KV * H * (D + 1), H * (D + 1), D + 1, 1)},
    "do_rowpad24": {
        "do": (S_Q * H * (D + 24), H * (D + 24), D + 24, 1),
        "out": (S_Q * H * (D + 8), H * (D + 8), D + 8, 1),
    },
    "out_rowpad3": {"out": (S_Q * H * (D + 3), H * (D + 3), D + 3, 1)},
    "colstride2": {
        name: (2 * s * H * D, 2 * H * D, 2 * D, 2)
        for name, s in (("q", S_Q), ("k", S_KV), ("v", S_KV), ("do", S_Q), ("out", S_Q))
    },
    "q_colstride2": {"q": (2 * S_Q * _Q, 2 * _Q, 2 * D, 2)},
    "k_colstride2": {"k": (2 * S_KV * _K, 2 * _K, 2 * D, 2)},
    "v_colstride2": {"v": (2 * S_KV * _K, 2 * _K, 2 * D, 2)},
    "do_colstride3": {"do": (3 * S_Q * _Q, 3 * _Q, 3 * D, 3)},
    "out_colstride2": {"out": (2 * S_Q * _Q, 2 * _Q, 2 * D, 2)},
    "q_transposed": {"q": (_Q * S_Q, 1, D * S_Q, S_Q)},
    "k_transposed": {"k": (_K * S_KV, 1, D * S_KV, S_KV)},
    "v_transposed": {"v": (_K * S_KV, 1, D * S_KV, S_KV)},
    "do_transposed": {"do": (_Q * S_Q, 1, D * S_Q, S_Q)},
    "q_bhsd": {"q": _BHSD_Q},
    "k_bhsd": {"k": _BHSD_K},
    "v_bhsd": {"v": _BHSD_K},
    "do_bhsd": {"do": _BHSD_Q},
    "out_bhsd": {"out": _BHSD_Q},
    "k_sliced": {"k": (S_KV * H * (D + 56), H * (D + 56), D + 56, 1)},
    "kv_expanded_heads": dict.fromkeys("kv", (S_KV * D, D, 0, 1)),
    "kv_expanded_batch": dict.fromkeys("kv", (0, _K, D, 1)),
    "kv_expanded_keys": dict.fromkeys("kv", (_K, 0, D, 1)),
    "do_expanded_rows": {"do": (_Q, 0, D, 1)},
    "do_expanded_all": {"do": (0, 0, 0, 0)},
    **{
        f"bias_rowpad{pad}": {
            "bias": (H * S_Q * (S_KV + pad), S_Q * (S_KV + pad), S_KV + pad, 1),
        }
        for pad in (1, 3, 4, 8)
    },
    "bias_colstride2": {"bias": (2 * H * S_Q * S_KV, 2 * S_Q * S_KV, 2 * S_KV, 2)},
    "bias_transposed": {"bias": (H * S_KV * S_Q, S_KV * S_Q, 1, S_Q)},
    "bias_expanded_batch": {"bias": (0, S_Q * S_KV, S_KV, 1)},
    "bias_expanded_heads": {"bias": (S_Q * S_KV, 0, S_KV, 1)},
    "bias_expanded_queries": {"bias": (H * S_KV, S_KV, 0, 1)},
}


USED = sorted({(case.op, case.distribution) for op in BY_NAME for case in OPS[op].cases()})


def _case(
    layout: Layout = CONTIGUOUS,
    op: str = BACKWARD,
    *,
    distribution: str = "normal",
    options: str = "bias",
    dtype: torch.dtype = torch.bfloat16,
) -> Case:
    """By default a backward with a bias, and so all six tensors that a layout may place."""
    wanted = "" if op == DELTA else options
    return attention_case(
        op, SIZES, dtype, "ci", layout=layout, distribution=distribution, options=wanted
    )


def _tensors(case: Case) -> dict[str, Tensor]:
    made = OPS[case.op].inputs(case, CPU)
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}


def _named(layout: Layout) -> str:
    return layout.name


@pytest.mark.parametrize(("op", "distribution"), USED)
def test_inputs_are_the_same_bits_in_fresh_memory_at_every_call(op: str, distribution: str) -> None:
    """Values depend on the case alone, and no two tensors or calls share a storage."""
    case = _case(OFFSETS[0], op, distribution=distribution)
    torch.manual_seed(1)  # the global stream must not matter
    first = _tensors(case)
    torch.manual_seed(2)
    second = _tensors(case)
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert torch.equal(bits(tensor), bits(second[name])), name
    storages = {each.untyped_storage().data_ptr() for each in (*first.values(), *second.values())}
    assert len(storages) == 2 * len(first)


def test_inputs_differ_with_everything_that_names_a_case_but_its_layout() -> None:
    """A case's own name seeds its stream: seed, sizes, dtype, distribution, options."""
    case = _case()
    others = (
        replace(case, seed=1),
        replace(case, sizes=(*case.sizes[:-1], ("d_v", D + 1))),
        replace(case, dtype=torch.float16, weight_dtype=torch.float16),
        replace(case, distribution="times3"),
        replace(case, options=case.options | {"causal"}),
    )
    drawn = [_tensors(each)["q"].float() for each in (case, *others)]
    scaled = [each / each.abs().max() for each in drawn]  # times3 is no disguise
    for i, one in enumerate(scaled):
        assert not any(torch.allclose(one, other, atol=0.1) for other in scaled[:i])


def test_inputs_of_the_ops_are_not_one_anothers() -> None:
    """No op is handed the truth of another on the same values: a backward gets out and lse."""
    drawn = [_tensors(_case(op=op)) for op in (FORWARD, BACKWARD, GRADIENTS)]
    for name in "qkv":
        values = [each[name].float() for each in drawn]
        for i, one in enumerate(values):
            assert not any(torch.allclose(one, other, atol=0.5) for other in values[:i])


@pytest.mark.parametrize("layout", OFFSETS, ids=_named)
def test_offset_misaligns_the_tensors_that_it_names(layout: Layout) -> None:
    """The address is off by that many elements; other tensors are aligned and all are packed."""
    match = re.fullmatch(r"(?:(\w+)_)?offset(\d)", layout.name)
    assert match is not None
    for name, tensor in _tensors(_case(layout)).items():
        moved = match[1] in {None, name} and name in AXES
        offset = int(match[2]) * tensor.element_size() if moved else 0
        assert tensor.data_ptr() % 256 == offset, name
        assert tensor.is_contiguous(), name


@pytest.mark.parametrize("layout", [*STRIDES, *BIAS_STRIDES], ids=_named)
def test_strides_are_those_that_the_layout_names(layout: Layout) -> None:
    """Named tensors have their strides, others are packed; all but k_sliced's k are aligned."""
    for name, tensor in _tensors(_case(layout)).items():
        expected = NAMED_STRIDES[layout.name].get(name)
        if expected is None:
            assert tensor.is_contiguous(), name
        else:
            assert tensor.stride() == expected, name
        sliced = layout.name == "k_sliced" and name == "k"
        assert tensor.data_ptr() % 256 == (16 if sliced else 0), name


@pytest.mark.parametrize("layout", [*OFFSETS[:7], *STRIDES, *BIAS_STRIDES], ids=_named)
def test_values_do_not_depend_on_the_layout(layout: Layout) -> None:
    """A strided case holds the contiguous case's values, repeated where an axis is expanded."""
    plain = _tensors(_case(op=GRADIENTS))
    for name, tensor in _tensors(_case(layout, GRADIENTS)).items():
        expected, expanded = plain[name], layout.of(name).expanded
        for axis in expanded:
            expected = expected.narrow(AXES[name].index(axis), 0, 1)
        expected = expected.expand_as(plain[name])
        assert torch.equal(bits(tensor), bits(expected)), name


@pytest.mark.parametrize("layout", [CONTIGUOUS, *OFFSETS[:7], *STRIDES, *BIAS_STRIDES], ids=_named)
def test_memory_around_the_elements_holds_nan(layout: Layout) -> None:
    """At least 256 elements before and after, and all that strides skip, are poison."""
    for tensor in _tensors(_case(layout)).values():
        assert_poison_around(tensor)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see memory")
@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        *((each, (1, 2, 2, 3, 9, 8, 8)) for each in FAR_QUERIES),
        *((each, (1, 2, 2, 9, 3, 8, 8)) for each in FAR_KEYS),
        *((each, (1, 3, 3, 9, 9, 8, 8)) for each in FAR_HEADS),
        *((each, (3, 1, 1, 9, 9, 8, 8)) for each in FAR_BATCHES),
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else "",
)
def test_far_strides_touch_little_memory(layout: Layout, sizes: tuple[int, ...]) -> None:
    """The last entry of an axis starts past element 2^31, of a buffer that stays untouched."""
    case = attention_case(BACKWARD, sizes, torch.bfloat16, "ci", layout=layout, options="bias")
    before = resident_bytes()
    tensors = _tensors(case)
    # The values take kilobytes; a copy of the buffer, or its poison, would take gigabytes.
    assert resident_bytes() - before < 200 * 2**20
    for name, _ in layout.tensors:
        steps = zip(tensors[name].shape, tensors[name].stride(), strict=True)
        assert max((size - 1) * step for size, step in steps) > 2**31


OPTIONS: dict[str, set[str]] = {
    "causal": {"causal"},
    "window": {"window"},
    "bottom_right": {"corner"},
    "bias": {"bias"},
    "alibi": {"alibi_slopes"},
    "softcap": {"softcap"},
    "sink": {"sink"},
    "dropout": {"dropout_p", "dropout_seed"},
    "torch_dropout": {"dropout_p", "dropout_seed"},
    "varlen": {"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"},
    "scale": {"scale"},
    "gqa": set(),
    "unequal_d": set(),
}


def test_options_make_the_arguments_that_they_name() -> None:
    """Without options a case has the op's arguments alone; each option adds its own."""
    for op in (FORWARD, GRADIENTS):
        for option, added in OPTIONS.items():
            case = _case(op=op, options=option)
            assert set(OPS[op].inputs(case, CPU)) == {*OPS[op].arguments, *added}
    broadcast = {"bias_over_batch", "bias_over_heads", "bias_over_queries"}
    assert set(OPTIONS) | broadcast == set(OPS[FORWARD].options)


def test_bias_has_size_1_where_it_is_broadcast() -> None:
    """Each of the three options shrinks its own axis."""
    shape = (B, H, S_Q, S_KV)
    for axis, option in enumerate(("bias_over_batch", "bias_over_heads", "bias_over_queries")):
        bias = _tensors(_case(op=FORWARD, options=f"bias {option}"))["bias"]
        assert bias.shape == (*shape[:axis], 1, *shape[axis + 1 :])


def test_numbers_of_options_vary_over_the_cases() -> None:
    """Every softcap, scale and dropout probability is met, with many dropout seeds."""
    made: dict[str, set[object]] = {}
    for case in OPS[FORWARD].cases():
        if case.tier == "ci" and case.options & {"softcap", "scale", "dropout"}:
            for name, value in OPS[FORWARD].inputs(case, CPU).items():
                if not isinstance(value, Tensor):
                    made.setdefault(name, set()).add(value)
    assert made["softcap"] == set(SOFTCAPS)
    assert made["scale"] == set(SCALES)
    assert made["dropout_p"] == set(DROPOUTS)
    seeds = [seed for seed in made["dropout_seed"] if isinstance(seed, int)]
    assert len(seeds) >= 10
    assert min(seeds) < 2**31 < 2**32 < max(seeds) < 2**63


def test_alibi_slopes_are_the_published_ones() -> None:
    """A geometric sequence from 2^(-8/n), with that ratio: for 8 heads 1/2, 1/4 ... 1/256."""
    assert torch.equal(alibi_slopes(8), 0.5 ** torch.arange(1.0, 9.0))
    assert torch.equal(alibi_slopes(4), 0.25 ** torch.arange(1.0, 5.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_backward_has_the_exact_out_and_lse_rounded_once(dtype: torch.dtype) -> None:
    """out and lse are a plain softmax's of the placed operands in float64, nearest in the dtype."""
    case = _case(dtype=dtype)
    made = {name: each.double() for name, each in _tensors(case).items()}
    q, k, v = (made[name].transpose(1, 2) for name in "qkv")
    scores = q @ k.transpose(2, 3) / math.sqrt(D) + made["bias"]
    exact = {"lse": scores.logsumexp(-1), "out": (scores.softmax(-1) @ v).transpose(1, 2)}
    for name, kind in (("lse", torch.float32), ("out", dtype)):
        rounding = torch.finfo(kind).eps / 2 * made[name].abs() + 1e-13
        assert bool(((made[name] - exact[name]).abs() <= rounding).all()), name
