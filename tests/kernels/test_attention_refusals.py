"""Refusals of attention: bad input gets one sentence that says what and why, before any launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.attention.backward import two_pass
from kernel_workbench.kernels.attention.delta import delta
from kernel_workbench.kernels.attention.forward import flash
from kernel_workbench.kernels.attention.function import attention
from kernel_workbench.kernels.attention.problem import AttentionError

_Shapes = Mapping[str, tuple[int, ...]]

_BASE: _Shapes = {"q": (2, 5, 4, 16), "k": (2, 7, 2, 16), "v": (2, 7, 2, 8)}
_ONE: _Shapes = {"q": (1, 5, 4, 16), "k": (1, 7, 2, 16), "v": (1, 7, 2, 8)}


def _offsets(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _sequences(q: Tensor | None, k: Tensor | None) -> dict[str, Any]:
    return {"cu_seqlens_q": q, "cu_seqlens_k": k}


_SHAPES: dict[str, _Shapes] = {
    r"q must have 4 axes, \(b, s, h, d\), got shape \(2, 5, 64\)": {"q": (2, 5, 64)},
    "q, k and v must have one batch size, got 2, 3 and 2": {"k": (3, 7, 2, 16)},
    "q and k must have one head size, got 16 and 24": {"k": (2, 7, 2, 24)},
    "k and v must be equally long, got 7 and 6 keys": {"v": (2, 6, 2, 8)},
    "k and v must have the same heads, got 2 and 1": {"v": (2, 7, 1, 8)},
    "q's heads must be a multiple of k's, got 3 and 2": {"q": (2, 5, 3, 16)},
    "d must be from 1 to 512, got 513": {"q": (2, 5, 4, 513), "k": (2, 7, 2, 513)},
    "d_v must be from 1 to 512, got 520": {"v": (2, 7, 2, 520)},
}
_OPTIONS: dict[str, dict[str, Any]] = {
    r"a window's sides must be 0 or more, got \(-1, 3\)": {"window": (-1, 3)},
    "corner must be top_left or bottom_right, got middle": {"corner": "middle"},
    "softcap must be positive and finite, got 0.0": {"softcap": 0.0},
    "scale must be finite, got inf": {"scale": float("inf")},
    "dropout_p must be at least 0 and below 1, got 1.0": {"dropout_p": 1.0},
    r"dropout_seed must be at least 0 and below 2\^63, got 9223372036854775808": {
        "dropout_seed": 2**63
    },
    r"dropout_seed must be at least 0 and below 2\^63, got -1": {"dropout_seed": -1},
    r"bias must have shape \(2, 4, 5, 7\), or 1 .*, got \(2, 3, 5, 7\)": {
        "bias": torch.zeros(2, 3, 5, 7)
    },
    r"bias must have shape \(2, 4, 5, 7\), or 1 .*, got \(2, 4, 5, 1\)": {
        "bias": torch.zeros(2, 4, 5, 1)
    },
    "bias must be float32 like q, got float16": {
        "bias": torch.zeros(2, 4, 5, 7, dtype=torch.float16)
    },
    r"sink must be float32 of shape \(4,\), got float32 of \(3,\)": {"sink": torch.zeros(3)},
    r"alibi_slopes must be float32 of shape \(4,\), got float64 of \(4,\)": {
        "alibi_slopes": torch.zeros(4).double()
    },
}
_SEQUENCES: dict[str, dict[str, Any]] = {
    "cu_seqlens_k is missing": _sequences(_offsets(0, 5), None),
    "cu_seqlens_q must ascend, got 4 and then 2 at 2": _sequences(
        _offsets(0, 4, 2, 5), _offsets(0, 1, 2, 7)
    ),
    "cu_seqlens_q must end at the 5 rows of q, got 4": _sequences(_offsets(0, 4), _offsets(0, 7)),
    "cu_seqlens_q must start at 0, got 1": _sequences(_offsets(1, 5), _offsets(0, 7)),
    "the same number of sequences, got 1 and 2": _sequences(_offsets(0, 5), _offsets(0, 3, 7)),
    r"cu_seqlens_q must be int32 of shape \(n \+ 1,\), got int64 of \(2,\)": _sequences(
        _offsets(0, 5).long(), _offsets(0, 7)
    ),
    "max_seqlen_k must be at least the longest sequence, 7, got 6": {
        **_sequences(_offsets(0, 5), _offsets(0, 7)),
        "max_seqlen_k": 6,
    },
    "a bias isn't served together with cu_seqlens": {
        **_sequences(_offsets(0, 5), _offsets(0, 7)),
        "bias": torch.zeros(1, 4, 5, 7),
    },
}


@pytest.fixture(autouse=True)
def _nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal comes before the first launch: these would fail on it."""

    def launch(*_: object, **__: object) -> None:
        pytest.fail("a kernel was launched")

    for name in ("launch.Launcher.launch", "delta.launch_delta"):
        monkeypatch.setattr(f"kernel_workbench.kernels.attention.{name}", launch)


def _of(shapes: _Shapes) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.zeros(shapes[name]) for name in ("q", "k", "v"))
    return q, k, v


@pytest.mark.parametrize("call", [flash, attention], ids=["kernel", "function"])
@pytest.mark.parametrize(
    ("shapes", "given", "sentence"),
    [
        *(({**_BASE, **changed}, {}, sentence) for sentence, changed in _SHAPES.items()),
        *((_BASE, given, sentence) for sentence, given in _OPTIONS.items()),
        *((_ONE, given, sentence) for sentence, given in _SEQUENCES.items()),
    ],
    ids=[*_SHAPES, *_OPTIONS, *_SEQUENCES],
)
def test_arguments_that_cannot_be_meant_are_refused(
    shapes: _Shapes, given: dict[str, Any], sentence: str, call: Callable[..., object]
) -> None:
    """Sizes that don't belong together, options out of range, offsets that would leave a tensor."""
    with pytest.raises(AttentionError, match=sentence):
        call(*_of(shapes), **given)


def test_sequences_in_more_than_one_batch_are_refused() -> None:
    """Sequences lie end to end in batch 1."""
    given = _sequences(_offsets(0, 5), _offsets(0, 7))
    with pytest.raises(
        AttentionError, match="q must have batch 1, its sequences end to end, got 2"
    ):
        flash(*_of(_BASE), **given)


def test_mixed_dtypes_are_refused() -> None:
    """All of q, k and v have one dtype, of the three that are served."""
    q, k, v = _of(_BASE)
    with pytest.raises(AttentionError, match="k must be float32 like q, got float16"):
        flash(q, k.half(), v)
    with pytest.raises(AttentionError, match="q must be float32, float16 or bfloat16, got float64"):
        flash(q.double(), k.double(), v.double())


@pytest.mark.parametrize("call", [flash, attention], ids=["kernel", "function"])
def test_mixed_devices_are_refused(call: Callable[..., object]) -> None:
    """A tensor elsewhere than q isn't copied in silence."""
    q, k, v = _of(_BASE)
    with pytest.raises(AttentionError, match="v must be on cpu like q, got meta"):
        call(q, k, v.to("meta"))


@pytest.mark.parametrize("sentence", _SHAPES)
def test_mismatched_tensors_without_memory_are_refused(sentence: str) -> None:
    """Where only shapes are worked out, as in a model that is being laid out."""
    with pytest.raises(AttentionError, match=sentence):
        attention(*(each.to("meta") for each in _of({**_BASE, **_SHAPES[sentence]})))


@pytest.mark.parametrize("given", [{"corner": 3}, {"scale": "wide"}, {"sinks": torch.zeros(4)}])
def test_option_of_another_kind_or_name_is_no_error_of_torchs_schema(
    given: dict[str, object],
) -> None:
    """It is the one that our own checks end in."""
    with pytest.raises((AttentionError, TypeError)) as refused:
        attention(*_of(_BASE), **given)  # type: ignore[arg-type]
    assert "kernel_workbench::" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"do": (2, 5, 4, 16)}, r"do must have shape \(2, 5, 4, 8\), got \(2, 5, 4, 16\)"),
        ({"out": (2, 5, 2, 8)}, r"out must have shape \(2, 5, 4, 8\), got \(2, 5, 2, 8\)"),
        (
            {"lse": (2, 5, 4)},
            r"lse must be float32 of shape \(2, 4, 5\), got float32 of \(2, 5, 4\)",
        ),
    ],
)
def test_backward_refuses_what_no_forward_gave(
    changed: dict[str, tuple[int, ...]], sentence: str
) -> None:
    """do, out and lse have the shapes that follow from q, k and v."""
    shapes = {"do": (2, 5, 4, 8), "out": (2, 5, 4, 8), "lse": (2, 4, 5)} | changed
    do, out, lse = (torch.zeros(shapes[name]) for name in ("do", "out", "lse"))
    with pytest.raises(AttentionError, match=sentence):
        two_pass(do, *_of(_BASE), out, lse)


def test_delta_refuses_tensors_that_differ() -> None:
    """out and do have one shape and one dtype."""
    out = torch.zeros(2, 5, 4, 8)
    with pytest.raises(AttentionError, match="out and do must have one shape of 4 axes"):
        delta(out, out[:, :4])
    with pytest.raises(AttentionError, match=r"out and do must be alike, got float32 .* float16"):
        delta(out, out.half())


def test_unordered_backward_refuses_wide_heads() -> None:
    """It holds both accumulators in registers, and says where that ends."""
    q, k, v = (torch.zeros(1, 3, 1, 160) for _ in range(3))
    with pytest.raises(AttentionError, match="serves heads of at most 128, got 160"):
        attention(q, k, v, deterministic=False)
