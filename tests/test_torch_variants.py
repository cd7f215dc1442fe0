"""Which memory-efficient kernel PyTorch runs: the tables, their order, and the pick of a case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernels.baselines.attention_variants import (
    BackwardKernel,
    ForwardKernel,
    backward_kernels,
    backward_names,
    backward_variant,
    forward_kernels,
    forward_names,
    forward_variant,
    predict_backward,
    predict_forward,
)
from oracles.attention.geometry import BACKWARD, FORWARD
from oracles.op import Case, Layout, TensorLayout
from suites.accuracy import torch_kernel_names

_HEADERS = (
    Path(torch.__file__).parent / "include/ATen/native/transformers/cuda/mem_eff_attention/kernels"
)
_CATEGORY = re.compile(
    r"void dispatch_(cutlass[FB])_(\w+?)_sm(\d+)\(T cb, int cc\) \{(.*?)\n\}", re.DOTALL
)


def test_there_are_45_forward_and_162_backward_kernels() -> None:
    """As many as PyTorch 2.13 generates, each of a name of its own."""
    for kernels, count in ((forward_kernels(), 45), (backward_kernels(), 162)):
        assert len(kernels) == count
        assert len({each.name for each in kernels}) == count


@pytest.mark.skipif(not _HEADERS.is_dir(), reason="this torch comes without its headers")
@pytest.mark.parametrize(
    ("family", "kernels"), [("cutlassF", forward_kernels()), ("cutlassB", backward_kernels())]
)
def test_order_is_that_of_the_headers_that_torch_ships(
    family: str, kernels: tuple[ForwardKernel | BackwardKernel, ...]
) -> None:
    """For each dtype and range of sm, name by name, in the order in which they are tried."""
    text = (_HEADERS / f"{family}.h").read_text()
    categories = _CATEGORY.findall(text)
    assert len(categories) == 9
    for found, dtype, sm, body in categories:
        assert found == family
        shipped = re.findall(r"\(\), (\w+)\)", body)
        ours = [each.name for each in kernels if (each.dtype, each.sm[0]) == (dtype, int(sm))]
        assert ours == shipped


@pytest.mark.skipif(not _HEADERS.is_dir(), reason="this torch comes without its headers")
def test_conditions_are_those_of_the_headers_that_torch_ships() -> None:
    """A kernel is tried on some sms only where the header has a condition, on those of it."""
    text = (_HEADERS / "cutlassB.h").read_text()
    shipped = {
        name: frozenset(int(each) for each in re.findall(r"\d+", condition))
        for condition, name in re.findall(r"if \((cc .*?)\) cb\(.*?\(\), (\w+)\)", text)
    }
    assert shipped == {each.name: each.only_on for each in backward_kernels() if each.only_on}


_FORWARD_PICKS = (
    ("bf16", 90, 64, 64, "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"),
    ("bf16", 90, 128, 128, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"),
    ("bf16", 90, 72, 72, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"),
    ("f16", 90, 256, 256, "fmha_cutlassF_f16_aligned_32x128_gmem_sm80"),
    ("f32", 90, 60, 60, "fmha_cutlassF_f32_aligned_64x64_rf_sm80"),
    ("f16", 75, 128, 128, "fmha_cutlassF_f16_aligned_32x128_rf_sm75"),
    ("f16", 75, 60, 60, "fmha_cutlassF_f16_notaligned_64x64_rf_sm75"),
    ("f16", 60, 61, 61, "fmha_cutlassF_f16_aligned_64x64_rf_sm50"),
    ("f16", 70, 62, 62, "fmha_cutlassF_f16_notaligned_64x64_rf_sm70"),
    ("f32", 70, 300, 300, "fmha_cutlassF_f32_aligned_32x128_gmem_sm70"),
)


@pytest.mark.parametrize(("dtype", "sm", "d", "stride", "name"), _FORWARD_PICKS)
def test_forward_pick_is_the_first_that_fits(
    dtype: str, sm: int, d: int, stride: int, name: str
) -> None:
    """By the width of the heads and how far apart they are."""
    assert predict_forward(dtype, sm, d, (stride, stride)) == name


_BACKWARD_PICKS = (
    ("bf16", 90, 32, (128, 128), False, "bf16_aligned_64x64_k32_seqaligned_sm80"),
    ("bf16", 90, 40, (128, 64), False, "bf16_aligned_64x64_k64_seqaligned_sm80"),
    ("bf16", 90, 64, (128, 65), False, "bf16_aligned_64x64_k64_sm80"),
    ("bf16", 90, 64, None, False, "bf16_aligned_64x64_k64_sm80"),
    ("bf16", 90, 96, (256, 128), False, "bf16_aligned_128x128_k128_seqaligned_sm80"),
    ("bf16", 90, 128, (192, 128), False, "bf16_aligned_128x128_k128_sm80"),
    ("bf16", 90, 128, (256, 256), True, "bf16_aligned_128x128_k128_dropout_sm80"),
    ("bf16", 90, 256, (256, 256), False, "bf16_aligned_128x64_k65536_sm80"),
    ("f32", 90, 64, (64, 64), False, "f32_aligned_64x64_k64_sm80"),
    ("f32", 90, 128, (64, 64), True, "f32_aligned_128x64_k128_dropout_sm80"),
    ("f16", 89, 96, (256, 256), False, "f16_aligned_128x64_k96_sm80"),
    ("f16", 89, 128, (256, 256), False, "f16_aligned_64x64_k128_seqaligned_sm80"),
    ("f16", 80, 96, (256, 256), False, "f16_aligned_128x128_k128_seqaligned_sm80"),
    ("f16", 75, 128, (256, 256), False, "f16_aligned_128x64_k128_sm75"),
    ("f32", 75, 128, (256, 256), False, "f32_aligned_64x64_k128_sm75"),
)


@pytest.mark.parametrize(("dtype", "sm", "d", "lengths", "dropout", "name"), _BACKWARD_PICKS)
def test_backward_pick_is_the_first_that_fits(
    dtype: str, sm: int, d: int, lengths: tuple[int, int] | None, name: str, *, dropout: bool
) -> None:
    """By the width of the heads, whole blocks, dropout, and what an sm has memory for."""
    pick = predict_backward(dtype, sm, d, (d, d, d), lengths, dropout=dropout)
    assert pick == f"fmha_cutlassB_{name}"


def test_heads_apart_by_no_vector_have_no_kernel_from_sm_80_on() -> None:
    """There are no kernels for them there, and the prediction says so."""
    with pytest.raises(LookupError, match="no forward kernel for f16, sm 90"):
        predict_forward("f16", 90, 64, (68, 64))
    with pytest.raises(LookupError, match="no backward kernel for f16, sm 90"):
        predict_backward("f16", 90, 64, (66, 64, 64), (64, 64))


def _case(op: str, options: str = "", layout: Layout | None = None, **sizes: int) -> Case:
    known = {"b": 2, "h_q": 3, "h_kv": 3, "s_q": 256, "s_kv": 128, "d": 96, "d_v": 128}
    return Case(
        op=op,
        sizes=tuple((known | sizes).items()),
        dtype=torch.bfloat16,
        weight_dtype=torch.bfloat16,
        options=frozenset({*options.split(), "unequal_d"}),
        layout=layout or Layout("contiguous"),
    )


def test_case_is_predicted_from_its_sizes_options_and_strides() -> None:
    """The wider head, whole blocks unless sequences differ, and torch's own dropout decide."""
    wide = _case(FORWARD)
    assert forward_variant(wide, 90) == "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"
    backward = {
        "": "fmha_cutlassB_bf16_aligned_128x128_k128_seqaligned_sm80",
        "varlen": "fmha_cutlassB_bf16_aligned_128x128_k128_sm80",
        "torch_dropout": "fmha_cutlassB_bf16_aligned_128x128_k128_dropout_sm80",
    }
    for options, name in backward.items():
        assert backward_variant(_case(BACKWARD, options), 90) == name
    padded = Layout("rowpad3", (("q", TensorLayout(row_padding=3)),))
    with pytest.raises(LookupError):
        forward_variant(_case(FORWARD, layout=padded), 90)


def test_names_that_ran_are_read_from_a_profile() -> None:
    """Of all that ran, those of the family, as the tables spell them."""
    ran = [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >",
        "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackward<x>)",
        "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackward<x>)",
    ]
    assert torch_kernel_names.names_in(ran) == ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80",)
    assert torch_kernel_names.names_in(ran[:1]) == ()


def test_prediction_is_right_where_the_predicted_kernel_ran_alone() -> None:
    """Another kernel, two of them or none of the family are wrong, and the line says which ran."""
    case, name = _case(BACKWARD), "fmha_cutlassB_bf16_aligned_64x64_k64_sm80"
    right = torch_kernel_names.Seen(case, name, (name,))
    assert right.right
    assert torch_kernel_names.describe(right).split()[:2] == ["right", name]
    for ran in ((), ("fmha_other",), (name, "fmha_other")):
        wrong = torch_kernel_names.Seen(case, name, ran)
        assert not wrong.right
        assert f"predicted {name}, ran" in torch_kernel_names.describe(wrong)


def test_cases_of_the_profile_reach_every_kernel_that_an_h200_can_run() -> None:
    """All but the backward's 64 x 64 tiles of heads past 64, which 128 rows always come before."""
    for peer in torch_kernel_names.peers():
        assert peer.variants is not None
        assert peer.variant is not None
        served = list(torch_kernel_names.cases(peer.op.name))
        assert all(peer.domain.reject(each, 90) is None for each in served)
        reached = {peer.variant(each, 90) for each in served}
        left = set(peer.variants(90)) - reached
        assert all(re.search("B_.*_64x64_k(128|65536)_", each) for each in left)


def test_profile_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one it says so, with a status of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torch_kernel_names.main() == 2
    assert "run on a GPU only" in capsys.readouterr().out


@pytest.mark.parametrize(("sm", "forward", "backward"), [(90, 9, 44), (86, 9, 46), (75, 12, 40)])
def test_sm_has_the_kernels_of_its_range(sm: int, forward: int, backward: int) -> None:
    """bf16 from sm 80 on, unaligned kernels before it, and two more on 86 and 89."""
    assert len(forward_names(sm)) == forward
    assert len(backward_names(sm)) == backward
