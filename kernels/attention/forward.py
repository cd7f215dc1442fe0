"""ATTENTION_FORWARD: `flash` and its tf32 twin.

Both write out packed in the order (b, s, h, d). They are bitwise repeatable, and a row's bits don't
depend on other batches or heads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels import launch_plan
from kernel_workbench.kernels.attention.forward_kernel import forward_kernel
from kernel_workbench.kernels.attention.launch import Launcher
from kernel_workbench.kernels.attention.problem import AttentionCall
from kernel_workbench.kernels.attention.registration import (
    configurations_of_case,
    elements,
    ours,
    variants_of_case,
)
from kernel_workbench.kernels.attention.tile_model import WIDEST_RF
from kernel_workbench.kernels.attention.variants import Variant, names, pick
from kernel_workbench.kernels.attention.wide_kernels import forward_wide_kernel
from kernel_workbench.kernels.integers import cdiv
from kernel_workbench.oracles import ATTENTION_FORWARD
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import Case

Forward = tuple[Tensor, Tensor]


def launch(launcher: Launcher, variant: Variant, key: launch_plan.Key | None = None) -> Forward:
    """Compute out and lse by one variant; key: the key of the launch's plan, if it has one."""
    problem = launcher.problem
    b, s_q, h_q, _ = problem.q.shape
    out = problem.q.new_empty((b, s_q, h_q, problem.d_v))
    lse = problem.q.new_empty((b, h_q, s_q), dtype=torch.float32)
    stride_lb, stride_lh, _ = lse.stride()
    rows = {"lse_ptr": lse, "stride_lb": stride_lb, "stride_lh": stride_lh}
    programs = cdiv(problem.s_q, variant.tile.queries) * problem.b * problem.h_q
    if variant.accumulator == "gmem":
        acc = torch.zeros_like(out, dtype=torch.float32)
        wide = {"acc_ptr": acc, "scale": problem.scale}
        launcher.launch(forward_wide_kernel, programs, variant, {"out": out}, **wide, **rows)
    else:
        launched = launcher.launch(forward_kernel, programs, variant, {"out": out}, **rows)
        if launched is not None:
            inputs = problem.q, problem.k, problem.v
            launch_plan.keep(key, inputs, (out, lse), launch_plan.Recorded([launched]))
    return out, lse


def flash_forward(
    problem: AttentionCall, *, tf32: bool = False, key: launch_plan.Key | None = None
) -> Forward:
    """Compute out [b, s_q, h_q, d_v] and lse [b, h_q, s_q], by the first variant that fits."""
    launcher = Launcher(problem, tf32=tf32)
    return launch(launcher, pick("fwd", launcher.need), key)


def _workspace(case: Case) -> int:
    """Return the bytes of fp32 accumulators if a head is too wide for registers, else 0."""
    wide = max(case.size("d"), case.size("d_v")) > WIDEST_RF
    return 4 * elements(case, "out") if wide else 0


@ours(
    ATTENTION_FORWARD,
    priority=20,
    variant=lambda case, sm: variants_of_case("fwd", case=case, sm=sm),
    variants=partial(names, "fwd"),
    configurations=lambda case, sm: configurations_of_case(("fwd",), case=case, sm=sm),
    workspace=_workspace,
)
def flash(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Forward:
    """Compute a block of queries a program, with whole operands in fp32."""
    return flash_forward(AttentionCall.of(q, k, v, Options(**given)))


@ours(
    ATTENTION_FORWARD,
    priority=15,
    variant=lambda case, sm: variants_of_case("fwd", case=case, sm=sm, tf32=True),
    variants=partial(names, "fwd"),
    configurations=lambda case, sm: configurations_of_case(("fwd",), case=case, sm=sm, tf32=True),
    workspace=_workspace,
    tf32=True,
)
def flash_tf32(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Forward:
    """Compute as `flash`, for fp32 on tensor cores: operands of products keep 10 bits."""
    return flash_forward(AttentionCall.of(q, k, v, Options(**given)), tf32=True)
