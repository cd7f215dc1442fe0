"""PyTorch's CUDA kernels behind the ops of attention, with their operators emulated on a CPU.

The tests check the way there and back: which arguments the kernels get, under which convention,
and what is made of their outputs. The kernels' correctness is the suite's question, on a GPU.
"""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_workbench.kernels.baselines import attention_efficient
from kernel_workbench.kernels.baselines.attention_call import KeyMask, packed
from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS
from kernel_workbench.oracles.op import Case, Layout, TensorLayout
from tests.builders.emulated_peers import EMULATED

SM = 90
CPU = torch.device("cpu")


def _kernel(op: str, name: str) -> Kernel:
    return next(each for each in all_kernels() if (each.op.name, each.name) == (op, name))


def _case(
    op: str = FORWARD,
    options: str = "",
    *,
    dtype: torch.dtype = torch.float16,
    layout: Layout | None = None,
    **sizes: int,
) -> Case:
    """A case of `op`: one batch, two heads, 40 queries, 48 keys, heads of 64 unless said."""
    known = {"b": 1, "h_q": 2, "h_kv": 2, "s_q": 40, "s_kv": 48, "d": 64, "d_v": 64}
    return Case(
        op=op,
        sizes=tuple((known | sizes).items()),
        dtype=dtype,
        weight_dtype=dtype,
        options=frozenset(options.split()),
        layout=layout or Layout("contiguous"),
    )


def _served(kernel: Kernel) -> list[Case]:
    """The `ci` cases in fp16, of plain values, that the kernel serves on a GPU."""
    return [
        case
        for case in kernel.op.cases()
        if case.tier == "ci"
        and case.dtype == torch.float16
        and case.distribution == "normal"
        and "far" not in case.layout.name
        and kernel.domain.reject(case, SM) is None
    ]


@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
@pytest.mark.parametrize("name", ["torch_efficient", "torch_flash", "torch_cudnn"])
def test_peer_returns_what_its_operator_computes(
    name: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an operator that computes by `torch_eager`, the outputs have `torch_eager`'s bits."""
    module = importlib.import_module(
        f"kernel_workbench.kernels.baselines.{name.replace('torch', 'attention')}"
    )
    forward, backward = EMULATED[module.__name__.rpartition(".")[2]]
    monkeypatch.setattr(module, "_FORWARD", forward)
    monkeypatch.setattr(module, "_BACKWARD", backward)
    peer, eager = _kernel(op, name), _kernel(op, "torch_eager")
    cases = _served(peer)
    assert len(cases) > 20  # of 23 to 39
    for case in cases:
        inputs = peer.op.inputs(case, CPU)
        got = peer.function(**inputs)
        # Strides decide the order of a sum, and the peers copy do and out.
        copies = {
            argument: packed(value)
            for argument, value in inputs.items()
            if argument in ("do", "out") and isinstance(value, Tensor)
        }
        expected = eager.function(**inputs | copies)
        assert isinstance(got, tuple)
        assert isinstance(expected, tuple)
        for output, one, other in zip(peer.op.outputs, got, expected, strict=True):
            assert (one is None) == (other is None), (case.id(), output)
            if one is not None:
                assert one.shape == other.shape, (case.id(), output)
                assert torch.equal(one, other), (case.id(), output)


class _Watch(TorchDispatchMode):
    """The operators that are called and give more than a view of what they get."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if not func.is_view:
            self.seen.append(str(func))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("options", ["", "causal"])
@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
@pytest.mark.parametrize("name", ["torch_efficient", "torch_flash", "torch_cudnn"])
def test_peer_is_timed_without_work_of_its_adapter(
    name: str, op: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every query has a key the operator is called, and what comes of it is seen anew."""
    module = importlib.import_module(
        f"kernel_workbench.kernels.baselines.{name.replace('torch', 'attention')}"
    )
    peer = _kernel(op, name)
    inputs = peer.op.inputs(_case(op, options, s_q=64, s_kv=64), CPU)
    place = "_FORWARD" if op == FORWARD else "_BACKWARD"
    emulated = EMULATED[module.__name__.rpartition(".")[2]][op == BACKWARD]
    returned: list[object] = []

    def operator(*args: object, **kwargs: object) -> object:
        if not returned:
            returned.append(emulated(*args, **kwargs))
        return returned[0]

    monkeypatch.setattr(module, place, operator)
    peer.function(**inputs)
    with _Watch() as watch:
        peer.function(**inputs)
    # The seeds of the memory-efficient backward's dropout: two numbers, on the host.
    assert [each for each in watch.seen if "lift_fresh" not in each] == []


@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_dropout_that_drew_elsewhere_raises(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that isn't the one for (seed, offset 0) never passes for it."""
    drawn = (torch.tensor(seed), torch.tensor(4))

    def operator(*args: Tensor, **_: object) -> tuple[object, ...]:
        return args[0], torch.zeros(1, 2, 64), *drawn, 40, 48

    monkeypatch.setattr(attention_efficient, "_FORWARD", operator)
    monkeypatch.setattr(attention_efficient, "_drawing_from", lambda *_: torch.no_grad())
    q = torch.zeros(1, 40, 2, 64)
    function = attention_efficient.torch_efficient
    with pytest.raises(RuntimeError, match="offset 4, not from seed"):
        function(q, q, q, dropout_p=0.5, dropout_seed=seed)
    drawn = (torch.tensor(seed), torch.tensor(0))
    out, lse = function(q, q, q, dropout_p=0.5, dropout_seed=seed)
    assert out is q
    assert lse.shape == (1, 2, 40)


def test_packed_copies_what_is_apart_or_off_16_bytes() -> None:
    """A gradient that is contiguous on an odd address is copied; one that is aligned isn't."""
    buffer = torch.arange(256, dtype=torch.float16)
    start = -(buffer.data_ptr() // 2) % 8
    aligned = buffer[start : start + 64].view(1, 2, 4, 8)
    assert packed(aligned).data_ptr() == aligned.data_ptr()
    for other in (buffer[start + 4 : start + 68].view(1, 2, 4, 8), aligned.transpose(1, 2)):
        copy = packed(other)
        assert torch.equal(copy, other)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 16 == 0


_OFFSET = Layout("v_offset4", (("v", TensorLayout(offset=4)),))
_BIAS_ROW = Layout("bias_rowpad1", (("bias", TensorLayout(row_padding=1)),))
_ROW = Layout("k_rowpad1", (("k", TensorLayout(row_padding=1)),))
_FAR_HEADS = Layout("q_heads_far", (("q", TensorLayout(order="hbsd", row_stride=2**31)),))
_REFUSALS = (
    ("torch_flash", _case(dtype=torch.float32), "serves float16, bfloat16, got float32"),
    ("torch_flash", _case(d=60, d_v=60), "whole 16 bytes"),
    ("torch_flash", _case(d=264, d_v=264), "d of 8 to 256"),
    ("torch_flash", _case(options="unequal_d", d_v=32), "doesn't serve unequal_d"),
    ("torch_flash", _case(options="causal"), "from the bottom right corner, got s_q = 40"),
    ("torch_flash", _case(options="alibi", s_kv=40), "doesn't serve alibi"),
    ("torch_flash", _case(BACKWARD, "alibi", s_kv=40), "doesn't serve alibi"),
    ("torch_flash", _case(b=65536), "b of 1 to 65535"),
    ("torch_flash", _case(s_kv=0), "s_kv of 1 or more"),
    ("torch_flash", _case(layout=_OFFSET), "16-byte pointers, got v offset by 4"),
    ("torch_flash", _case(GRADIENTS, "causal"), "is refused causal masks of unequal lengths"),
    ("torch_efficient", _case(options="gqa", h_kv=1), "doesn't serve gqa"),
    ("torch_efficient", _case(s_kv=1, h_kv=1, h_q=1, layout=_ROW), "along axis 1 of k"),
    ("torch_efficient", _case(options="window", window_left=3, window_right=2), "got one 2 keys"),
    ("torch_efficient", _case(options="window", window_left=3), "without a right limit"),
    ("torch_efficient", _case(options="bias", layout=_BIAS_ROW), "stride of 49 along axis 2"),
    ("torch_efficient", _case(options="torch_dropout varlen"), "draws another mask under varlen"),
    ("torch_efficient", _case(layout=_FAR_HEADS), "below 2^31 along h, got 2147483648 in q"),
    ("torch_efficient", _case(GRADIENTS, "causal bias"), "a mask and a causal flag together"),
    ("torch_cudnn", _case(s_kv=1), "s_kv of 2 or more"),
    ("torch_cudnn", _case(options="causal bottom_right"), "from the top left alone"),
    ("torch_cudnn", _case(BACKWARD, d=160, d_v=160), "heads up to 128, (192, 128) and 256"),
    ("torch_cudnn", _case(BACKWARD, "bias"), "doesn't serve bias"),
    ("flex_attention", _case(), "s_q of 1024 to 16384"),
    ("flex_attention", _case(s_q=4096, s_kv=4096, d=80, d_v=80), "got d 80 and d_v 80"),
)


@pytest.mark.parametrize(("name", "case", "sentence"), _REFUSALS)
def test_peer_refuses_what_its_backend_refuses(name: str, case: Case, sentence: str) -> None:
    """Each limit of a backend is a refusal with its reason, before any launch."""
    reason = _kernel(case.op, name).domain.reject(case, SM)
    assert reason is not None
    assert sentence in reason


@pytest.mark.parametrize("op", OPS)
def test_peer_of_attention_comes_after_ours(op: str) -> None:
    """No baseline is ever before a kernel of ours in the order of dispatch."""
    of_op = [each for each in all_kernels() if each.op.name == op]
    assert of_op == sorted(of_op, key=lambda each: each.origin == "baseline")


def test_row_without_keys_is_marked_by_its_mask_alone() -> None:
    """lse 0 of a query that has keys stays 0: no value tells the two apart."""
    mask = KeyMask(causal=True, corner="bottom_right")
    lse = torch.zeros(1, 2, 5)
    attention_efficient._forbid_rows_without_keys(lse, mask, 3)
    assert lse[0, 0].tolist() == [-math.inf, -math.inf, 0.0, 0.0, 0.0]
