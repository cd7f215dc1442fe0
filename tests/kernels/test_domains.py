"""Domains: what a kernel refuses, and in which words.

A refusal is a sentence that users read, so each is compared word for word.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.domain import Domain, Strides
from kernel_workbench.oracles import ATTENTION_FORWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Case, Layout, TensorLayout

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
_f32, _f16, _bf16 = (partial(Domain, dtypes=(dtype,)) for dtype in (F32, F16, BF16))


def _case(
    m: int = 4,
    n: int = 64,
    dtype: torch.dtype = F32,
    weight: torch.dtype | None = None,
    layout: Layout | None = None,
    options: tuple[str, ...] = (),
) -> Case:
    return layer_norm_case(
        m,
        n,
        (dtype, dtype if weight is None else weight),
        layout=layout or Layout("contiguous"),
        options=frozenset(options),
    )


def _attention(
    *,
    b: int = 2,
    h: int = 4,
    s: int = 6,
    s_kv: int | None = None,
    d: int = 64,
    d_v: int = 64,
    layout: Layout | None = None,
    options: tuple[str, ...] = (),
) -> Case:
    """A forward in float16; s rows of queries and of keys, h heads of both."""
    s_kv = s if s_kv is None else s_kv
    sizes = {"b": b, "h_q": h, "h_kv": h, "s_q": s, "s_kv": s_kv, "d": d, "d_v": d_v}
    return Case(
        op=ATTENTION_FORWARD.name,
        sizes=tuple(sizes.items()),
        dtype=F16,
        weight_dtype=F16,
        layout=layout or Layout("contiguous"),
        options=frozenset(options),
    )


def _laid_out(argument: str, **layout: Any) -> Layout:  # noqa: ANN401
    """A layout of the fields of `TensorLayout`, of one argument alone."""
    return Layout("odd", ((argument, TensorLayout(**layout)),))


def _aligned(dtype: torch.dtype, strides: Strides = "any") -> Domain:
    return Domain(dtypes=(dtype,), alignment=16, strides=strides)


def _mixed_and_aligned() -> Domain:
    features = frozenset({"accumulate"})
    return _bf16(weight_dtypes=(F32, BF16), alignment=16, features=features)


_PADDED = Layout(
    "padded", tuple((name, TensorLayout(batch_padding=3)) for name in ("dy", "x")), batches=2
)
_REFUSALS: dict[str, tuple[Domain, Case, str | None]] = {
    "nothing": (_f32(), _case(), None),
    "dtype": (Domain(dtypes=(F16, BF16)), _case(), "serves float16, bfloat16, got float32"),
    "mixed weight": (
        _bf16(),
        _case(dtype=BF16, weight=F32),
        "serves bfloat16 weights with bfloat16 activations, got float32",
    ),
    "half weight": (
        _bf16(weight_dtypes=(F32,)),
        _case(dtype=BF16),
        "serves float32 weights with bfloat16 activations, got bfloat16",
    ),
    "mixed weight that is served": (
        _bf16(weight_dtypes=(F32,)),
        _case(dtype=BF16, weight=F32),
        None,
    ),
    "no weight has no weight dtype": (
        _bf16(features=frozenset({"no_weight"})),
        _case(dtype=BF16, weight=F32, options=("no_weight",)),
        None,
    ),
    "features": (
        _f32(features=frozenset({"no_bias"})),
        _case(options=("rms_norm", "no_bias", "accumulate")),
        "doesn't serve accumulate, rms_norm",
    ),
    "too wide": (_f32(sizes={"n": (1, 63)}), _case(), "serves n of 1 to 63, got 64"),
    "size at its limit": (_f32(sizes={"n": (64, 64)}), _case(), None),
    "too few rows": (_f32(sizes={"m": (5, None)}), _case(), "serves m of 5 or more, got 4"),
    "rank": (
        _f32(strides="rows"),
        _case(layout=Layout("rank3", batches=2)),
        "needs inputs of rank 2, got rank 3",
    ),
    "columns": (
        _f32(strides="rows"),
        _case(layout=_laid_out("x", column_stride=2)),
        "needs adjacent columns, got a column stride of 2 in x",
    ),
    "one column has no neighbour": (
        _f32(strides="rows"),
        _case(n=1, layout=_laid_out("x", column_stride=2)),
        None,
    ),
    "rows": (_f32(strides="rows"), _case(layout=_laid_out("x", row_padding=3)), None),
    "packed": (
        _f32(strides="contiguous"),
        _case(layout=_laid_out("dy", row_padding=3)),
        "needs packed rows of 64 elements, got a row stride of 67 in dy",
    ),
    "one row is packed": (
        _f32(strides="contiguous"),
        _case(m=1, layout=_laid_out("dy", row_padding=3)),
        None,
    ),
    "packed at an offset": (
        _f32(strides="contiguous"),
        _case(layout=_laid_out("dy", offset=1)),
        None,
    ),
    "aligned": (_aligned(BF16), _case(dtype=BF16), None),
    "width": (
        _aligned(BF16),
        _case(n=12, dtype=BF16),
        "needs rows of whole 16 bytes, got n = 12 bfloat16 elements",
    ),
    "pointer": (
        _aligned(BF16),
        _case(dtype=BF16, layout=_laid_out("x", offset=1)),
        "needs 16-byte pointers, got x offset by 1 elements",
    ),
    "pointer offset by 16 bytes": (
        _aligned(BF16),
        _case(dtype=BF16, layout=_laid_out("x", offset=8)),
        None,
    ),
    "row stride": (
        _aligned(BF16),
        _case(n=4088, dtype=BF16, layout=_laid_out("dy", row_padding=7)),
        "needs 16-byte rows, got a row stride of 4095 bfloat16 elements in dy",
    ),
    "aligned rows, columns apart": (
        _f32(alignment=16, features=frozenset({"residual"})),
        _case(layout=_laid_out("dresidual", column_stride=2), options=("residual",)),
        "needs adjacent columns, got a column stride of 2 in dresidual",
    ),
    "batches": (
        _aligned(F32),
        _case(layout=_PADDED),
        "needs 16-byte rows, got batches 3 elements apart",
    ),
    # Four elements of a float32 weight are 16 bytes; of a bfloat16 one they are 8.
    "weight pointer": (
        _mixed_and_aligned(),
        _case(dtype=BF16, layout=_laid_out("dbias", offset=4), options=("accumulate",)),
        "needs 16-byte pointers, got dbias offset by 4 elements",
    ),
    "wide weight pointer": (
        _mixed_and_aligned(),
        _case(dtype=BF16, weight=F32, layout=_laid_out("dbias", offset=4), options=("accumulate",)),
        None,
    ),
    "statistics are read one at a time": (
        _aligned(F32),
        _case(layout=_laid_out("mean", offset=1)),
        None,
    ),
    "a tensor that the case doesn't have lies nowhere": (
        _aligned(F32),
        _case(layout=_laid_out("dresidual", offset=1)),
        None,
    ),
    "one row has no stride": (
        _aligned(F32),
        _case(m=1, layout=_laid_out("dy", row_padding=3)),
        None,
    ),
    "no rows, and still of a length": (
        _aligned(F32),
        _case(m=0, n=9),
        "needs rows of whole 16 bytes, got n = 9 float32 elements",
    ),
}

# With four axes, every stride is checked, and the sentence names the axis.
_ATTENTION_REFUSALS: dict[str, tuple[Domain, Case, str | None]] = {
    "aligned": (_aligned(F16), _attention(), None),
    "last axis": (
        _aligned(F16),
        _attention(d=36),
        "needs rows of whole 16 bytes, got 36 float16 elements in q",
    ),
    "last axis of v": (
        _f16(alignment=16, features=frozenset({"unequal_d"})),
        _attention(d_v=59, options=("unequal_d",)),
        "needs rows of whole 16 bytes, got 59 float16 elements in v",
    ),
    "pointer": (
        _aligned(F16),
        _attention(layout=_laid_out("k", offset=3)),
        "needs 16-byte pointers, got k offset by 3 elements",
    ),
    "stride of the heads": (
        _aligned(F16),
        _attention(layout=_laid_out("v", row_padding=4)),
        "needs 16-byte strides, got a stride of 68 float16 elements along axis 2 of v",
    ),
    "stride of one head doesn't count": (
        _aligned(F16),
        _attention(b=1, h=1, s=1, layout=_laid_out("v", row_padding=4)),
        None,
    ),
    "heads before rows": (
        _aligned(F16, "rows"),
        _attention(layout=_laid_out("q", order="bhsd")),
        None,
    ),
    "apart": (
        _f16(strides="rows"),
        _attention(layout=_laid_out("q", column_stride=2)),
        "needs an adjacent last axis, got a stride of 2 there in q",
    ),
    "apart and aligned": (
        _aligned(F16),
        _attention(layout=_laid_out("q", order="bhds")),
        "needs an adjacent last axis, got a stride of 6 there in q",
    ),
    "packed": (_f16(strides="contiguous"), _attention(), None),
    "heads before rows, packed": (
        _f16(strides="contiguous"),
        _attention(layout=_laid_out("k", order="bhsd")),
        "needs packed tensors, got a stride of 384 in place of 64 along axis 2 of k",
    ),
    "expanded": (
        _f16(strides="contiguous"),
        _attention(layout=_laid_out("k", expanded="h")),
        "needs packed tensors, got a stride of 0 in place of 64 along axis 2 of k",
    ),
    "aligned bias": (
        _f16(alignment=16, features=frozenset({"bias"})),
        _attention(s=9, options=("bias",)),
        "needs rows of whole 16 bytes, got 9 float16 elements in bias",
    ),
    "bias of its own alignment": (
        _f16(alignment=16, unaligned=frozenset({"bias"}), features=frozenset({"bias"})),
        _attention(s=9, options=("bias",)),
        None,
    ),
    "size that the case has": (
        _f16(sizes={"d": (1, 32)}),
        _attention(),
        "serves d of 1 to 32, got 64",
    ),
    "sizes that relate": (_f16(relations=("d_v == d",)), _attention(), None),
    "sizes that relate otherwise": (
        _f16(relations=("s_q <= s_kv", "s_q > s_kv")),
        _attention(),
        "serves s_q > s_kv, got s_q 6 and s_kv 6",
    ),
    "multiple of a number": (
        _f16(relations=("d % 32 == 0", "d%48==0")),
        _attention(),
        "serves d%48==0, got d 64",
    ),
    "relation of a size that the case lacks": (
        _f16(relations=("window_left < s_kv",)),
        _attention(),
        None,
    ),
    "sequences that all have the relation": (
        _f16(features=frozenset({"varlen"}), relations=("s_q == s_kv", "h_q == h_kv")),
        _attention(b=5, s=41, options=("varlen",)),
        None,
    ),
    "sequence that hasn't the relation": (
        _f16(features=frozenset({"varlen"}), relations=("h_q == h_kv", "s_kv >= s_q")),
        _attention(b=5, s=37, s_kv=41, options=("varlen",)),
        "serves s_kv >= s_q in each sequence, got s_q 18 and s_kv 0 in sequence 4",
    ),
    "relation that isn't about lengths": (
        _f16(features=frozenset({"varlen"}), relations=("h_q > h_kv",)),
        _attention(b=5, s=37, s_kv=41, options=("varlen",)),
        "serves h_q > h_kv, got h_q 4 and h_kv 4",
    ),
    "size that the case lacks": (_f16(sizes={"window_left": (1, 32)}), _attention(), None),
}


@pytest.mark.parametrize("name", _REFUSALS)
def test_domain_refuses_a_case_in_one_sentence(name: str) -> None:
    """`reject` gives None where the domain holds the case, else what it needs and what it got."""
    domain, case, sentence = _REFUSALS[name]
    assert domain.reject(case, 90) == sentence


@pytest.mark.parametrize("name", _ATTENTION_REFUSALS)
def test_domain_refuses_tensors_of_four_axes_by_name_and_axis(name: str) -> None:
    """Where q, k and v lie is the op's to say, and any op's answer is asked alike."""
    domain, case, sentence = _ATTENTION_REFUSALS[name]
    assert domain.reject(case, 90) == sentence


@pytest.mark.parametrize(
    ("sm", "sentence"),
    [
        (79, "serves sm 80 to 90, got sm 79"),
        (80, None),
        (90, None),
        (100, "serves sm 80 to 90, got sm 100"),
    ],
)
def test_domain_serves_both_ends_of_its_capabilities(sm: int, sentence: str | None) -> None:
    """The range of compute capabilities is closed."""
    assert _f32(sm=(80, 90)).reject(_case(), sm) == sentence


def test_domain_knows_when_a_dtype_came() -> None:
    """bfloat16 is refused below its capability, and what came earlier isn't."""
    domain = Domain(dtypes=(F16, BF16), since={BF16: 80})
    assert domain.reject(_case(dtype=BF16), 75) == "serves bfloat16 from sm 80, got sm 75"
    assert domain.reject(_case(dtype=BF16), 80) is None
    assert domain.reject(_case(dtype=F16), 75) is None


def test_domain_refuses_a_device_before_anything_else() -> None:
    """A device it doesn't run on comes first: a CPU has no compute capability to speak of."""
    domain = _f16(devices=("cuda",), sm=(100, 100))
    assert domain.reject(_case(), 90, "cpu") == "runs on cuda, got cpu"
    assert domain.reject(_case(), 90, "cuda") == "serves sm 100 to 100, got sm 90"


def test_domain_of_an_uninterpretable_kernel_is_refused_on_a_cpu_alone() -> None:
    """Inline assembly has no interpreter, and does run on a GPU."""
    domain = _f32(interpretable=False)
    assert domain.reject(_case(), 90, "cpu") == "can't run under Triton's interpreter"
    assert domain.reject(_case(), 90, "cuda") is None
