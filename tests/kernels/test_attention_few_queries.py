"""Few queries: which calls `split_keys` gets, how it cuts their keys, and that it is one rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from kernel_workbench.kernels.attention import attention_with_lse
from kernel_workbench.kernels.attention.forward import flash
from kernel_workbench.kernels.attention.problem import AttentionCall
from kernel_workbench.kernels.attention.split_keys import few_queries, serves, split_keys, splits_of
from kernel_workbench.kernels.registry import choose
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.options import Options

_FORWARD = OPS["attention_forward"]
_HEADS = ((32, 8), (32, 1), (16, 16))


@pytest.mark.parametrize("s_q", [1, 4, 16, 64])
@pytest.mark.parametrize("s_kv", [1024, 8192, 65536])
def test_few_queries_are_given_enough_programs_of_enough_keys(s_q: int, s_kv: int) -> None:
    """On a Hopper half of the SMs at least have a program where there are keys for them."""
    for h_q, h_kv in _HEADS:
        case = attention_case(
            _FORWARD.name, (1, h_q, h_kv, s_q, s_kv, 128, 128), torch.bfloat16, "full"
        )
        assert choose(_FORWARD, case, 90).name == "split_keys"
        group = h_q // h_kv
        splits = splits_of(group, s_q, s_kv)
        programs = splits * h_kv * -(-group * s_q // (16 if group * s_q <= 16 else 64))
        assert programs >= min(66, h_kv * s_kv // 256)
        assert splits == 1 or s_kv // splits >= 128


def test_many_queries_are_left_to_flash() -> None:
    """Where its blocks fill the GPU, and where keys are too few to be split."""
    for b, h, s in ((16, 32, 1024), (1, 16, 16384), (4, 12, 512), (1, 2, 197)):
        assert not few_queries(b, h, h, s, s)


def test_batch_of_single_queries_keeps_its_kernel_and_its_splits() -> None:
    """A row of a batch gets the bits that it gets alone: neither depends on the batch."""
    for (h_q, h_kv), b in product(_HEADS[::2], (1, 2, 64, 65536)):
        assert few_queries(b, h_q, h_kv, 1, 8192)


def test_call_gets_the_kernel_that_its_case_gets() -> None:
    """`serves` looks at tensors and dispatch at a case; they agree on all of `ci`."""
    agreed = {True: 0, False: 0}
    for case in (each for each in _FORWARD.cases() if each.tier == "ci"):
        if "torch_dropout" in case.options:
            continue
        inputs = _FORWARD.inputs(case, torch.device("cpu"))
        q, k, v = inputs.pop("q"), inputs.pop("k"), inputs.pop("v")
        expected = choose(_FORWARD, case, 90).name.startswith("split_keys")
        assert serves(AttentionCall.of(q, k, v, Options(**inputs))) == expected, case.id()  # type: ignore[arg-type]
        agreed[expected] += 1
    assert min(agreed.values()) > 50


def test_model_with_few_queries_gets_split_keys(device: torch.device) -> None:
    """`attention` gives bit by bit what the kernel that dispatch takes does."""
    case = attention_case(_FORWARD.name, (2, 6, 2, 3, 300, 64, 64), torch.float32, "ci")
    for each, kernel in ((case, split_keys), (replace(case, sizes=_long(case.sizes)), flash)):
        inputs = _FORWARD.inputs(each, device)
        expected = kernel(**inputs)  # type: ignore[arg-type]
        got = attention_with_lse(**inputs)  # type: ignore[arg-type]
        assert all(map(torch.equal, got, expected))


def _long(sizes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """With as many queries as keys, few of both."""
    return tuple((name, 70 if name.startswith("s_") else size) for name, size in sizes)


def test_no_heads_need_no_programs(device: torch.device) -> None:
    """A group of no query heads has no rows, whatever the keys are."""
    q, k = torch.empty(1, 3, 0, 16, device=device), torch.empty(1, 300, 2, 16, device=device)
    out, lse = split_keys(q, k, k)
    assert (out.shape, lse.shape) == ((1, 3, 0, 16), (1, 0, 3))
