"""`hopper_ordered` and `hopper_atomic`: which calls they get, and that they are right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.attention import (
    attention,
    attention_with_lse,
    hopper,
    hopper_backward,
    hopper_backward_kernel,
)
from kernel_workbench.kernels.attention.problem import AttentionError
from kernel_workbench.kernels.registry import all_kernels, choose
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.op import Case
from tests.builders.gluon_kernels import changed, row_of

pytestmark = pytest.mark.long_run

_BACKWARD = OPS["attention_backward"]


def _case(
    *sizes: int,
    options: str = "",
    dtype: torch.dtype = torch.bfloat16,
    window: tuple[int | None, int | None] | None = None,
) -> Case:
    return attention_case(_BACKWARD.name, sizes, dtype, "ci", options=options, window=window)


@pytest.mark.parametrize(
    ("case", "sm", "name"),
    [
        (_case(16, 16, 16, 1024, 1024, 128, 128), 90, "hopper_ordered"),
        (_case(1, 32, 4, 16384, 16384, 64, 64, options="causal scale"), 90, "hopper_ordered"),
        (_case(8, 16, 16, 1, 4096, 64, 64), 90, "hopper_ordered"),
        (_case(16, 16, 16, 1024, 1024, 128, 128), 100, "two_pass"),
        (_case(16, 8, 8, 1024, 1024, 256, 256, options="causal"), 90, "hopper_ordered"),
        (_case(16, 16, 16, 1024, 1024, 96, 96), 90, "two_pass"),
        (
            _case(16, 16, 16, 1024, 1024, 128, 128, options="sink", window=(256, 0)),
            90,
            "hopper_ordered",
        ),
        (_case(16, 16, 16, 1024, 1024, 128, 128, options="bias"), 90, "hopper_ordered"),
        (_case(16, 16, 16, 1024, 1023, 128, 128, options="bias"), 90, "two_pass"),
        (_case(16, 16, 16, 1024, 1024, 128, 128, options="dropout"), 90, "hopper_ordered"),
        (_case(16, 16, 16, 1024, 1024, 128, 128, dtype=torch.float32), 90, "two_pass_fp32"),
    ],
)
def test_calls_that_it_serves_are_given_to_it(case: Case, sm: int, name: str) -> None:
    """On sm 90."""
    assert choose(_BACKWARD, case, sm).name == name


@pytest.mark.parametrize(
    ("case", "taken"),
    [
        (_case(1, 16, 16, 1024, 1024, 128, 128), True),  # 128 programs
        (_case(1, 32, 1, 256, 1024, 128, 128), True),  # 256 programs, of a query head each
        (_case(1, 1, 1, 1024, 1024, 128, 128), False),  # 8 programs of 16 tiles
        (_case(1, 4, 1, 128, 128, 128, 128), True),  # a program of 8 tiles
    ],
)
def test_without_order_it_is_taken_where_its_programs_are_many_or_short(
    case: Case,
    taken: bool,  # noqa: FBT001
) -> None:
    """`split_queries` takes the rest."""
    kernel = next(each for each in all_kernels() if each.name == "hopper_atomic")
    assert kernel.dispatched is not None
    assert kernel.dispatched(case) == taken


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four blocks fill the GPU that dispatch has in mind."""
    for module in (hopper, hopper_backward):
        monkeypatch.setattr(module, "FIXED_MULTIPROCESSORS", 4)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("deterministic", [True, False])
def test_model_with_large_calls_gets_it(deterministic: bool, device: torch.device) -> None:  # noqa: FBT001
    """`attention` has the gradients of the kernel that dispatch takes, bit by bit where ordered."""
    case = _case(2, 3, 3, 64, 70, 64, 64, options="causal")
    inputs: Any = _BACKWARD.inputs(case, device)
    assert choose(_BACKWARD, case, 90, device=device.type).name == "hopper_ordered"
    q, k, v = (inputs[name].requires_grad_() for name in "qkv")
    out, lse = attention_with_lse(q, k, v, causal=True, deterministic=deterministic)
    found = torch.autograd.grad(out, (q, k, v), inputs["do"])
    inputs |= {"q": q.detach(), "k": k.detach(), "v": v.detach()}
    inputs |= {"out": out.detach(), "lse": lse.detach()}
    kernel = hopper_backward.hopper_ordered if deterministic else hopper_backward.hopper_atomic
    made: Any = kernel(**inputs)
    for one, other in zip(found, made[:3], strict=True):
        if deterministic:
            assert torch.equal(one, other)
        else:
            assert _distance(one, other) < 0.01


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative to their size."""
    one, other = one.detach(), other.detach()
    return float((one.float() - other.float()).norm() / other.float().norm().clamp(min=1e-3))


_CASES = (
    _case(1, 4, 2, 300, 333, 64, 64),
    _case(2, 2, 2, 200, 200, 64, 64, options="causal", dtype=torch.float16),
    _case(1, 4, 2, 300, 333, 128, 128, options="causal bottom_right"),
    _case(1, 1, 1, 333, 200, 128, 128, options="causal bottom_right"),
    _case(3, 6, 3, 129, 77, 64, 64, options="causal scale"),
    _case(1, 3, 3, 1, 300, 128, 128),
    _case(1, 4, 2, 150, 170, 256, 256, options="causal"),
    _case(2, 6, 2, 1, 700, 64, 64, options="causal bottom_right"),
    _case(1, 2, 1, 1, 300, 64, 64, options="causal"),
    _case(1, 2, 1, 0, 17, 64, 64),
    _case(1, 8, 2, 1, 1300, 128, 128),
    _case(1, 2, 2, 20, 1300, 128, 128, options="causal bottom_right"),
)


_WITH_OPTIONS = (
    _case(1, 4, 2, 450, 500, 64, 64, options="sink", window=(130, 5)),
    _case(1, 2, 2, 200, 450, 128, 128, options="causal alibi bottom_right", window=(99, None)),
    _case(1, 2, 2, 450, 129, 64, 64, options="bottom_right sink", window=(7, 200)),
    _case(1, 4, 2, 130, 300, 256, 256, options="softcap alibi"),
    _case(1, 4, 1, 1, 300, 128, 128, options="softcap sink alibi bottom_right", window=(9, 9)),
    _case(1, 2, 1, 150, 200, 64, 64, options="softcap causal"),
    _case(2, 4, 2, 130, 200, 64, 64, options="dropout causal"),
    _case(1, 2, 2, 100, 333, 128, 128, options="dropout bottom_right sink", window=(30, 5)),
    _case(1, 4, 2, 200, 129, 128, 128, options="dropout softcap bottom_right", window=(57, 3)),
    _case(1, 2, 2, 70, 100, 256, 256, options="dropout"),
    _case(1, 4, 1, 1, 300, 64, 64, options="dropout"),
    _case(2, 4, 2, 100, 152, 64, 64, options="bias bias_over_batch causal"),
    _case(2, 2, 2, 129, 72, 256, 256, options="bias bias_over_heads dropout"),
    _case(2, 2, 1, 100, 328, 64, 64, options="bias bias_over_queries bottom_right", window=(30, 5)),
    _case(2, 4, 2, 200, 128, 128, 128, options="bias softcap bottom_right", window=(57, 3)),
    _case(1, 4, 2, 100, 328, 128, 128, options="bias bottom_right dropout", window=(57, 3)),
    _case(1, 4, 1, 1, 304, 64, 64, options="bias"),
    # Here the kernel stores the bias's gradient itself.
    _case(2, 4, 2, 200, 152, 64, 64, options="bias causal"),
    _case(1, 2, 2, 130, 208, 128, 128, options="bias dropout alibi"),
    _case(2, 2, 1, 100, 104, 256, 256, options="bias sink", window=(40, 9)),
)
# Query heads have programs of their own where dq is added up in no order.
_SPREAD = (
    _case(2, 8, 2, 300, 333, 128, 128, options="causal alibi"),
    _case(1, 6, 1, 600, 200, 64, 64, options="bottom_right", window=(300, 40)),
    _case(1, 5, 1, 130, 70, 256, 256, dtype=torch.float16),
)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", ["hopper_ordered", "hopper_atomic"])
@pytest.mark.parametrize("case", [*_CASES, *_WITH_OPTIONS, *_SPREAD], ids=Case.id)
def test_it_is_right_however_late_asynchronous_work_is(
    case: Case, name: str, *, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the accuracy suite's verdict."""
    row = row_of(name, case, monkeypatch, late=late)
    assert row.status == "passed", row.reason


_SHORT = (
    _case(1, 4, 2, 300, 333, 64, 64, options="causal"),
    _case(1, 2, 1, 300, 333, 128, 128),
)
_GIVEN_BACK = "mbarrier.arrive(barriers.empty.index(stage), count=1)\n"
_WAIT = "dk, shares, s = warpgroup_mma_wait(0, deps=[dk, shares, s])\n"
_NEXT = "mbarrier.wait(barriers.q_full.index(stage_next), (i // STAGES) & 1)"
# Pieces of the kernel's text, and their replacements.
_DEFECTS = {
    "k and v are read before they are there": (
        "mbarrier.wait(barriers.kv_full, 0)",
        "fence_async_shared()",
    ),
    "q is read before it is there": (_NEXT, "fence_async_shared()"),
    "do is read before it is there": (
        "mbarrier.wait(barriers.do_full.index(stage), phase)",
        "fence_async_shared()",
    ),
    "q and do are overwritten while they are read": (
        "mbarrier.wait(barriers.empty.index(stage), ((i // STAGES) & 1) ^ 1)",
        "fence_async_shared()",
    ),
    "q is given back before its product is done": (
        f"                {_WAIT}",
        f"                {_GIVEN_BACK}                {_WAIT}",
    ),
    "dp is used before it is there": (
        "dp = warpgroup_mma_wait(1, deps=[dp])",
        "dp = warpgroup_mma_wait(2, deps=[dp])",
    ),
    "dq is used before it is there": (
        "warpgroup_mma_wait(1, deps=[dv, weights, dq])",
        "warpgroup_mma_wait(2, deps=[dv, weights, dq])",
    ),
    "the first block adds to what nothing has written": (
        "(block < starting) & ORDERED",
        "(block == 1) & ORDERED",
    ),
    "two sums lie in one place": ("(block % sizes.sums *", "(block * 0 *"),
    "a sum is left out": ("tl.range(1, sums,", "tl.range(2, sums,"),
    "no block is told that it is its turn": (
        "gl.where(lanes == 0, 1, 0)",
        "gl.where(lanes == 0, 0, 0)",
    ),
    "the groups don't hear that it is their turn": (
        "        mbarrier.arrive(barriers.my_turn, count=1)\n",
        "",
    ),
    "the mask is off by one": (
        "<= offs_m[None, :] + sizes.shift",
        "< offs_m[None, :] + sizes.shift",
    ),
    "tiles on the diagonal have no mask": ("before + KEYS - 1, 0), ROWS)", "before, 0), ROWS)"),
    "lse is of the tile before": ("walk.tiles + tile_next", "walk.tiles + tile"),
    "lse is of the wrong head": ("(head + member_next) * walk", "(head + member) * walk"),
    "heads of a group are left out": (
        "head = kv_head * sizes.group + member\n",
        "head = kv_head * sizes.group\n",
    ),
    "heads that walk together repeat the first": (
        "following - sizes.together, following)",
        "following - sizes.together, 0)",
    ),
    "delta has the other sign": (
        "tl.store(rows_ptr + ROWS, -delta * delta_scale)",
        "tl.store(rows_ptr + ROWS, delta * delta_scale)",
    ),
    "scale is left out of dk": ("k.store((dk * scale).to(DTYPE))", "k.store(dk.to(DTYPE))"),
}


# The same, of what options do.
_OPTION_DEFECTS = {
    "a window's far end is off by one": (">= (centre - sizes.left)", "> (centre - sizes.left)"),
    "a window's near end is off by one": ("<= (centre + sizes.right)", "< (centre + sizes.right)"),
    "a window's last tile is left out": ("gl.cdiv(gl.maximum(last, 0), ROWS)", "last // ROWS"),
    "a window's first tile is left out": ("before - sizes.right, 0) // ROWS", "before, 0) // ROWS"),
    "a block waits for ones that see nothing": (
        "gl.maximum(tile * ROWS + sizes.shift - sizes.left, 0) // KEYS",
        "0 * tile",
    ),
    "what nothing has written is added to": (
        'or MASK == "window" or (MASK == "causal"',
        'or (MASK == "causal"',
    ),
    "the keys after a query are as near as those before": (
        "slope * gl.abs(distance)",
        "slope * distance",
    ),
    "a slope is another head's": (
        "_slope(terms, kv_head * sizes.group + member_next)",
        "_slope(terms, kv_head * sizes.group)",
    ),
    "a softcap has no slope": ("p *= 1.0 - s * s", "p *= 1.0"),
    "all heads drop the same weights": (
        "dropout, head + member_next, tile_next",
        "dropout, 0 * head, tile_next",
    ),
    "dropped weights are of another tile": (
        "dropout, head + member_next, tile_next",
        "dropout, head + member_next, tile",
    ),
    "dropped weights are of a query before": (
        "dropout = Dropout(seed_low, seed_high, threshold, first_query,",
        "dropout = Dropout(seed_low, seed_high, threshold, 0 * first_query,",
    ),
    "dropped weights have a share in dv": (
        "halves = gl.where(kept, p, 0.0).to(DTYPE)",
        "halves = p.to(DTYPE)",
    ),
    "dropped weights have no delta": (
        "dp = gl.where(p >= 0.0, dp, minus_delta[None, :])",
        "dp = gl.where(p >= 0.0, dp, 0.0)",
    ),
    "a bias is another head's": ("head * bias_place.stride_h, first", "0 * head, first"),
    "a bias is another batch's": ("b * bias_place.stride_b, head", "0 * b, head"),
    "a bias's rows begin at the first query": ("first_query + tile * ROWS,", "tile * ROWS,"),
    "a bias's columns begin at the first key of a window": (
        "column = bias_place.first_key + start_n",
        "column = start_n",
    ),
    "a row for all queries is another head's": (
        "q_head_next = kv_head * sizes.group + member_next",
        "q_head_next = kv_head * sizes.group",
    ),
    "dv lacks the factor of kept weights": ("dv *= dropout.keep_scale", "dv *= 1.0"),
    "delta lacks the share of kept weights": ("-delta * delta_scale", "-delta"),
    "dbias is another head's": ("corner = [b, kv_head * sizes.group + member,", "corner = [b, 0,"),
    "dbias lacks the factor of kept weights": ("ds *= dropout.keep_scale", "ds *= 1.0"),
    "dbias is overwritten before it is stored": ("tma.store_wait(0)\n                mb", "mb"),
    "dbias of keys beyond the mask is kept": (
        "ds = gl.where(keep, ds, 0.0)\n                    of",
        "ds = gl.where(keep, ds, 1.0)\n                    of",
    ),
    "k and v lie between fours of keys": ("start_n -= lead", "start_n -= 0 * lead"),
}


# The same, of blocks that walk up.
_RISING = (_case(1, 2, 2, 200, 200, 256, 256, options="causal"),)
_RISING_DEFECTS = {
    "the first block up adds to what nothing has written": (
        "sizes, ROWS, KEYS) == 0",
        "sizes, ROWS, KEYS) == 1",
    ),
    "a block up waits for one that is not there": (
        "(last - block) // sizes.sums",
        "(last - block + 1) // sizes.sums",
    ),
    "the diagonal has no mask on the way up": ("(0 if rising else 1)", "1"),
    "a block up begins a tile late": ("walk.walked + step", "walk.walked + step + 1"),
}


# The option in whose cases a defect is looked for first, by a word of its name.
_OPTION_OF = {
    "window": "window", "slope": "alibi", "softcap": "softcap", "weights": "dropout",
    "fours": "dropout", "bias": "bias", "row": "bias",
}  # fmt: skip


def _likely_first(defect: str) -> list[Case]:
    options = {option for word, option in _OPTION_OF.items() if word in defect}
    likely = [case for case in reversed(_WITH_OPTIONS) if options & case.options]
    return [*likely, *(case for case in _WITH_OPTIONS if case not in likely)]


@pytest.mark.parametrize("defect", [*_DEFECTS, *_OPTION_DEFECTS, *_RISING_DEFECTS])
def test_defect_is_found(defect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the machine, or by the verdict, in one of the two orders of what is asynchronous."""
    texts = (_DEFECTS | _OPTION_DEFECTS | _RISING_DEFECTS)[defect]
    module = changed(hopper_backward_kernel, tmp_path / "changed.py", *texts)
    for name in ("rows_kernel", "gradients_kernel", "rounding_kernel"):
        monkeypatch.setattr(hopper_backward, name, getattr(module, name))
    cases: Sequence[Case] = _SHORT if defect in _DEFECTS else _likely_first(defect)
    if defect in _RISING_DEFECTS:
        cases = _RISING
    rows = (
        row_of("hopper_ordered", case, monkeypatch, late=late)
        for case, late in product(cases, (True, False))
    )
    assert any(row.status == "failed" for row in rows)


# The same, of what query heads of their own programs do.
_SPREAD_DEFECTS = {
    "k and v are of another head": ("kv_head // sizes.share, start_n", "kv_head, start_n"),
    "a head adds to another key head": (
        "(b * sizes.h_kv + kv_head) // sizes.share",
        "(b * sizes.h_kv + kv_head + 1) // sizes.share",
    ),
    "dv is added to dk": ("(own + there)", "(own + 0 * there)"),
}


@pytest.mark.parametrize("defect", _SPREAD_DEFECTS)
def test_defect_of_heads_of_their_own_is_found(
    defect: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the verdict on the kernel that adds in no order."""
    texts = _SPREAD_DEFECTS[defect]
    module = changed(hopper_backward_kernel, tmp_path / "changed.py", *texts)
    monkeypatch.setattr(hopper_backward, "gradients_kernel", module.gradients_kernel)
    rows = [row_of("hopper_atomic", case, monkeypatch, late=True) for case in _SPREAD]
    assert {row.status for row in rows} == {"failed"}


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_scale_that_is_not_positive_is_served(scale: float, device: torch.device) -> None:
    """As by `two_pass`, by way of `attention` and of the forward on Hopper."""
    case = _case(2, 3, 3, 64, 70, 64, 64, options="causal")
    inputs: Any = _BACKWARD.inputs(case, device)
    q, k, v = (inputs[name].requires_grad_() for name in "qkv")
    found = []
    for upcast in (False, True):
        given = [each.float() if upcast else each for each in (q, k, v)]
        out = attention(*given, causal=True, scale=scale)
        do = inputs["do"].to(out.dtype)
        found.append([out.bfloat16(), *torch.autograd.grad(out, (q, k, v), do)])
    for one, other in zip(*found, strict=True):
        assert _distance(one, other) < 0.01


def test_end_to_end_is_what_large_calls_get() -> None:
    """Where dispatch takes its forward."""
    op = OPS["attention_gradients"]
    for b, name in ((16, "hopper_end_to_end"), (1, "flash_two_pass")):
        case = attention_case(op.name, (b, 16, 16, 1024, 1024, 64, 64), torch.float16, "ci")
        assert choose(op, case, 90).name == name


def test_call_that_it_does_not_serve_is_refused_in_one_sentence() -> None:
    """Where it is called by name."""
    q = torch.zeros(1, 64, 1, 64)
    with pytest.raises(AttentionError, match="these kernels for Hopper serve float16"):
        hopper_backward.hopper_ordered(q, q, q, q, q, torch.zeros(1, 1, 64))


@pytest.mark.parametrize(
    ("heads", "rows", "at_once"),
    [(32, 4096, 4), (8, 4096, 4), (3, 4096, 3), (8, 16384, 1), (5, 1, 5)],
)
def test_heads_that_blocks_walk_up_fit_into_the_cache(heads: int, rows: int, at_once: int) -> None:
    """All of them where they are few, since a grid is numbered in 32 bits; one at least."""
    assert hopper_backward._heads_in_cache(heads, 256, rows) == at_once
    assert hopper_backward._rises(256, rows)
    assert not hopper_backward._rises(256, 16385)
    assert not hopper_backward._rises(128, rows)
