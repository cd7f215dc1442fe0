"""Our kernels' device times against peers' figures, shape by shape of a file of such figures.

    python -m suites.throughput.peers --peers docs/gallery/h200_layer_norm_peers.jsonl
    python -m suites.throughput.peers --peers docs/gallery/h200_attention_peers.jsonl

times the kernel that `choose` picks for each shape; one whose accuracy fails there has no time.
Layer norm counts the least traffic in GB/s. Attention counts TFLOP/s as its peers do: 4 b h s s d
forward, half of it under a causal mask, and two and a half times that backward.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from kernels import choose
from kernels.registry import Kernel
from oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD, LAYER_NORM_BACKWARD
from oracles.op import Case, Op
from suites.accuracy.run import Run
from suites.throughput.graph_replay import device_times_us

_BACKWARD_OF_FORWARD = 2.5
_FIGURE = {"attention_forward": "fwd_tflops", "attention_backward": "bwd_tflops"}


@dataclass(frozen=True, slots=True)
class Shape:
    """One row of the comparison: the case, the work that a figure counts, and each peer's figure.

    work: in 1e3 units of the figure times a microsecond: bytes for GB/s, flops for TFLOP/s.
    """

    op: Op
    case: Case
    label: str
    unit: str
    work: float
    peers: dict[str, float]


def _layer_norm(lines: list[dict[str, Any]]) -> Iterator[Shape]:
    peers: dict[tuple[str, int, int], dict[str, float]] = {}
    for line in lines:
        peers.setdefault((line["dtype"], line["m"], line["n"]), {})[line["impl"]] = line["gbps"]
    op = LAYER_NORM_BACKWARD
    for (dtype, m, n), figures in peers.items():
        kind = getattr(torch, dtype)
        case = Case(
            op=op.name, sizes=(("m", m), ("n", n)), dtype=kind, weight_dtype=kind, tier="full"
        )
        yield Shape(op, case, f"{dtype} {m} x {n}", "GB/s", op.bytes(case), figures)


def _attention(lines: list[dict[str, Any]]) -> Iterator[Shape]:
    peers: dict[tuple[str, str, int, bool, int, int, int], dict[str, float]] = {}
    for op in (ATTENTION_FORWARD, ATTENTION_BACKWARD):
        for line in lines:
            d, s = line["d"], line["s"]
            b, h = line["b_times_s"] // s, line["h_times_d"] // d
            key = (op.name, line["dtype"], d, line["causal"], s, b, h)
            peers.setdefault(key, {})[line["impl"]] = line[_FIGURE[op.name]]
    for (name, dtype, d, causal, s, b, h), figures in peers.items():
        op = ATTENTION_FORWARD if name == ATTENTION_FORWARD.name else ATTENTION_BACKWARD
        kind = getattr(torch, dtype)
        sizes = {"b": b, "h_q": h, "h_kv": h, "s_q": s, "s_kv": s, "d": d, "d_v": d}
        case = Case(
            op=name,
            sizes=tuple(sizes.items()),
            dtype=kind,
            weight_dtype=kind,
            options=frozenset({"causal"} if causal else ()),
            tier="full",
        )
        flops = 4 * b * h * s * s * d * (0.5 if causal else 1.0)
        work = flops * (1.0 if op is ATTENTION_FORWARD else _BACKWARD_OF_FORWARD)
        label = f"{name.removeprefix('attention_')} {dtype} d{d} s{s}{' causal' if causal else ''}"
        yield Shape(op, case, label, "TFLOP/s", work * 1e-3, figures)


def read_shapes(path: Path) -> tuple[Shape, ...]:
    """The shapes of a file of peers' figures, of layer norm or of attention."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    figures = [line for line in lines if "impl" in line]
    return tuple((_attention if any("d" in line for line in figures) else _layer_norm)(figures))


def time_shape(kernel: Kernel, shape: Shape) -> tuple[float, float]:
    """Median device time in microseconds, and the figure."""
    inputs = kernel.op.inputs(shape.case, torch.device("cuda"))
    median = statistics.median(device_times_us(lambda: kernel.function(**inputs)))
    return median, shape.work / median * 1e-3


def main() -> int:
    """Print ours beside the peers' figures; status 1 where a row's accuracy failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="JSON lines of peers' figures")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; run this on a machine with a GPU")
    shapes = read_shapes(arguments.peers)
    major, minor = torch.cuda.get_device_capability()
    run = Run(
        device=torch.device("cuda"),
        sm=10 * major + minor,
        gate_baselines=False,
        named=frozenset(),
        reproduce_options=(),
    )
    names = list(dict.fromkeys(name for shape in shapes for name in shape.peers))
    unit = shapes[0].unit if shapes else ""
    table = Table(title=f"{arguments.peers.stem}, {unit}, {torch.cuda.get_device_name()}")
    for column in ("shape", "kernel", "us", unit, "best peer", *names):
        table.add_column(column, justify="left" if column in ("shape", "kernel") else "right")
    failed = 0
    for shape in shapes:
        kernel = choose(shape.op, shape.case, run.sm)
        row = run.try_pair(kernel, shape.case)
        if row.status != "passed":
            failed += 1
            table.add_row(shape.label, kernel.name, "-", f"wrong: {row.rule}")
            continue
        time_us, figure = time_shape(kernel, shape)
        best = max(shape.peers, key=lambda name: shape.peers[name])
        table.add_row(
            shape.label,
            kernel.name,
            f"{time_us:.1f}",
            f"{figure:.0f}",
            f"{figure / shape.peers[best]:.2f} x {best}",
            *(f"{shape.peers[name]:.0f}" if name in shape.peers else "-" for name in names),
        )
    Console(width=160).print(table)
    return int(failed > 0 or not shapes)


if __name__ == "__main__":
    raise SystemExit(main())
