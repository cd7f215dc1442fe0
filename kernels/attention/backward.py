"""ATTENTION_BACKWARD: `two_pass`, its tf32 twin, and `split_queries`, faster with few keys.

`two_pass` computes dq (and delta in passing), then dk and dv; each sum has one owner and one order,
so it is bitwise repeatable. `split_queries` spreads the sums of dk and dv over several programs, in
no order. Workspace: delta, and fp32 accumulators if a head is too wide for registers or several
programs share a sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.attention.backward_kernels import (
    key_gradients_kernel,
    query_gradients_kernel,
)
from kernel_workbench.kernels.attention.delta import launch_delta
from kernel_workbench.kernels.attention.launch import Launcher
from kernel_workbench.kernels.attention.option_gradients import (
    bias_gradient_kernel,
    sink_gradient_kernel,
)
from kernel_workbench.kernels.attention.problem import AttentionCall
from kernel_workbench.kernels.attention.registration import (
    configurations_of_case,
    elements,
    gathered_elements,
    ours,
    variants_of_case,
)
from kernel_workbench.kernels.attention.tile_model import KernelTile, Pass
from kernel_workbench.kernels.attention.variants import Variant, key_passes, names, pick
from kernel_workbench.kernels.attention.wide_kernels import (
    key_gradients_wide_kernel,
    query_gradients_wide_kernel,
)
from kernel_workbench.kernels.device import multiprocessors, on_device_of
from kernel_workbench.kernels.integers import cdiv
from kernel_workbench.oracles import ATTENTION_BACKWARD
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import Case

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]

_BIAS_TILE = KernelTile(64, 64, 4, 2)
_SINK_ROWS = 1024
WIDEST_UNORDERED = 128
_PROGRAMS_A_SM = 2
_FEWEST_TILES = 4  # the fewest query tiles of a program


class _Backward:
    """The launches of one backward."""

    def __init__(
        self, problem: AttentionCall, do: Tensor, out: Tensor, lse: Tensor, *, tf32: bool
    ) -> None:
        problem.check_gradients(do, out, lse)
        self.problem, self.do, self.out = problem, do, out
        self.launcher = Launcher(problem, tf32=tf32, do=do, out=out)
        self.need = self.launcher.need
        # One set of strides serves lse and delta.
        self.lse = lse.contiguous()
        stride_lb, stride_lh, _ = self.lse.stride()
        self.rows = {"lse_ptr": self.lse, "stride_lb": stride_lb, "stride_lh": stride_lh}

    def query_gradients(self, variant: Variant) -> tuple[Tensor, Tensor]:
        """Compute dq like q, and delta."""
        problem, q = self.problem, self.problem.q
        programs = cdiv(problem.s_q, variant.tile.queries) * problem.b * problem.h_q
        wide = variant.accumulator == "gmem"
        dq = _gradient_memory(q, wide=wide)
        delta = launch_delta(self.out, self.do) if wide else torch.empty_like(self.lse)
        rows = {**self.rows, "delta_ptr": delta}
        launch = self.launcher.launch
        if wide:
            wide_kernel = query_gradients_wide_kernel
            launch(wide_kernel, programs, variant, {"dq": dq}, scale=problem.scale, **rows)
        else:
            launch(query_gradients_kernel, programs, variant, {"dq": dq}, **rows)
        return dq.to(q.dtype), delta

    def key_gradients(self, variant: Variant, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Compute dk like k and dv like v, from one walk over the queries."""
        problem, k, v = self.problem, self.problem.k, self.problem.v
        wide = variant.accumulator == "gmem"
        dk, dv = _gradient_memory(k, wide=wide), _gradient_memory(v, wide=wide)
        if wide:
            programs = cdiv(problem.s_kv, variant.tile.keys) * problem.b * problem.h_kv
            self.launcher.launch(
                key_gradients_wide_kernel, programs, variant, {"dk": dk, "dv": dv},
                scale=problem.scale, delta_ptr=delta, **self.rows,
            )  # fmt: skip
        else:
            self._walk(variant, delta, dk, dv)
        return dk.to(k.dtype), dv.to(v.dtype)

    def one_key_gradient(self, variant: Variant, delta: Tensor) -> Tensor:
        """Compute dk, or dv, in its own walk: for heads too wide for both accumulators."""
        gradient = _gradient_memory(self.problem.k if variant.kind == "dk" else self.problem.v)
        self._walk(variant, delta, gradient, gradient)
        return gradient

    def split_key_gradients(self, variant: Variant, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Add up dk and dv in fp32 in no order, by as many programs as fill the device."""
        k, v, splits = self.problem.k, self.problem.v, self._splits(variant)
        if splits == (1, 1):
            return self.key_gradients(variant, delta)
        dk, dv = _gradient_memory(k, wide=True), _gradient_memory(v, wide=True)
        self._walk(variant, delta, dk, dv, splits=splits)
        return dk.to(k.dtype), dv.to(v.dtype)

    def _splits(self, variant: Variant) -> tuple[int, int]:
        """Return the numbers of programs that share a group's heads, and a head's query tiles."""
        problem, tile = self.problem, variant.tile
        owners = cdiv(problem.s_kv, tile.keys) * problem.b * problem.h_kv
        wanted = cdiv(_PROGRAMS_A_SM * multiprocessors(self.do.device), max(1, owners))
        members = min(problem.group, wanted)
        tiles = cdiv(problem.s_q, tile.queries)
        return members, max(1, min(cdiv(wanted, members), tiles // _FEWEST_TILES))

    def _walk(
        self,
        variant: Variant,
        delta: Tensor,
        dk: Tensor,
        dv: Tensor,
        *,
        splits: tuple[int, int] | None = None,
    ) -> None:
        problem = self.problem
        members, tiles = splits or (1, 1)
        blocks = cdiv(problem.s_kv, variant.tile.keys)
        programs = blocks * problem.b * problem.h_kv * members * tiles
        self.launcher.launch(
            key_gradients_kernel, programs, variant, {"dk": dk, "dv": dv}, delta_ptr=delta,
            member_splits=members, tile_splits=tiles, DK=variant.kind != "dv",
            DV=variant.kind != "dk", SPLIT=splits is not None, **self.rows,
        )  # fmt: skip

    def bias_gradient(self, keys: Variant, delta: Tensor) -> Tensor | None:
        """Compute dbias, packed, in the shape of the given bias; products as in `keys`."""
        problem = self.problem
        bias = problem.options.bias
        if bias is None:
            return None
        dbias = torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)
        over_queries = bias.shape[2] == 1 != problem.s_q
        variant = replace(keys, tile=_BIAS_TILE)
        blocks_m = 1 if over_queries else cdiv(problem.s_q, _BIAS_TILE.queries)
        owners = bias.shape[0] * bias.shape[1]
        stride_dbb, stride_dbh, stride_dbm, _ = dbias.stride()
        self.launcher.launch(
            bias_gradient_kernel, cdiv(problem.s_kv, _BIAS_TILE.keys) * blocks_m * owners,
            variant, scale=problem.scale, dbias_ptr=dbias, stride_dbb=stride_dbb,
            stride_dbh=stride_dbh, stride_dbm=stride_dbm, delta_ptr=delta,
            b=problem.b // max(1, bias.shape[0]), members=problem.h_q // max(1, bias.shape[1]),
            OVER_QUERIES=over_queries, **self.rows,
        )  # fmt: skip
        return dbias


def bias_gradient(
    do: Tensor, problem: AttentionCall, out: Tensor, lse: Tensor, delta: Tensor
) -> Tensor | None:
    """Return dbias, packed, in the shape of the given bias; None without a bias."""
    launches = _Backward(problem, do, out, lse, tf32=False)
    keys = pick(key_passes(launches.need)[0], launches.need)
    return launches.bias_gradient(keys, delta)


def sink_gradient(sink: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """Return dsink [h_q] in fp32; lse and delta [b, h_q, s_q], packed."""
    dsink = torch.empty_like(sink)
    b, h_q, s_q = lse.shape
    stride_lb, stride_lh, _ = lse.stride()
    with on_device_of(sink):
        sink_gradient_kernel[(h_q,)](
            sink_ptr=sink, lse_ptr=lse, delta_ptr=delta, dsink_ptr=dsink, stride_lb=stride_lb,
            stride_lh=stride_lh, b=b, s_q=s_q, BLOCK_M=_SINK_ROWS,
        )  # fmt: skip
    return dsink


def _gradient_memory(like: Tensor, *, wide: bool = False) -> Tensor:
    """Return packed memory for a gradient; wide: fp32 zeros, to which programs add."""
    if wide:
        return torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def backward(
    do: Tensor,
    problem: AttentionCall,
    out: Tensor,
    lse: Tensor,
    *,
    tf32: bool = False,
    ordered: bool = True,
) -> Gradients:
    """Return dq, dk, dv, dbias and dsink, by the first variants that fit.

    Args:
        do: gradient of out, [b, s_q, h_q, d_v].
        problem: the checked arguments of the forward.
        out: [b, s_q, h_q, d_v].
        lse: [b, h_q, s_q] in fp32.
        ordered: True: bitwise repeatable; False: dk and dv are added in no order, which is faster
        if few programs own keys.
        tf32: products take tf32 operands.
    """
    launches = _Backward(problem, do, out, lse, tf32=tf32)
    need = launches.need
    dq, delta = launches.query_gradients(pick("dq", need))
    kinds: tuple[Pass, ...] = key_passes(need) if ordered else ("dkdv",)
    keys = pick(kinds[0], need)
    if not ordered:
        dk, dv = launches.split_key_gradients(keys, delta)
    elif len(kinds) == 1:
        dk, dv = launches.key_gradients(keys, delta)
    else:
        dk = launches.one_key_gradient(keys, delta)
        dv = launches.one_key_gradient(pick(kinds[1], need), delta)
    sink = problem.options.sink
    dsink = None if sink is None else sink_gradient(sink, launches.lse, delta)
    return dq, dk, dv, launches.bias_gradient(keys, delta), dsink


def _names(dtypes: tuple[str, ...], sm: int) -> tuple[str, ...]:
    """Return the names of all variants of a backward."""
    kinds: tuple[Pass, ...] = ("dq", "dkdv", "dk", "dv")
    return tuple(name for kind in kinds for name in names(kind, dtypes, sm))


_WAYS: tuple[tuple[Pass, ...], ...] = (("dq", "dkdv"), ("dq", "dk", "dv"))


def _workspace(case: Case) -> int:
    """Return the bytes of delta and a packed lse; for wide heads also fp32 accumulators."""
    return 2 * 4 * (elements(case, "dq") // case.size("d")) + 4 * gathered_elements(case)


def _split_workspace(case: Case) -> int:
    """Return the bytes of delta, a packed lse, and dk and dv in fp32."""
    rows = 2 * 4 * (elements(case, "dq") // case.size("d"))
    return rows + 4 * (elements(case, "dk") + elements(case, "dv"))


@ours(
    ATTENTION_BACKWARD,
    priority=20,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm),
    variants=_names,
    configurations=lambda case, sm: configurations_of_case(*_WAYS, case=case, sm=sm),
    workspace=_workspace,
)
def two_pass(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Any,
) -> Gradients:
    """Compute dq, then dk and dv, each summed by one owner in one order."""
    return backward(do, AttentionCall.of(q, k, v, Options(**given)), out, lse)


@ours(
    ATTENTION_BACKWARD,
    priority=15,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm, tf32=True),
    variants=_names,
    configurations=lambda case, sm: configurations_of_case(*_WAYS, case=case, sm=sm, tf32=True),
    workspace=_workspace,
    tf32=True,
)
def two_pass_tf32(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Any,
) -> Gradients:
    """Compute as `two_pass`, for fp32 on tensor cores: operands of products keep 10 bits."""
    return backward(do, AttentionCall.of(q, k, v, Options(**given)), out, lse, tf32=True)


@ours(
    ATTENTION_BACKWARD,
    priority=10,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm),
    configurations=lambda case, sm: configurations_of_case(_WAYS[0], case=case, sm=sm),
    workspace=_split_workspace,
    sizes={"d": (1, WIDEST_UNORDERED), "d_v": (1, WIDEST_UNORDERED)},
    ordered=False,
)
def split_queries(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Any,
) -> Gradients:
    """Compute as `two_pass`, with programs that add to dk and dv atomically.

    Several programs share the walk over queries. The kernel is faster if keys are few or many heads
    share them, and isn't bitwise repeatable.
    """
    return backward(do, AttentionCall.of(q, k, v, Options(**given)), out, lse, ordered=False)
