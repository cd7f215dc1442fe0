"""`hopper`: which calls it gets, and that its kernel is right however late asynchronous work is."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.attention import (
    attention_with_lse,
    hopper,
    hopper_dropout,
    hopper_kernel,
)
from kernel_workbench.kernels.attention.forward import flash
from kernel_workbench.kernels.attention.problem import AttentionError
from kernel_workbench.kernels.registry import choose
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.op import Case
from tests.builders.gluon_kernels import changed, row_of

_FORWARD = OPS["attention_forward"]


def _case(
    *sizes: int,
    options: str = "",
    dtype: torch.dtype = torch.bfloat16,
    window: tuple[int | None, int | None] | None = None,
) -> Case:
    return attention_case(_FORWARD.name, sizes, dtype, "ci", options=options, window=window)


@pytest.mark.parametrize(
    ("case", "sm", "name"),
    [
        (_case(16, 16, 16, 1024, 1024, 128, 128), 90, "hopper"),
        (_case(1, 32, 4, 16384, 16384, 64, 64, options="causal"), 90, "hopper"),
        (_case(1, 16, 16, 1024, 1024, 128, 128), 90, "flash"),  # 64 pairs of blocks
        (_case(16, 32, 32, 1024, 1024, 64, 64, options="causal"), 90, "hopper"),
        (_case(16, 16, 16, 1024, 1024, 128, 128), 100, "flash"),
        (_case(16, 16, 16, 1024, 1024, 96, 96), 90, "flash"),
        (_case(16, 16, 16, 1024, 1024, 128, 128, options="scale"), 90, "hopper"),
        (_case(16, 16, 16, 1024, 1024, 128, 128, options="sink", window=(256, 0)), 90, "hopper"),
        (_case(16, 16, 16, 1024, 1024, 128, 128, options="alibi softcap"), 90, "hopper"),
        (_case(16, 16, 16, 1024, 1024, 64, 64, window=(256, 0)), 90, "flash"),
        (_case(16, 16, 16, 1024, 1024, 128, 128, options="bias"), 90, "hopper"),
        (_case(16, 16, 16, 1024, 1023, 128, 128, options="bias"), 90, "flash"),  # rows of 2 bytes
        (_case(16, 16, 16, 1024, 1024, 128, 128, options="dropout"), 90, "hopper"),
        (_case(16, 16, 16, 1024, 1024, 128, 128, dtype=torch.float32), 90, "flash_fp32"),
        (_case(64, 16, 16, 1, 8192, 128, 128), 90, "split_keys"),
    ],
)
def test_large_calls_are_given_to_it(case: Case, sm: int, name: str) -> None:
    """On sm 90, where it serves them and their pairs of blocks fill an H200."""
    assert choose(_FORWARD, case, sm).name == name


def test_model_with_large_calls_gets_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`attention` gives bit by bit what the kernel that dispatch takes does."""
    monkeypatch.setattr(hopper, "FIXED_MULTIPROCESSORS", 4)
    case = _case(3, 4, 2, 64, 70, 128, 128, options="causal")
    inputs: Any = _FORWARD.inputs(case, device)
    assert choose(_FORWARD, case, 90, device=device.type).name == "hopper"
    expected = hopper.hopper(**inputs)
    assert all(map(torch.equal, attention_with_lse(**inputs), expected))
    assert not torch.equal(flash(**inputs)[1], expected[1])


_WITH_OPTIONS = (
    _case(1, 4, 2, 450, 500, 64, 64, options="sink", window=(130, 5)),
    _case(1, 2, 2, 200, 450, 128, 128, options="causal alibi bottom_right", window=(99, None)),
    _case(1, 2, 2, 450, 129, 64, 64, options="bottom_right sink", window=(7, 200)),
    _case(1, 4, 2, 130, 300, 256, 256, options="softcap alibi"),
    _case(2, 4, 2, 130, 200, 64, 64, options="dropout causal"),
    _case(1, 2, 2, 100, 333, 128, 128, options="dropout bottom_right sink", window=(30, 5)),
    _case(2, 2, 2, 150, 248, 128, 128, options="bias dropout softcap bottom_right", window=(57, 3)),
    _case(2, 2, 1, 130, 152, 64, 64, options="bias bias_over_batch causal"),
    _case(2, 2, 2, 129, 72, 256, 256, options="bias bias_over_heads sink"),
    _case(2, 4, 2, 100, 328, 64, 64, options="bias bias_over_queries dropout", window=(30, 5)),
)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    "case",
    [
        _case(1, 2, 1, 300, 333, 64, 64),
        _case(2, 2, 2, 200, 200, 64, 64, options="causal", dtype=torch.float16),
        _case(1, 4, 2, 300, 333, 128, 128, options="causal bottom_right"),
        _case(1, 1, 1, 333, 200, 128, 128, options="causal bottom_right"),
        _case(1, 2, 2, 129, 200, 256, 256, options="causal"),
        _case(1, 3, 3, 1, 77, 256, 256),
        *_WITH_OPTIONS,
    ],
    ids=Case.id,
)
def test_it_is_right_however_late_asynchronous_work_is(
    case: Case, *, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the accuracy suite's verdict."""
    row = row_of("hopper", case, monkeypatch, late=late)
    assert row.status == "passed", row.reason


_SHORT = (
    _case(1, 2, 1, 500, 600, 64, 64, options="causal"),
    _case(1, 2, 2, 300, 333, 64, 64),
)
_WAIT = "acc, weights, p = hopper.warpgroup_mma_wait(0, deps=[product, weights, p])\n"
_GIVEN_BACK = "hopper.mbarrier.arrive(barriers.v_empty.index(before), count=1)\n"
# Pieces of the kernel's text, and their replacements.
_DEFECTS = {
    "k is read before it is there": (
        "mbarrier.wait(barriers.k_full.index(stage), (passed // STAGES) & 1)\n                k =",
        "fence_async_shared()\n                k =",
    ),
    "v is read before it is there": (
        ", ((passed - 1) // STAGES) & 1)\n                weights",
        ", ((passed - 1) // STAGES) & 1 ^ 1)\n                weights",
    ),
    "k is overwritten while it is read": (
        "mbarrier.wait(barriers.k_empty.index(stage), phase)",
        "fence_async_shared()",
    ),
    "v is overwritten while it is read": (
        "mbarrier.wait(barriers.v_empty.index(stage), phase)",
        "fence_async_shared()",
    ),
    "q is overwritten while it is read": (
        "mbarrier.wait(barriers.q_empty.index(g), (turn & 1) ^ 1)",
        "fence_async_shared()",
    ),
    "v is given back before its product is done": (
        f"                {_WAIT}                {_GIVEN_BACK}",
        f"                {_GIVEN_BACK}                {_WAIT}",
    ),
    "scores are used before they are there": ("_wait(1, deps=[s])", "_wait(2, deps=[s])"),
    "out is overwritten while it is stored": (
        "        if not OUT_IN_Q:\n            hopper.tma.store_wait(0)\n",
        "",
    ),
    "a barrier's phase is the other one": (
        "phase = ((loaded // STAGES) & 1) ^ 1",
        "phase = (loaded // STAGES) & 1",
    ),
    "one group too many is waited for": (
        "new_barriers(STAGES, GROUPS), new_barriers(STAGES, 1),",
        "new_barriers(STAGES, GROUPS + 1), new_barriers(STAGES, 1),",
    ),
    "the mask is off by one": (
        "<= offs_m[:, None] + sizes.shift",
        "< offs_m[:, None] + sizes.shift",
    ),
    "a key past the last is attended to": (
        "keep = offs_n[None, :] < sizes.keys",
        "keep = offs_n[None, :] <= sizes.keys",
    ),
    "half of the blocks are never done": ("if turn % 2 == 0:", "if turn % 2 == 2:"),
    "the factor of acc is left out": (
        "                acc = acc * gl.convert_layout(alpha, O_ROWS)[:, None]\n",
        "",
    ),
}


# The same, of what options do.
_OPTION_DEFECTS = {
    "a window's far end is off by one": (">= (centre - sizes.left)", "> (centre - sizes.left)"),
    "a window's near end is off by one": ("<= (centre + sizes.right)", "< (centre + sizes.right)"),
    "a window's first tile has no mask": (
        "full_low = gl.minimum(gl.cdiv(gl.maximum(last - sizes.left, 0), BLOCK_N), high)",
        "full_low = low",
    ),
    "a window's first tile is left out": (
        "low = gl.minimum(gl.maximum(first - sizes.left, 0) // BLOCK_N, high)",
        "low = gl.minimum(gl.maximum(first - sizes.left, 0) // BLOCK_N + 1, high)",
    ),
    "the keys after a query are as near as those before": (
        "slope * gl.abs(rows[:, None] - as_numbers(offs_n)[None, :])",
        "slope * (rows[:, None] - as_numbers(offs_n)[None, :])",
    ),
    "a slope is in the wrong unit": ("slopes_ptr + h) * terms.per_slope", "slopes_ptr + h)"),
    "a softcap bends by half": ("terms.cap * 2.0**-30", "terms.cap * 2.0**-31"),
    "lse is less by a softcap": ("            m_i += terms.cap\n", "            m_i += 0.0\n"),
    "a head has the first one's sink": ("gl.load(terms.sink_ptr + h)", "gl.load(terms.sink_ptr)"),
    "a sink's share isn't taken off": (
        "share / gl.where(l_i == 0.0",
        "1.0 / gl.where(l_i == 0.0",
    ),
    "all batches and heads drop the same weights": (
        "                    bits = drawn(dropout, head,",
        "                    bits = drawn(dropout, 0 * head,",
    ),
    "groups of warps drop the same weights": (
        "                    bits = drawn(dropout, head, start_m + G * ROWS,",
        "                    bits = drawn(dropout, head, start_m,",
    ),
    "dropped weights leave the sum": (
        "inverse *= dropout.keep_scale",
        "inverse *= 1.0",
    ),
    "tiles begin between fours of keys": ("start_n -= lead", "start_n -= 0 * lead"),
    "a bias is another head's": ("h * bias_place.stride_h", "0 * h"),
    "a bias is another batch's": ("b * bias_place.stride_b", "0 * b"),
    "a bias is another group's": ("start_m + g * ROWS, column", "start_m, column"),
    "a bias's columns begin at the first key of a window": (
        "column = bias_place.first_key + start_n",
        "column = start_n",
    ),
    "a row for all queries is another batch's": ("bias_place.stride_b + h", "0 + h"),
}


@pytest.mark.long_run
@pytest.mark.parametrize("defect", [*_DEFECTS, *_OPTION_DEFECTS])
def test_defect_is_found(defect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the machine, or by the verdict, in one of the two orders of what is asynchronous."""
    texts = (_DEFECTS | _OPTION_DEFECTS)[defect]
    module = changed(hopper_kernel, tmp_path / "changed.py", *texts)
    monkeypatch.setattr(hopper, "hopper_kernel", module.hopper_kernel)
    orders = product(_SHORT if defect in _DEFECTS else _WITH_OPTIONS, (True, False))
    rows = (row_of("hopper", case, monkeypatch, late=late) for case, late in orders)
    assert any(row.status == "failed" for row in rows)


# Pieces of the text of the draws, and their replacements.
_DRAW_DEFECTS = {
    "a round is left out": ("_ROUNDS = gl.constexpr(10)", "_ROUNDS = gl.constexpr(9)"),
    "fours of keys are another tile's": (
        "fours = (dropout.first_key + start_n) // 4",
        "fours = dropout.first_key // 4",
    ),
    "words of four keys are exchanged": (
        "low = _bits(r0, dropout, even) | _bits(r1, dropout, odd)",
        "low = _bits(r1, dropout, even) | _bits(r0, dropout, odd)",
    ),
    "bits are another column's": ("1 << (2 * eights + twos)", "1 << (2 * eights + 1 - twos)"),
    "words are compared as signed integers": (
        "(word ^ _HIGHEST) >= (dropout.threshold ^ _HIGHEST)",
        "word >= dropout.threshold",
    ),
}


@pytest.mark.parametrize("defect", _DRAW_DEFECTS)
def test_defect_of_draws_is_found(
    defect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the verdict."""
    module = changed(hopper_dropout, tmp_path / "changed.py", *_DRAW_DEFECTS[defect])
    for name in ("drawn", "is_kept"):
        monkeypatch.setattr(hopper_kernel, name, getattr(module, name))
    case = _case(1, 2, 2, 70, 200, 64, 64, options="dropout")
    assert row_of("hopper", case, monkeypatch, late=True).status == "failed"


def test_seed_of_two_words_and_threshold_above_half_are_served(device: torch.device) -> None:
    """As by `flash`: words are unsigned."""
    case = _case(1, 2, 2, 70, 200, 64, 64, options="causal")
    inputs: Any = _FORWARD.inputs(case, device)
    inputs |= {"dropout_p": 0.7, "dropout_seed": 2**62 + 2**31 + 5}
    for one, other in zip(hopper.hopper(**inputs), flash(**inputs), strict=True):
        assert float((one.float() - other.float()).abs().max()) < 0.05


def test_call_that_it_does_not_serve_is_refused_in_one_sentence() -> None:
    """Where it is called by name."""
    q = torch.zeros(1, 64, 1, 64)
    with pytest.raises(AttentionError, match="hopper serves float16 and bfloat16 on sm 90"):
        hopper.hopper(q, q, q)
