"""Compare derived bounds with bounds derived by hand: docs/derivations/analysis.md.

    python -m studies.analysis [--cost] [--write FILE]

The study writes attention's forward in a few lines of torch, and analyses it on its `ci` cases for
a plain kernel, which casts P to halves. It divides the derived bound of each element by the bound
derived by hand, and prints the median, the 5th and 95th percentile and the largest ratio, by
output and distribution. It also compares the error of the op's own emulation with the derived
bound. It skips cases with non-finite values, probes without rounding, whose bounds are of another
kind, and varlen and dropout, whose reference is longer. A second table compares time, memory and
operations of the analysis with the reference in float64, for each op that is a function.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kernel_workbench.oracles import ATTENTION_FORWARD, OPS
from kernel_workbench.oracles.analysis import bounds, rounds
from kernel_workbench.oracles.attention.probes import NEEDLES
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.op import Case, Numerics
from kernel_workbench.oracles.reference import ReferenceOp
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.oracles.reference.counts import Counter
from kernel_workbench.suites.accuracy.pages import keep_freed_pages
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory

CPU = torch.device("cpu")
_NUMERICS = Numerics(casts="p")
_LEFT_OUT = {"varlen", "dropout", "torch_dropout"}


def attention_forward(  # noqa: PLR0913  # the op's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    corner: str = "top_left",
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    scale: float | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Return out [b, s_q, h_q, d_v] and lse [b, h_q, s_q]."""
    group, s_q, s_kv = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    k, v = (operand.repeat_interleave(group, 2).transpose(1, 2) for operand in (k, v))
    s = q.transpose(1, 2) @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    shift = s_kv - s_q if corner == "bottom_right" else 0
    distance = torch.arange(s_kv) - torch.arange(s_q)[:, None] - shift
    if alibi_slopes is not None:
        s = s - alibi_slopes[:, None, None] * distance.abs()
    left, right = window or (None, None)
    right = (0 if right is None else min(right, 0)) if causal else right
    hidden = torch.zeros(s_q, s_kv, dtype=torch.bool)
    hidden = hidden if right is None else hidden | (distance > right)
    hidden = hidden if left is None else hidden | (distance < -left)
    s = s.masked_fill(hidden, -torch.inf)
    if sink is not None:
        column = sink[None, :, None, None].expand(s.shape[0], -1, s_q, 1)
        s, v = torch.cat([s, column], -1), torch.nn.functional.pad(v, (0, 0, 0, 1))
    dead = (s == -torch.inf).all(-1, keepdim=True)
    p = rounds(torch.softmax(s.masked_fill(dead, 0), -1), "p").masked_fill(dead, 0)
    return (p @ v).transpose(1, 2), torch.logsumexp(s, -1)


@dataclass(slots=True)
class Ratios:
    """Derived over hand-derived bounds of elements with both, and counts of the others."""

    cases: int = 0
    ratios: list[Tensor] = field(default_factory=list)
    wide: int = 0  # elements whose derived bound alone is infinite
    beyond: int = 0  # elements of the op's emulation beyond the derived bound
    silent: tuple[int, int] = (0, 0)  # elements without power: derived, by hand

    def cells(self) -> tuple[str, ...]:
        """Return cases, elements, percentiles, and counts: infinite, beyond, without power."""
        every = torch.cat(self.ratios).sort().values if self.ratios else torch.zeros(1)
        at = (every[min(int(q * len(every)), len(every) - 1)] for q in (0.5, 0.05, 0.95, 1.0))
        figures = (f"{float(figure):.3g}" for figure in at)
        counts = (self.wide, self.beyond, *self.silent)
        return (str(self.cases), str(len(every)), *figures, *map(str, counts))


def _cases() -> Iterator[Case]:
    for case in ATTENTION_FORWARD.cases():
        finite = not case.distribution.startswith(("nan", "inf", "bias_inf"))
        plain = finite and case.distribution not in {INTEGERS, NEEDLES}
        if case.tier == "ci" and plain and not _LEFT_OUT & case.options:
            yield case


def compare() -> dict[tuple[str, str, str], Ratios]:
    """Return ratios by form of the bound, output and distribution, which may be "all"."""
    op = ATTENTION_FORWARD
    by_key: dict[tuple[str, str, str], Ratios] = defaultdict(Ratios)
    for case in _cases():
        inputs = op.inputs(case, CPU)
        exact = op.oracle(case, inputs)
        forms = op.forms(case)
        by_hand = op.bound(case, inputs, exact, _NUMERICS)
        derived = bounds(
            attention_forward, inputs, _NUMERICS, [form.dtype for form in forms.values()]
        )
        own = op.emulate(case, inputs, _NUMERICS)
        for output, bound in zip(forms, derived, strict=True):
            hand, value, emulated = by_hand[output], exact[output], own.get(output)
            assert value is not None
            pairs = [("sure", hand.deterministic, bound.deterministic)]
            if hand.probabilistic is not None and bound.probabilistic is not None:
                pairs.append(("likely", hand.probabilistic, bound.probabilistic))
            for form, one, other in pairs:
                bounded = one.isfinite() & (one > 0)
                ratio = (other / one)[bounded].flatten()
                beyond = torch.zeros(())
                if emulated is not None:
                    error = (emulated.double() - value).abs()
                    beyond = (~(error <= other) & value.isfinite() & emulated.isfinite()).sum()
                silent = [
                    0 if mask is None else int(mask.expand(value.shape).sum())
                    for mask in (bound.powerless, hand.powerless)
                ]
                for distribution in (case.distribution, "all"):
                    ratios = by_key[form, output, distribution]
                    ratios.cases += 1
                    ratios.ratios.append(ratio[ratio.isfinite()])
                    ratios.wide += int((~ratio.isfinite()).sum())
                    ratios.beyond += int(beyond)
                    ratios.silent = (ratios.silent[0] + silent[0], ratios.silent[1] + silent[1])
    return by_key


_TITLES = (
    *("bound", "output", "distribution", "cases", "elements", "median", "5 %", "95 %", "largest"),
    *("infinite", "beyond", "no power", "by hand"),
)


def _rows() -> Iterator[tuple[str, ...]]:
    for key, ratios in sorted(compare().items()):
        yield *key, *ratios.cells()


def _seconds(*functions: Callable[[], object]) -> list[float]:
    """Return each function's least time; calls take turns, so that none finds its data cached."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(_CALLS + 1):
        for function, seconds in zip(functions, times, strict=True):
            began = time.process_time()
            function()
            seconds.append(time.process_time() - began)
    return [min(seconds[1:]) for seconds in times]  # the first isn't timed


def _peak(function: Callable[[], object]) -> int:
    """Return the most bytes of tensors that exist at one time inside the function."""
    with fresh_memory(float("nan"), CPU) as memory:
        function()
    assert memory.peak_bytes is not None
    return memory.peak_bytes


def _operations(function: Callable[[], object]) -> int:
    counter = Counter()
    with counter:
        function()
    return counter.operations


_COST_TITLES = (
    *("op", "float64, ms", "bounds, ms", "bounds over float64"),
    *("float64, MiB", "bounds, MiB", "bounds over float64"),
    *("float64, operations", "bounds, operations", "bounds over float64"),
)
_CALLS = 15
_LONGEST = 1024  # the largest size to time


def costs() -> Iterator[tuple[str, ...]]:
    """Yield costs of the analysis and of the reference in float64, for each op as a function.

    The costs are time, peak memory and tensor operations in fp32, after the reference is traced.
    """
    for op in OPS.values():
        if not isinstance(op, ReferenceOp):
            continue
        sizes = {name: min(_LONGEST, size.timed[0]) for name, size in op.reference.sizes.items()}
        case = case_of(op.name, sizes, (torch.float32, torch.float32), "full")
        inputs = op.inputs(case, CPU)
        truth_of = partial(op.oracle, case, inputs)
        bound_of = partial(op.bound, case, inputs, truth_of(), Numerics())
        cells = [op.name]
        seconds = _seconds(truth_of, bound_of)
        peaks, operations = (
            [measure(call) for call in (truth_of, bound_of)] for measure in (_peak, _operations)
        )
        for (alone, both), unit in ((seconds, 1e-3), (peaks, 2**20), (operations, 1)):
            cells += [f"{alone / unit:.3g}", f"{both / unit:.3g}", f"{both / alone:.1f}"]
        yield tuple(cells)


def _table(titles: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Measure and print the tables, and write them if --write says so."""
    parser = argparse.ArgumentParser(prog="python -m studies.analysis", description=__doc__)
    parser.add_argument("--cost", action="store_true", help="only the table of costs")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the tables in Markdown")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_pages()  # as a judge does
    parts = []
    ratios = () if arguments.cost else ((ATTENTION_FORWARD.name, _TITLES, _rows()),)
    for name, heads, rows in (*ratios, ("Cost", _COST_TITLES, costs())):
        parts.append(f"## {name}\n\n{_table(heads, rows)}")
        print(parts[-1], flush=True)
    if arguments.write is not None:
        arguments.write.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
