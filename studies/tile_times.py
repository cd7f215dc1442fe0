"""`python -m studies.tile_times [TILES]`: on a GPU, does the model order tiles as time does?

For each pass and head of attention in bf16, the study times the first TILES (24) of the model's
order, every fourth of the rest, and the current tile on a nominal call (b 4, s 4,096, h d = 2048,
not causal): the median of ten calls by events, after three. It prints a line for each tile, and one
for the pass: the time of the model's first tile over the fastest, and Spearman's correlation of the
two orders.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace

import torch

from kernel_workbench.kernels.attention.backward import _Backward
from kernel_workbench.kernels.attention.forward import launch
from kernel_workbench.kernels.attention.launch import Launcher
from kernel_workbench.kernels.attention.problem import AttentionCall
from kernel_workbench.kernels.attention.tile_model import (
    WIDEST_RF,
    KernelTile,
    Pass,
    cycles,
    generation_of,
    ranked,
)
from kernel_workbench.kernels.attention.variants import MEASURED, Variant, all_variants
from kernel_workbench.kernels.device import sm_of
from kernel_workbench.oracles.attention.options import Options

_WARM, _CALLS = 3, 10
_PASSES: tuple[Pass, ...] = ("fwd", "dq", "dkdv", "dk", "dv")


class _Call:
    """A nominal call of one head size, and its passes by any variant."""

    def __init__(self, d: int) -> None:
        device = torch.device("cuda")
        heads = 2048 // d
        q, k, v, do, out = (
            torch.randn(4, 4096, heads, d, dtype=torch.bfloat16, device=device) for _ in range(5)
        )
        lse = torch.full((4, heads, 4096), 9.0, device=device)
        self.problem = AttentionCall.of(q, k, v, Options())
        self.launcher = Launcher(self.problem, tf32=False)
        self.backward = _Backward(self.problem, do, out, lse, tf32=False)
        self.delta = torch.zeros_like(lse)

    def run(self, variant: Variant) -> None:
        """Run one pass."""
        if variant.kind == "fwd":
            launch(self.launcher, variant)
        elif variant.kind == "dq":
            self.backward.query_gradients(variant)
        elif variant.kind == "dkdv":
            self.backward.key_gradients(variant, self.delta)
        else:
            self.backward.one_key_gradient(variant, self.delta)

    def time_ms(self, variant: Variant) -> float:
        """Return the median time of a call in milliseconds."""
        for _ in range(_WARM):
            self.run(variant)
        times: list[float] = []
        for _ in range(_CALLS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.run(variant)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def main(most: int) -> None:
    """Time every pass and head."""
    sm = sm_of(torch.device("cuda"))
    generation = generation_of(sm)
    print(f"{torch.cuda.get_device_name()}, sm {sm}")
    for kind, d in MEASURED["bf16"]:
        if kind not in _PASSES or d > WIDEST_RF:
            continue
        call, order = _Call(d), ranked(kind, "bf16", d, generation)
        current = next(
            one
            for one in all_variants(kind)
            if (one.dtype, one.max_d, one.sm) == ("bf16", d, generation.sm) and one.is_plain
        )
        tiles = dict.fromkeys((*order[:most], *order[most::4], current.tile))
        times: dict[KernelTile, float] = {}
        for tile in tiles:
            variant = replace(current, tile=tile)
            try:
                times[tile] = call.time_ms(variant)
            except Exception as error:  # noqa: BLE001  (whatever a compiler or a launch raises)
                print(f"{kind} d {d} {tile}: {' '.join(str(error).split())[:120]}")
                continue
            predicted = cycles(kind, "bf16", d, tile, generation)
            rank = order.index(tile) + 1 if tile in order else "not ranked"
            mark = ", taken" if tile == current.tile else ""
            print(f"{kind} d {d} {tile}: {times[tile]:.3f} ms, rank {rank}, {predicted:.3g}{mark}")
        timed = [tile for tile in order if tile in times]
        if len(timed) > 1:
            measured = [times[tile] for tile in timed]
            places = [sorted(measured).index(time_ms) for time_ms in measured]
            rho = statistics.correlation(range(len(timed)), places)
            loss = times[timed[0]] / min(times.values())
            print(f"{kind} d {d}: the model's first takes {loss:.2f} of the fastest, rho {rho:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
