"""ATTENTION_BACKWARD on Hopper: `hopper_ordered`, and `hopper_atomic` that adds dq in no order.

`hopper_end_to_end` is ATTENTION_GRADIENTS: `hopper`, then `hopper_ordered`.

They serve what `hopper` serves; `two_pass` and `split_queries` serve the rest. The gradient of a
bias that queries, heads or batches share is `two_pass`'s. In `hopper_ordered` each sum has one
order, so it is bitwise repeatable, and a row's bits don't depend on other batches or heads.
Programs wait for programs of lower numbers, which a GPU starts first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels import launch_plan
from kernel_workbench.kernels.attention import hopper
from kernel_workbench.kernels.attention.backward import Gradients, bias_gradient, sink_gradient
from kernel_workbench.kernels.attention.delta import launch_delta
from kernel_workbench.kernels.attention.hopper import (
    DTYPES,
    FEATURES,
    NOT_SERVED,
    SM,
    WHOLE,
    Limits,
    bias_of,
    descriptor,
    is_served,
    lacks_alignment,
    lead_of,
    scale_and_cap,
    terms_of,
)
from kernel_workbench.kernels.attention.hopper_backward_kernel import (
    gradients_kernel,
    rounding_kernel,
    rows_kernel,
)
from kernel_workbench.kernels.attention.problem import AttentionCall, AttentionError
from kernel_workbench.kernels.device import FIXED_MULTIPROCESSORS, multiprocessors, on_device_of
from kernel_workbench.kernels.integers import cdiv
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_GRADIENTS
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import Case, Numerics

_WARPS = 8  # that compute


@dataclass(frozen=True, slots=True)
class _BackwardCut:
    """Queries of a tile, keys of a block, and tiles of q and do in shared memory."""

    rows: int
    keys: int
    stages: int


# By head, as they were chosen on an H200 (docs/measured.md).
_CUTS = {64: _BackwardCut(128, 128, 2), 128: _BackwardCut(64, 128, 3), 256: _BackwardCut(64, 64, 2)}
# Under a softcap or dropout registers wouldn't hold 128 queries' terms of gradients.
_OF_SMALL_TILES = {64: _BackwardCut(64, 128, 3)}
_HEADS = tuple(_CUTS)
_FEW_TILES = 8  # of queries
_IN_CACHE = 2**25  # bytes, of an H100's 50 MB of L2


def _cut_of(d: int, *, small: bool) -> _BackwardCut:
    return _OF_SMALL_TILES.get(d, _CUTS[d]) if small else _CUTS[d]


def _sums(tiles: int, blocks: int) -> int:
    """Return the number of ordered sums of dq, to which blocks of keys add in turn.

    Blocks add to a sum one after the other, so with few tiles of queries one sum would keep few
    programs busy. The number depends only on a head's sizes, because bits depend on it.
    """
    return min(blocks, cdiv(_FEW_TILES, max(tiles, 1)))


def _is_quick(d: int, group: int, rows: int, keys: int, heads: int) -> bool:
    """Return True if programs, one for each block of keys of a head, fill half of an H200.

    Return True also if each program walks over few tiles of queries. group: the query heads of a
    program.
    """
    cut = _CUTS[d]
    programs: int = cdiv(keys, cut.keys) * heads
    return 2 * programs >= FIXED_MULTIPROCESSORS or cdiv(rows, cut.rows) * group <= _FEW_TILES


def _spreads(d: int, group: int, rows: int, keys: int, heads: int) -> bool:
    """Return True if the query heads of a key head have programs of their own, without order."""
    return group > 1 < rows and not _is_quick(d, group, rows, keys, heads)


def serves(problem: AttentionCall, do: Tensor, *, ordered: bool) -> bool:
    """Return True if a kernel serves a call and dispatch takes it."""
    if not is_served(problem, _HEADS, do):
        return False
    heads = problem.b * problem.h_q
    return ordered or _is_quick(problem.d, 1, problem.s_q, problem.s_kv, heads)


def _at_once(
    heads: int, working: int, cut: _BackwardCut, device: torch.device, *, waits: bool
) -> int:
    """Return the number of key heads in progress at once: as many as keep all SMs busy.

    working: programs of a head that work at a time. Under a causal mask each block is shorter than
    the previous one; if a block waits for the previous one, more heads hide the wait.
    """
    wanted = multiprocessors(device) * (4 * cut.rows // cut.keys if waits else 1)
    return min(heads, max(1, wanted // working))


def _bytes_of_head(d: int, rows: int) -> int:
    """Return the bytes of a query head's q, do and sum of dq, which all its blocks walk over."""
    return rows * d * (2 + 2 + 4)


def _rises(d: int, rows: int) -> bool:
    """Return True if blocks of keys under a causal mask walk up from the diagonal, in order.

    Then a block never waits, because the one before it, of later keys, is ahead. But they are far
    apart, so a head has to stay in a cache. In narrow heads the wait is short.
    """
    return d > 128 and _bytes_of_head(d, rows) <= _IN_CACHE


def _heads_in_cache(heads: int, d: int, rows: int) -> int:
    """Return the number of heads in progress at once where blocks walk up."""
    return min(heads, max(1, _IN_CACHE // _bytes_of_head(d, rows)))


def _with_heads_as_rows(tensor: Tensor, group: int) -> Tensor:
    """Return [b, 1, h_q, d] as [b, group, h_kv, d]: a key head's query heads become queries."""
    b, _, h_q, d = tensor.shape
    stride_b, _, stride_h, stride_d = tensor.stride()
    return tensor.as_strided(
        (b, group, h_q // group, d), (stride_b, stride_h, group * stride_h, stride_d)
    )


def _seen(problem: AttentionCall, limits: Limits) -> tuple[int, int]:
    """Return the first query that may attend to some key, and the end of such queries."""
    last_key = limits.end - limits.first - 1
    end = min(problem.s_q, max(last_key - limits.shift + limits.left + 1, 0))
    return min(max(-limits.shift - limits.right, 0), end), end


def _owns_dbias(problem: AttentionCall, seen: tuple[int, int], limits: Limits) -> bool:
    """Return True if each element of dbias is one element of dS, which the kernel may store.

    Under a softcap the kernel has dS times the softcap's slope instead.
    """
    bias, own = problem.options.bias, (problem.b, problem.h_q, problem.s_q, problem.s_kv)
    by_tile = "bias" in terms_of(problem, forward=False).split()
    if bias is None or tuple(bias.shape) != own or not by_tile:
        return False
    whole = seen == (0, problem.s_q) and limits.first == 0
    packed = problem.s_kv * bias.element_size() % WHOLE == 0  # by TMA
    return whole and packed and problem.options.softcap is None


def _between(tensor: Tensor, first: int, end: int) -> Tensor:
    """Return [b, first:end, ...] of a tensor; the tensor itself if that is all (saves 2 us)."""
    return tensor if (first, end) == (0, tensor.shape[1]) else tensor[:, first:end]


def hopper_gradients(
    do: Tensor,
    problem: AttentionCall,
    out: Tensor,
    lse: Tensor,
    *,
    ordered: bool,
    key: launch_plan.Key | None = None,
) -> Gradients:
    """Compute packed dq, dk, dv, dbias and dsink, for a served call.

    ordered: repeatable; key: the key of the launches' plan.
    """
    problem.check_gradients(do, out, lse)
    q, k, v, options = problem.q, problem.k, problem.v, problem.options
    inputs = do, q, k, v, out, lse
    b, s_q, h_q, s_kv, h_kv, d = (
        problem.b, problem.s_q, problem.h_q, problem.s_kv, problem.h_kv, problem.d,
    )  # fmt: skip
    dq = q.new_empty(b, s_q, h_q, d)
    dk, dv = k.new_empty(b, s_kv, h_kv, d), v.new_empty(b, s_kv, h_kv, d)
    # Keys that no query may attend to, and queries that may attend to none, are never read.
    limits = Limits.of(problem)
    keys = limits.end - limits.first
    first, end = _seen(problem, limits)
    terms = terms_of(problem, forward=False)
    dsink, dbias, boxed_dbias = None, None, None
    if options.bias is not None and _owns_dbias(problem, (first, end), limits):
        # Tiles without a pair are never written.
        dbias = torch.empty_like(options.bias, memory_format=torch.contiguous_format)
        if limits.mask != "none":
            dbias.zero_()
        terms = f"{terms} dbias"
    if options.sink is not None or (options.bias is not None and dbias is None):
        delta = launch_delta(out, do)
        if options.sink is not None:
            dsink = sink_gradient(options.sink, lse.contiguous(), delta)
        if dbias is None:
            dbias = bias_gradient(do, problem, out, lse, delta)
    if not (q.numel() and keys and end > first):
        return dq.zero_(), dk.zero_(), dv.zero_(), dbias, dsink
    if (first, end) != (0, s_q):
        dq[:, :first].zero_()
        dq[:, end:].zero_()
        lse = lse[:, :, first:end]
    if limits.first:
        dk[:, : limits.first].zero_()
        dv[:, : limits.first].zero_()
    q, do, out, rounded = (_between(tensor, first, end) for tensor in (q, do, out, dq))
    k, v = (_between(tensor, limits.first, s_kv) for tensor in (k, v))
    dropped = problem.threshold > 0
    cut = _cut_of(d, small=options.softcap is not None or options.bias is not None or dropped)
    if dbias is not None and "dbias" in terms:
        boxed_dbias = descriptor(dbias.transpose(1, 2), cut.rows, columns=cut.keys)
    # TMA reads zeros before a tensor's first key, but can't store there.
    lead = lead_of(problem, limits)
    dk_seen, dv_seen = (_between(tensor, limits.first - lead, s_kv) for tensor in (dk, dv))
    rows, group, mask = end - first, problem.group, limits.mask
    blocks = cdiv(k.shape[1] + lead, cut.keys)
    # A slope is a head's, and so are a bias and the dropped weights.
    alike = options.alibi_slopes is None and options.bias is None and not dropped
    if s_q == 1 and group > 1 and alike:
        q, do, out, rounded = (
            _with_heads_as_rows(tensor, group) for tensor in (q, do, out, rounded)
        )
        lse = _with_heads_as_rows(lse.transpose(1, 2)[..., None], group)[..., 0].transpose(1, 2)
        # It sees all the keys that are left.
        rows, group, h_q, mask = group, 1, h_kv, "none"
    share = 1
    key_sums = None
    if not ordered and not lead and _spreads(d, group, rows, s_kv, b * h_kv):
        share, group, h_kv = group, 1, h_q
        size = 2 * blocks * b * problem.h_kv * cut.keys * d
        key_sums = torch.zeros(size, dtype=torch.float32, device=q.device)
    tiles = cdiv(rows, cut.rows)
    query_tiles = b * h_q * tiles
    sums = _sums(cdiv(s_q, cut.rows), cdiv(keys, cut.keys)) if ordered else 1
    total = torch.empty(sums * query_tiles * cut.rows * d, dtype=torch.float32, device=q.device)
    of_rows = torch.empty(query_tiles * cut.rows * 2, dtype=torch.float32, device=q.device)
    turns = torch.empty(sums * query_tiles, dtype=torch.int32, device=q.device) if ordered else None
    # In order a block is a tile of queries behind the one before.
    working = min(blocks, sums * tiles * group) if ordered else blocks
    in_turn = ordered and mask == "causal"
    rising = in_turn and group == 1 and _rises(d, rows)
    together = group if in_turn else 1
    if rising:
        at_once = _heads_in_cache(b * h_kv, d, rows)
    else:
        at_once = _at_once(b * h_kv, working, cut, q.device, waits=ordered and mask != "none")
    scale, cap = scale_and_cap(problem)
    keep_scale = problem.keep_scale if dropped else 1.0
    of_sums = problem.scale * keep_scale
    slopes = lse if options.alibi_slopes is None else options.alibi_slopes
    recorded = launch_plan.Recorded(scratch=[total, of_rows, *([] if turns is None else [turns])])

    def launch(
        kernel: Any, programs: int, *arguments: object, num_warps: int, **own: object
    ) -> None:
        """Launch; own: the kernel's constants, in its order."""
        compiled = kernel[(programs,)](*arguments, **own, num_warps=num_warps)
        passed = *arguments, *own.values()
        recorded.launches.append(launch_plan.Launched(kernel, compiled, (programs,), passed))

    with on_device_of(q):
        launch(
            rows_kernel, query_tiles,
            out, do, lse, of_rows, total, turns, sums, tiles, h_q, rows, 1 / keep_scale,
            *out.stride(), *do.stride(), *lse.stride(), ROWS=cut.rows, D=d, MASK=mask,
            ORDERED=ordered, num_warps=4,
        )  # fmt: skip
        launch(
            gradients_kernel, blocks * b * h_kv,
            descriptor(q, cut.rows), descriptor(do, cut.rows), descriptor(k, cut.keys, keys),
            descriptor(v, cut.keys, keys), descriptor(dk_seen, cut.keys),
            descriptor(dv_seen, cut.keys), of_rows, total, total if key_sums is None else key_sums,
            turns, slopes, blocks, b * h_kv, at_once, sums, h_kv, group, together, share, rows,
            keys + lead, limits.shift + lead + first, limits.left, limits.right, of_sums, scale,
            cap, first, limits.first - lead, boxed_dbias,
            *bias_of(problem, cut.rows, cut.keys, end, lse), lead, *problem.random_words,
            keep_scale, MASK=mask, TERMS=terms, ORDERED=ordered,
            SPREAD=key_sums is not None, STAGES=cut.stages, RISING=rising, num_warps=_WARPS,
        )  # fmt: skip
        launch(
            rounding_kernel, query_tiles,
            total, rounded, sums, tiles, h_q, rows, of_sums, *rounded.stride()[:3],
            ROWS=cut.rows, D=d, num_warps=max(4, d // 32),
        )  # fmt: skip
        if key_sums is not None:
            h_kv = problem.h_kv
            summed = zip(key_sums.chunk(2), (dk_seen, dv_seen), (of_sums, keep_scale), strict=True)
            for of_keys, made_of, factor in summed:
                rounding_kernel[(blocks * b * h_kv,)](
                    of_keys, made_of, 1, blocks, h_kv, made_of.shape[1], factor,
                    *made_of.stride()[:3], ROWS=cut.keys, D=d, num_warps=8,
                )  # fmt: skip
    # All queries and keys are read, and nothing but launches wrote to memory.
    if (first, end, limits.first) == (0, s_q, 0) and key_sums is None and dsink is dbias is None:
        launch_plan.keep(key, inputs, (dq, dk, dv), recorded)
    return dq, dk, dv, dbias, dsink


def _refusal(case: Case) -> str | None:
    return hopper.refusal(case) or lacks_alignment(case, "do")


def _workspace(case: Case, *, ordered: bool = True) -> int:
    """Return the bytes of fp32 sums, lse and delta of whole tiles, turns, dbias and dsink."""
    b, h_q, h_kv, s_q, s_kv, d = (
        case.size(size) for size in ("b", "h_q", "h_kv", "s_q", "s_kv", "d")
    )
    cut = _cut_of(d, small=bool({"softcap", "dropout", "bias"} & case.options))
    tiles, blocks = cdiv(s_q, cut.rows), cdiv(s_kv, cut.keys)
    sums = _sums(tiles, blocks) if ordered else 1
    of_rows = tiles * (cut.rows * (sums * d + 2) + sums * ordered)
    of_options = 2 * s_q * len({"sink", "bias"} & case.options)
    spread = not ordered and _spreads(d, h_q // max(h_kv, 1), s_q, s_kv, b * h_kv)
    of_keys = 2 * blocks * cut.keys * d if spread else 0
    return 4 * b * (h_q * (of_rows + of_options) + h_kv * of_keys)


def _is_dispatched(case: Case) -> bool:
    heads = case.size("b") * case.size("h_q")
    return _is_quick(case.size("d"), 1, case.size("s_q"), case.size("s_kv"), heads)


_DOMAIN = Domain(
    dtypes=DTYPES,
    features=FEATURES,
    sm=SM,
    relations=("d_v == d",),
    also=_refusal,
)
_ATOMIC = Numerics(
    key_tile=64,
    accumulation_roundoff=2.0**-23,
    bitwise_repeatable=False,
    batch_invariant=False,
    device_independent=False,
)
_ORDERED = Numerics(
    key_tile=64, accumulation_roundoff=2.0**-23, batch_invariant=True, device_independent=True
)


def _served(q: Tensor, k: Tensor, v: Tensor, do: Tensor, given: Mapping[str, Any]) -> AttentionCall:
    problem = AttentionCall.of(q, k, v, Options(**given))
    if not is_served(problem, _HEADS, do):
        raise AttentionError(
            NOT_SERVED.format(
                name="these kernels for Hopper serve",
                other="two_pass",
            )
        )
    return problem


@kernel(
    ATTENTION_BACKWARD,
    _DOMAIN,
    numerics=_ORDERED,
    priority=25,
    workspace=_workspace,
)
def hopper_ordered(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Any,
) -> Gradients:
    """Let blocks of keys add to a tile of dq one after the other."""
    problem = _served(q, k, v, do, given)
    return hopper_gradients(do, problem, out, lse, ordered=True)


@kernel(
    ATTENTION_BACKWARD,
    _DOMAIN,
    numerics=_ATOMIC,
    priority=12,
    workspace=partial(_workspace, ordered=False),
    dispatched=_is_dispatched,
    same_code_as="hopper_ordered",  # but for how dq is added up
)
def hopper_atomic(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: Any,
) -> Gradients:
    """Let blocks of keys add to a tile of dq in no order."""
    problem = _served(q, k, v, do, given)
    return hopper_gradients(do, problem, out, lse, ordered=False)


def _workspace_of_both(case: Case) -> int:
    """Return the backward's bytes, and those of out in 16 bits and lse in fp32."""
    rows = case.size("b") * case.size("h_q") * case.size("s_q")
    return _workspace(case) + rows * (case.size("d") * case.dtype.itemsize + 4)


@kernel(
    ATTENTION_GRADIENTS,
    _DOMAIN,
    numerics=_ORDERED,
    priority=25,
    workspace=_workspace_of_both,
    dispatched=hopper.is_dispatched,
)
def hopper_end_to_end(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **given: Any,
) -> Gradients:
    """Compute `hopper`, then `hopper_ordered` on its outputs."""
    problem = _served(q, k, v, do, given)
    return hopper_gradients(do, problem, *hopper.hopper_forward(problem), ordered=True)
