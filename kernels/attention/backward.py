"""ATTENTION_BACKWARD: `two_pass`, its tf32 twin, and `split_queries`, faster where keys are few.

`two_pass` makes dq (and delta on its way), then dk and dv; each sum has one owner and one order, so
it is bitwise repeatable. `split_queries` gives the owners of dk and dv help, in no order.
Workspace: delta, and fp32 accumulators where a head is too wide for registers, or shares meet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
import triton
from torch import Tensor

from kernels.attention.backward_kernels import key_gradients_kernel, query_gradients_kernel
from kernels.attention.delta import launch_delta
from kernels.attention.forward import WIDE_CHUNK
from kernels.attention.option_gradients import bias_gradient_kernel, sink_gradient_kernel
from kernels.attention.problem import (
    Given,
    Options,
    Problem,
    adjacent,
    is_wide,
    units,
    vector_elements,
)
from kernels.attention.served import (
    DECLARED,
    DECLARED_FP32,
    DECLARED_TF32,
    FEATURES,
    HALVES,
    SINCE,
    SINGLE,
    SM,
    elements,
    need_of_call,
    variants_of_case,
)
from kernels.attention.variants import WIDEST_RF, Pass, Tile, Variant, key_passes, names, pick
from kernels.attention.wide_kernels import key_gradients_wide_kernel, query_gradients_wide_kernel
from kernels.device import multiprocessors, on_device_of, sm_of
from kernels.registry import Domain, kernel
from oracles import ATTENTION_BACKWARD
from oracles.op import Case, Numerics

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]

_BIAS_TILE = Tile(64, 64, 4, 2)
_SINK_ROWS = 1024
WIDEST_UNORDERED = 128
_PROGRAMS_A_SM = 2
_FEWEST_TILES = 4  # query tiles that are worth a program


class _Backward:
    """The launches of one backward: the arguments that they share."""

    def __init__(
        self, problem: Problem, do: Tensor, out: Tensor, lse: Tensor, *, tf32: bool
    ) -> None:
        problem.check_gradients(do, out, lse)
        self.problem, self.do, self.out = problem, do, out
        # One set of strides serves lse and delta.
        self.lse = lse.contiguous()
        q, k, v = problem.q, problem.k, problem.v
        self.loaded = (do, q, k, v, out)
        self.need = need_of_call(problem, sm_of(q.device), self.loaded, tf32=tf32)
        self.sequences = problem.options.cu_seqlens_q, problem.options.cu_seqlens_k
        self.rows = self.lse.stride()[:2]

    def _vector(self, variant: Variant) -> int:
        return vector_elements(*self.loaded) if variant.aligned else 1

    def _flags(self, variant: Variant) -> dict[str, object]:
        problem, tile = self.problem, variant.tile
        shared: dict[str, object] = {
            "SOFTCAP": problem.options.softcap is not None,
            "DROPOUT": problem.dropout,
            "PRECISION": variant.precision,
            "ADJACENT": adjacent(*self.loaded),
            "VECTOR": self._vector(variant),
            "BLOCK_M": tile.queries,
            "BLOCK_N": tile.keys,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }
        if variant.accumulator == "gmem":
            return shared | {"BLOCK_C": WIDE_CHUNK}
        return shared | {
            "NATURAL": problem.natural,
            "EVEN_D": problem.even,
            "WIDE": is_wide(*self.loaded),
            "BLOCK_D": problem.block_d,
            "BLOCK_DV": problem.block_dv,
            "STAGES": tile.stages,
        }

    def _inputs(self, vector: int) -> tuple[int, ...]:
        """Strides of do, q, k, v and the bias, in the units that the variant counts in."""
        problem = self.problem
        tensors = (self.do, problem.q, problem.k, problem.v)
        counted = (stride for tensor in tensors for stride in units(tensor, vector))
        return *counted, *problem.bias_strides

    def _tail(self, vector: int) -> tuple[float, ...]:
        problem = self.problem
        heads = problem.d // vector, problem.d_v // vector
        return *problem.numbers, *heads, *problem.limits

    def query_gradients(self, variant: Variant) -> tuple[Tensor, Tensor]:
        """dq like q, and delta."""
        problem = self.problem
        q, k, v = problem.q, problem.k, problem.v
        blocks = triton.cdiv(problem.s_q, variant.tile.queries)
        grid = (blocks * problem.b * problem.h_q,)
        wide = variant.accumulator == "gmem"
        made = torch.zeros if wide else torch.empty
        dq = made(q.shape, dtype=torch.float32 if wide else q.dtype, device=q.device)
        delta = launch_delta(self.out, self.do) if wide else torch.empty_like(self.lse)
        if not grid[0]:
            return dq.to(q.dtype), delta
        slopes, vector = problem.options.alibi_slopes, self._vector(variant)
        strides, tail, flags = self._inputs(vector), self._tail(vector), self._flags(variant)
        with on_device_of(q):
            if wide:
                query_gradients_wide_kernel.of(vector)[grid](
                    self.do, q, k, v, problem.bias, slopes, self.lse, delta, *self.sequences, dq,
                    *strides, *units(dq, vector)[:3], *self.rows, problem.scale, *tail, **flags,
                )  # fmt: skip
                return dq.to(q.dtype), delta
            query_gradients_kernel.of(vector)[grid](
                self.do, q, k, v, self.out, problem.bias, slopes, self.lse, delta,
                *self.sequences, dq, *units(self.out, vector), *strides, *units(dq, vector)[:3],
                *self.rows, problem.kernel_scale, *tail, **flags,
            )  # fmt: skip
        return dq, delta

    def key_gradients(self, variant: Variant, delta: Tensor) -> tuple[Tensor, Tensor]:
        """dk like k and dv like v, from one walk over the queries."""
        k, v = self.problem.k, self.problem.v
        wide = variant.accumulator == "gmem"
        dtype = torch.float32 if wide else k.dtype
        make = torch.zeros if wide else torch.empty
        dk = make(k.shape, dtype=dtype, device=k.device)
        dv = make(v.shape, dtype=dtype, device=k.device)
        if wide:
            self._walk_wide(variant, delta, dk, dv)
        else:
            self._walk(variant, delta, dk, dv)
        return dk.to(k.dtype), dv.to(v.dtype)

    def one_key_gradient(self, variant: Variant, delta: Tensor) -> Tensor:
        """dk, or dv, in a walk of its own: for heads too wide to hold both accumulators."""
        like = self.problem.k if variant.kind == "dk" else self.problem.v
        made = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        self._walk(variant, delta, made, made)
        return made

    def split_key_gradients(self, variant: Variant, delta: Tensor) -> tuple[Tensor, Tensor]:
        """dk and dv, added up in fp32 in no order by as many programs as fill the device."""
        k, v, splits = self.problem.k, self.problem.v, self._splits(variant)
        if splits == (1, 1):
            return self.key_gradients(variant, delta)
        dk = torch.zeros(k.shape, dtype=torch.float32, device=k.device)
        dv = torch.zeros(v.shape, dtype=torch.float32, device=k.device)
        self._walk(variant, delta, dk, dv, splits=splits)
        return dk.to(k.dtype), dv.to(v.dtype)

    def _splits(self, variant: Variant) -> tuple[int, int]:
        """Over how many programs a group's heads, and then a head's query tiles, are spread."""
        problem, tile = self.problem, variant.tile
        owners = triton.cdiv(problem.s_kv, tile.keys) * problem.b * problem.h_kv
        wanted = triton.cdiv(_PROGRAMS_A_SM * multiprocessors(self.do.device), max(1, owners))
        members = min(problem.group, wanted)
        tiles = triton.cdiv(problem.s_q, tile.queries)
        return members, max(1, min(triton.cdiv(wanted, members), tiles // _FEWEST_TILES))

    def _walk(
        self,
        variant: Variant,
        delta: Tensor,
        dk: Tensor,
        dv: Tensor,
        *,
        splits: tuple[int, int] | None = None,
    ) -> None:
        problem, tile = self.problem, variant.tile
        members, tiles = splits or (1, 1)
        blocks = triton.cdiv(problem.s_kv, tile.keys)
        grid = (blocks * problem.b * problem.h_kv * members * tiles,)
        if not grid[0]:
            return
        vector = self._vector(variant)
        with on_device_of(dk):
            key_gradients_kernel.of(vector)[grid](
                self.do, problem.q, problem.k, problem.v, problem.bias,
                problem.options.alibi_slopes, self.lse, delta, *self.sequences, dk, dv,
                *self._inputs(vector), *units(dk, vector)[:3], *units(dv, vector)[:3], *self.rows,
                problem.kernel_scale, *self._tail(vector), members, tiles,
                DK=variant.kind != "dv", DV=variant.kind != "dk", SPLIT=splits is not None,
                **self._flags(variant),
            )  # fmt: skip

    def _walk_wide(self, variant: Variant, delta: Tensor, dk: Tensor, dv: Tensor) -> None:
        problem = self.problem
        grid = (triton.cdiv(problem.s_kv, variant.tile.keys) * problem.b * problem.h_kv,)
        if not grid[0]:
            return
        vector = self._vector(variant)
        with on_device_of(dk):
            key_gradients_wide_kernel.of(vector)[grid](
                self.do, problem.q, problem.k, problem.v, problem.bias,
                problem.options.alibi_slopes, self.lse, delta, *self.sequences, dk, dv,
                *self._inputs(vector), *units(dk, vector)[:3], *units(dv, vector)[:3], *self.rows,
                problem.scale, *self._tail(vector), **self._flags(variant),
            )  # fmt: skip

    def bias_gradient(self, delta: Tensor, *, precision: str) -> Tensor | None:
        """dbias, packed, in the shape that the bias was given in."""
        problem = self.problem
        bias = problem.options.bias
        if bias is None or problem.bias is None:
            return None
        dbias = torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)
        over_queries = bias.shape[2] == 1 != problem.s_q
        tile = _BIAS_TILE
        blocks_m = 1 if over_queries else triton.cdiv(problem.s_q, tile.queries)
        owners = bias.shape[0] * bias.shape[1]
        grid = (triton.cdiv(problem.s_kv, tile.keys) * blocks_m * owners,)
        if not grid[0]:
            return dbias
        q, k, v = problem.q, problem.k, problem.v
        vector = vector_elements(*self.loaded)
        vector = vector if vector * q.element_size() == 16 else 1
        with on_device_of(q):
            bias_gradient_kernel.of(vector)[grid](
                self.do, q, k, v, problem.bias, problem.options.alibi_slopes, self.lse, delta,
                dbias, *self._inputs(vector), *dbias.stride()[:3], *self.rows, problem.scale,
                *self._tail(vector), problem.b // bias.shape[0], problem.h_q // bias.shape[1],
                OVER_QUERIES=over_queries, SOFTCAP=problem.options.softcap is not None,
                DROPOUT=problem.dropout, PRECISION=precision, ADJACENT=adjacent(*self.loaded),
                VECTOR=vector, BLOCK_M=tile.queries, BLOCK_N=tile.keys, BLOCK_C=WIDE_CHUNK,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
        return dbias

    def sink_gradient(self, delta: Tensor) -> Tensor | None:
        """dsink [h_q] in fp32."""
        sink = self.problem.options.sink
        if sink is None:
            return None
        dsink = torch.empty_like(sink)
        with on_device_of(sink):
            sink_gradient_kernel[(self.problem.h_q,)](
                sink, self.lse, delta, dsink, *self.rows, self.lse.shape[0], self.lse.shape[2],
                BLOCK_M=_SINK_ROWS,
            )  # fmt: skip
        return dsink


def backward(
    do: Tensor, problem: Problem, out: Tensor, lse: Tensor, *, tf32: bool = False
) -> Gradients:
    """dq, dk, dv, dbias and dsink, bitwise repeatable, by the first variants that fit."""
    launches = _Backward(problem, do, out, lse, tf32=tf32)
    dq, delta = launches.query_gradients(pick("dq", launches.need))
    kinds = key_passes(launches.need)
    keys = pick(kinds[0], launches.need)
    if len(kinds) == 1:
        dk, dv = launches.key_gradients(keys, delta)
    else:
        dk = launches.one_key_gradient(keys, delta)
        dv = launches.one_key_gradient(pick(kinds[1], launches.need), delta)
    dbias = launches.bias_gradient(delta, precision=keys.precision)
    return dq, dk, dv, dbias, launches.sink_gradient(delta)


def unordered_backward(do: Tensor, problem: Problem, out: Tensor, lse: Tensor) -> Gradients:
    """As `backward`, dk and dv added up in no order: faster where owners of keys are few."""
    launches = _Backward(problem, do, out, lse, tf32=False)
    dq, delta = launches.query_gradients(pick("dq", launches.need))
    keys = pick("dkdv", launches.need)
    dk, dv = launches.split_key_gradients(keys, delta)
    dbias = launches.bias_gradient(delta, precision=keys.precision)
    return dq, dk, dv, dbias, launches.sink_gradient(delta)


def _names(dtypes: tuple[str, ...], sm: int) -> tuple[str, ...]:
    """The names of all variants of a backward."""
    kinds: tuple[Pass, ...] = ("dq", "dkdv", "dk", "dv")
    return tuple(name for kind in kinds for name in names(kind, dtypes, sm))


def _workspace(case: Case) -> int:
    """delta and a packed lse; for wide heads fp32 accumulators of dq, dk and dv."""
    rows = 2 * 4 * (elements(case, "dq") // case.size("d"))
    if max(case.size("d"), case.size("d_v")) <= WIDEST_RF:
        return rows
    return rows + 4 * sum(elements(case, name) for name in ("dq", "dk", "dv"))


def _unordered(numerics: Numerics) -> Numerics:
    """Shares meet in no order, and how many there are follows from the batch and the SMs."""
    return replace(
        numerics, bitwise_repeatable=False, batch_invariant=False, device_independent=False
    )


def _split_workspace(case: Case) -> int:
    """delta, a packed lse, and dk and dv in fp32."""
    rows = 2 * 4 * (elements(case, "dq") // case.size("d"))
    return rows + 4 * (elements(case, "dk") + elements(case, "dv"))


@kernel(
    ATTENTION_BACKWARD,
    Domain(dtypes=HALVES, features=FEATURES, sm=SM, since=SINCE),
    numerics=DECLARED,
    priority=20,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm),
    variants=lambda sm: _names(("f16", "bf16"), sm),
    workspace=_workspace,
)
@kernel(
    ATTENTION_BACKWARD,
    Domain(dtypes=SINGLE, features=FEATURES, sm=SM),
    numerics=DECLARED_FP32,
    priority=20,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm),
    variants=lambda sm: _names(("f32",), sm),
    workspace=_workspace,
    name="two_pass_fp32",
)
def two_pass(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Unpack[Given],
) -> Gradients:
    """dq, then dk and dv, each summed by one owner in one order."""
    return backward(do, Problem.of(q, k, v, Options(**given)), out, lse)


@kernel(
    ATTENTION_BACKWARD,
    Domain(dtypes=(torch.float32,), features=FEATURES, sm=(80, SM[1])),
    numerics=DECLARED_TF32,
    priority=15,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm, tf32=True),
    variants=lambda sm: _names(("tf32",), sm),
    workspace=_workspace,
)
def two_pass_tf32(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Unpack[Given],
) -> Gradients:
    """As `two_pass`, for fp32 on tensor cores: operands of products lose all but 10 bits."""
    return backward(do, Problem.of(q, k, v, Options(**given)), out, lse, tf32=True)


@kernel(
    ATTENTION_BACKWARD,
    Domain(
        dtypes=HALVES,
        features=FEATURES,
        sm=SM,
        since=SINCE,
        sizes={"d": (1, WIDEST_UNORDERED), "d_v": (1, WIDEST_UNORDERED)},
    ),
    numerics=_unordered(DECLARED),
    priority=10,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm),
    workspace=_split_workspace,
)
@kernel(
    ATTENTION_BACKWARD,
    Domain(
        dtypes=SINGLE,
        features=FEATURES,
        sm=SM,
        sizes={"d": (1, WIDEST_UNORDERED), "d_v": (1, WIDEST_UNORDERED)},
    ),
    numerics=_unordered(DECLARED_FP32),
    priority=10,
    variant=lambda case, sm: variants_of_case("dq", "dkdv", case=case, sm=sm),
    workspace=_split_workspace,
    name="split_queries_fp32",
)
def split_queries(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Unpack[Given],
) -> Gradients:
    """As `two_pass`, the walk over queries spread over programs that add to dk and dv atomically.

    Faster where keys are short or many heads share them, and not bitwise repeatable.
    """
    return unordered_backward(do, Problem.of(q, k, v, Options(**given)), out, lse)
