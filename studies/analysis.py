"""Bounds that derive themselves, beside those derived by hand: docs/derivations/analysis.md.

    python -m studies.analysis [--op NAME ... | --cost] [--write FILE]

Attention's forward is written in a few lines of torch, and analysed on its `ci` cases, for a plain
kernel, which casts P of halves. Element by element the derived bound is divided by the one derived
by hand: by output and distribution the median, the 5th and 95th percentile and the largest, of the
cases' elements together. The errors of the op's own emulation are held against the derived bound
too. Cases with values that aren't finite are left out, and probes on which nothing is rounded,
whose bounds are of another kind; so are varlen and dropout, which take a reference of more than a
few lines. Then the time, the memory and the operations of the analysis, beside those of the
reference in float64, for each op that is a function.
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
from kernel_workbench.oracles.analysis import Reference, bounds, rounds
from kernel_workbench.oracles.attention.probes import NEEDLES
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.op import Case, Inputs, Numerics, Op
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
    """out [b, s_q, h_q, d_v] and lse [b, h_q, s_q]."""
    group, s_q, s_kv = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    k, v = (each.repeat_interleave(group, 2).transpose(1, 2) for each in (k, v))
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


REFERENCES: dict[str, tuple[Op, Reference]] = {
    op.name: (op, reference) for op, reference in ((ATTENTION_FORWARD, attention_forward),)
}


@dataclass(slots=True)
class Ratios:
    """Derived over hand-derived, of elements that both bound, and how often one holds alone."""

    cases: int = 0
    found: list[Tensor] = field(default_factory=list)
    wide: int = 0  # elements whose derived bound alone is infinite
    beyond: int = 0  # elements of the op's emulation beyond the derived bound
    silent: tuple[int, int] = (0, 0)  # elements without power: derived, by hand

    def cells(self) -> tuple[str, ...]:
        """Cases, elements, percentiles, what is infinite, what is beyond, what has no power."""
        every = torch.cat(self.found).sort().values if self.found else torch.zeros(1)
        at = (every[min(int(q * len(every)), len(every) - 1)] for q in (0.5, 0.05, 0.95, 1.0))
        figures = (f"{float(each):.3g}" for each in at)
        counts = (self.wide, self.beyond, *self.silent)
        return (str(self.cases), str(len(every)), *figures, *map(str, counts))


def _cases(op: Op) -> Iterator[Case]:
    for case in op.cases():
        finite = not case.distribution.startswith(("nan", "inf", "bias_inf"))
        plain = finite and case.distribution not in {INTEGERS, NEEDLES}
        if case.tier == "ci" and plain and not _LEFT_OUT & case.options:
            yield case


def compare(name: str) -> dict[tuple[str, str, str], Ratios]:
    """By form of the bound, output and distribution; "all" for every distribution's together."""
    op, reference = REFERENCES[name]
    made: dict[tuple[str, str, str], Ratios] = defaultdict(Ratios)
    for case in _cases(op):
        inputs = op.inputs(case, CPU)
        exact = op.oracle(case, inputs)
        forms = op.forms(case)
        by_hand = op.bound(case, inputs, exact, _NUMERICS)
        derived = bounds(reference, inputs, _NUMERICS, [each.dtype for each in forms.values()])
        own = op.emulate(case, inputs, _NUMERICS) if op.emulate is not None else {}
        for output, bound in zip(forms, derived, strict=True):
            hand, value, emulated = by_hand[output], exact[output], own.get(output)
            assert value is not None
            pairs = [("sure", hand.deterministic, bound.deterministic)]
            if hand.probabilistic is not None and bound.probabilistic is not None:
                pairs.append(("likely", hand.probabilistic, bound.probabilistic))
            for form, one, other in pairs:
                held = one.isfinite() & (one > 0)
                ratio = (other / one)[held].flatten()
                beyond = torch.zeros(())
                if emulated is not None:
                    error = (emulated.double() - value).abs()
                    beyond = (~(error <= other) & value.isfinite() & emulated.isfinite()).sum()
                silent = [
                    0 if each is None else int(each.expand(value.shape).sum())
                    for each in (bound.powerless, hand.powerless)
                ]
                for distribution in (case.distribution, "all"):
                    ratios = made[form, output, distribution]
                    ratios.cases += 1
                    ratios.found.append(ratio[ratio.isfinite()])
                    ratios.wide += int((~ratio.isfinite()).sum())
                    ratios.beyond += int(beyond)
                    ratios.silent = (ratios.silent[0] + silent[0], ratios.silent[1] + silent[1])
    return made


_TITLES = (
    *("bound", "output", "distribution", "cases", "elements", "median", "5 %", "95 %", "largest"),
    *("infinite", "beyond", "no power", "by hand"),
)


def _rows(name: str) -> Iterator[tuple[str, ...]]:
    for key, ratios in sorted(compare(name).items()):
        yield *key, *ratios.cells()


def _seconds(*functions: Callable[[], object]) -> list[float]:
    """The least processor time of each, called in turn: none finds its own data in the cache."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(_CALLS + 1):
        for function, taken in zip(functions, times, strict=True):
            began = time.process_time()
            function()
            taken.append(time.process_time() - began)
    return [min(each[1:]) for each in times]  # the first isn't timed


def _peak(function: Callable[[], object]) -> int:
    """The most bytes of tensors that were made inside and were there at one time."""
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
_LONGEST = 1024  # a size of what is timed here


def costs() -> Iterator[tuple[str, ...]]:
    """What the analysis takes, of each op that is a function, beside the reference in float64.

    In fp32, once the reference is traced: time, the largest memory, operations on tensors.
    """
    for op in OPS.values():
        if not isinstance(op, ReferenceOp):
            continue
        sizes = {name: min(_LONGEST, each.timed[0]) for name, each in op.reference.sizes.items()}
        case = case_of(op.name, sizes, (torch.float32, torch.float32), "full")
        inputs = op.inputs(case, CPU)
        truth_of, bound_of = partial(op.oracle, case, inputs), partial(_bound, op, case, inputs)
        cells = [op.name]
        seconds = _seconds(truth_of, bound_of)
        peaks, operations = (
            [measure(each) for each in (truth_of, bound_of)] for measure in (_peak, _operations)
        )
        for (alone, both), unit in ((seconds, 1e-3), (peaks, 2**20), (operations, 1)):
            cells += [f"{alone / unit:.3g}", f"{both / unit:.3g}", f"{both / alone:.1f}"]
        yield tuple(cells)


def _bound(op: Op, case: Case, inputs: Inputs) -> object:
    return op.bound(case, inputs, {}, Numerics())


def _table(titles: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "".join(f"| {' | '.join(each)} |\n" for each in lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(prog="python -m studies.analysis", description=__doc__)
    parser.add_argument("--op", action="append", choices=tuple(REFERENCES), help="may be repeated")
    parser.add_argument("--cost", action="store_true", help="what the analysis costs, alone")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the tables in Markdown")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_pages()  # as a judge does
    parts = []
    named = () if arguments.cost else arguments.op or REFERENCES
    tables = [(name, _TITLES, _rows(name)) for name in named]
    for name, heads, rows in (*tables, ("Cost", _COST_TITLES, costs())):
        parts.append(f"## {name}\n\n{_table(heads, rows)}")
        print(parts[-1], flush=True)
    if arguments.write is not None:
        arguments.write.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
