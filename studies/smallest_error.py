"""The power of the accuracy suite: the smallest error, planted in one place, that a case sees.

    python -m studies.smallest_error [--op NAME ...] [--write docs/power.md]

A sound kernel in plain torch has one of its numbers multiplied by 1 + 2^-k: the bias, the slopes,
the softcap, the sink, dropout's scale, the scale, delta, the last key's score; of layer norm rstd,
mean, the weight, the last column as it counts in the row's means, c1 and c2. For each op and dtype
the largest k is found by bisection that any contiguous case of `ci` fails for, and the rule it
fails by: of all cases, of those that aren't exact probes, and of these by the bounds alone, without
the emulation. The kernel rounds besides, so that the verdict is that of a run.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from kernel_workbench.oracles.attention.probes import NEEDLES
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Op, Outputs, dtype_name
from kernel_workbench.reports.record import Rule
from kernel_workbench.suites.accuracy.verdict import judge
from kernel_workbench.suites.sandbox.call import Call
from tests.builders.plain_attention import Attention, Given, Part

CPU = torch.device("cpu")
LAYER_NORM = "layer_norm_backward"
_MOST = 26  # 1 + 2^-26 is 1 in fp32
_MOST_FLOPS = 4e7
_NUMERICS = Numerics()
_PROBES = {NEEDLES, INTEGERS}
Function = Callable[..., tuple[Tensor | None, ...]]


class _Off(Attention):
    """Attention with one number multiplied by `factor`."""

    def __init__(self, thing: str, factor: float) -> None:
        self.thing, self.factor = thing, factor

    def _of(self, thing: str) -> float:
        return self.factor if self.thing == thing else 1.0

    def bias(self, part: Part) -> Tensor | None:
        bias = super().bias(part)
        return None if bias is None else bias * self._of("bias")

    def keep(self, part: Part) -> Tensor | None:
        keep = super().keep(part)
        return None if keep is None else keep * self._of("dropout scale")

    def row_products(self, do: Tensor, out: Tensor) -> Tensor:
        return super().row_products(do, out) * self._of("delta")

    def scores(self, part: Part) -> tuple[Tensor, Tensor | None]:
        scores, tanh = super().scores(replace(part, given=self._changed(part.given, part.scale)))
        if self.thing == "last key" and scores.shape[3]:
            scores[..., -1] *= self.factor
        return scores, tanh

    def closed(
        self, part: Part, out: Tensor, total: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        part = replace(part, given=self._changed(part.given, part.scale))
        return super().closed(part, out, total, largest)

    def _changed(self, given: Given, scale: float) -> Given:
        made = given.copy()
        made["scale"] = scale * self._of("scale")
        if "alibi_slopes" in made:
            made["alibi_slopes"] = made["alibi_slopes"] * self._of("slopes")
        if "softcap" in made:
            made["softcap"] *= self._of("softcap")
        if "sink" in made:
            made["sink"] = made["sink"] * self._of("sink")
        return made

    def backward(self, *args: Tensor, **given: object) -> tuple[Tensor | None, ...]:
        if self.thing == "sink" and isinstance(given.get("sink"), Tensor):
            given = {**given, "sink": given["sink"] * self.factor}  # type: ignore[operator]
        return super().backward(*args, **given)  # type: ignore[arg-type]


def _attention(op: str, thing: str, factor: float) -> Function:
    method = {FORWARD: "forward", DELTA: "delta", BACKWARD: "backward", GRADIENTS: "gradients"}
    function: Function = getattr(_Off(thing, factor), method[op])
    return function


def _layer_norm(thing: str, factor: float) -> Function:
    def of(name: str) -> float:
        return factor if name == thing else 1.0

    def function(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor | None, ...]:
        wide_dy, rows = dy.float(), tuple(range(x.dim() - 1))
        mean, rstd = mean.unsqueeze(-1) * of("mean"), rstd.unsqueeze(-1) * of("rstd")
        x_hat = (x.float() - mean) * rstd
        g = wide_dy * (weight.float() * of("weight"))
        counted = torch.cat([g[..., :-1], g[..., -1:] * of("last column")], -1)
        c1 = counted.mean(-1, keepdim=True) * of("c1")
        c2 = (counted * x_hat).mean(-1, keepdim=True) * of("c2")
        dx = (g - c1 - x_hat * c2) * rstd
        sums = (wide_dy * x_hat).sum(rows), wide_dy.sum(rows)
        return dx.to(x.dtype), *(each.to(weight.dtype) for each in sums)

    return function


@dataclass(frozen=True, slots=True)
class Planted:
    """What is off in an op, the option that a case must have for it, "" for none."""

    op: str
    thing: str
    option: str = ""

    def function(self, factor: float) -> Function:
        """The kernel, off by so much."""
        if self.op == LAYER_NORM:
            return _layer_norm(self.thing, factor)
        return _attention(self.op, self.thing, factor)


_OF_SCORES = (
    ("bias", "bias"),
    ("slopes", "alibi"),
    ("softcap", "softcap"),
    ("sink", "sink"),
    ("dropout scale", "dropout"),
    ("scale", ""),
    ("last key", ""),
)
PLANTED = (
    *(Planted(FORWARD, *each) for each in _OF_SCORES),
    Planted(DELTA, "delta"),
    *(Planted(op, *each) for op in (BACKWARD, GRADIENTS) for each in (*_OF_SCORES, ("delta", ""))),
    *(Planted(LAYER_NORM, each) for each in ("rstd", "mean", "weight", "last column", "c1", "c2")),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A case with all that it is judged by."""

    op: Op
    case: Case
    inputs: Inputs
    truth: Outputs
    bounds: dict[str, Bound]
    emulation: Outputs

    @classmethod
    def of(cls, op: Op, case: Case) -> Trial:
        """Everything of a case, for a plain kernel."""
        inputs = op.inputs(case, CPU)
        truth = op.oracle(case, inputs)
        emulation = {} if op.emulate is None else op.emulate(case, inputs, _NUMERICS)
        return cls(op, case, inputs, truth, op.bound(case, inputs, truth, _NUMERICS), emulation)

    def rule(self, function: Function, *, emulation: bool) -> Rule | None:
        """The rule that a kernel fails by, None where it passes."""
        forms = self.op.forms(self.case)
        made = dict(zip(self.op.outputs, function(**self.inputs), strict=True))
        call = Call(
            {name: each for name, each in made.items() if name in forms and each is not None}, 0.0
        )
        other = self.emulation if emulation else None
        return judge(call, call, self.truth, self.bounds, _NUMERICS, emulation=other).rule


def _trials(op: str) -> Iterator[Trial]:
    """The contiguous cases of `ci` whose values are finite, small enough to be tried often."""
    for case in OPS[op].cases():
        plain = case.layout.name == "contiguous" and case.weight_dtype == case.dtype
        if op == LAYER_NORM:
            plain = plain and not case.options
        finite = not case.distribution.startswith(("nan", "inf"))
        if case.tier == "ci" and plain and finite and OPS[op].flops(case) <= _MOST_FLOPS:
            yield Trial.of(OPS[op], case)


@dataclass(frozen=True, slots=True)
class Seen:
    """The smallest error that is seen: its power of two, None where none is, by what and where."""

    power: int | None
    rule: Rule | None = None
    case: str = ""

    @property
    def text(self) -> str:
        """`2^-12`, or that nothing is seen."""
        return "none" if self.power is None else f"2^-{self.power}"


def smallest_seen(planted: Planted, trials: list[Trial], *, emulation: bool) -> Seen:
    """By bisection; an error that a case sees is taken to be seen where it is twice as large.

    Raises AssertionError where the sound kernel fails.
    """
    sound = planted.function(1.0)
    for trial in trials:
        assert trial.rule(sound, emulation=emulation) is None, trial.case.id()
    order = list(trials)

    def seen(power: int) -> Seen | None:
        function = planted.function(1 + 2.0**-power)
        for index, trial in enumerate(order):
            rule = trial.rule(function, emulation=emulation)
            if rule is not None:
                order.insert(0, order.pop(index))  # the likeliest to see the next one
                return Seen(power, rule, trial.case.id())
        return None

    low, high, best = -1, _MOST + 1, Seen(None)
    while high - low > 1:
        middle = (low + high) // 2
        found = seen(middle)
        if found is None:
            high = middle
        else:
            low, best = middle, found
    return best


@dataclass(frozen=True, slots=True)
class Row:
    """What is seen of a planted error in one dtype, of so many cases."""

    planted: Planted
    dtype: str
    cases: int
    every: Seen
    rounding: Seen
    bounds: Seen


def measure(ops: Iterable[str]) -> Iterator[Row]:
    """Every planted error of some ops, in every dtype that a case has."""
    for op, every in itertools.groupby(PLANTED, key=lambda each: each.op):
        if op not in ops:
            continue
        trials = list(_trials(op))
        for planted, dtype in itertools.product(
            every, (torch.float32, torch.float16, torch.bfloat16)
        ):
            fit = [
                each
                for each in trials
                if each.case.dtype == dtype
                and (not planted.option or planted.option in each.case.options)
            ]
            rounding = [each for each in fit if each.case.distribution not in _PROBES]
            if rounding:
                yield Row(
                    planted,
                    dtype_name(dtype),
                    len(fit),
                    smallest_seen(planted, fit, emulation=True),
                    smallest_seen(planted, rounding, emulation=True),
                    smallest_seen(planted, rounding, emulation=False),
                )


_TITLES = (
    "op",
    "planted in",
    "dtype",
    "cases",
    "seen from",
    "by",
    "no probes",
    "by",
    "bounds alone",
)


def _cells(row: Row) -> tuple[str, ...]:
    planted, every, rounding = row.planted, row.every, row.rounding
    return (
        planted.op,
        planted.thing,
        row.dtype,
        str(row.cases),
        every.text,
        "a probe" if every.power != rounding.power else every.rule or "-",
        rounding.text,
        rounding.rule or "-",
        row.bounds.text,
    )


def _markdown(rows: list[Row], command: str, day: str) -> str:
    head = f"""# The power of the accuracy suite

The smallest relative error, planted in one number of a sound kernel in plain torch, that a
contiguous `ci` case sees; found by bisection, as `studies/smallest_error.py` says. *Seen from*: an
error of that size fails some case, and one of half of it none. *No probes*: the same without the
exact probes, by the bounds and the emulation; and without the emulation, by the *bounds alone*.
none: twice the number passes too.

{day}, on a CPU: `{command}`

"""
    lines = [_TITLES, tuple("---" for _ in _TITLES), *map(_cells, rows)]
    return head + "".join(f"| {' | '.join(each)} |\n" for each in lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(prog="python -m studies.smallest_error", description=__doc__)
    parser.add_argument("--op", action="append", choices=tuple(OPS), help="may be repeated")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a table in Markdown")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(box=None, pad_edge=False)
    for title in _TITLES:
        table.add_column(title, no_wrap=True)
    rows = []
    progress = Console(stderr=True)
    for row in measure(arguments.op or OPS):
        seen = ", ".join(each.case for each in (row.every, row.rounding, row.bounds))
        progress.print(f"{' '.join(_cells(row))}: {seen}", highlight=False, soft_wrap=True)
        rows.append(row)
        table.add_row(*_cells(row))
    Console().print(table)
    if arguments.write is not None:
        words = [*(f"--op {op}" for op in arguments.op or ()), f"--write {arguments.write}"]
        command = " ".join(["python -m studies.smallest_error", *words])
        day = datetime.now(UTC).date().isoformat()
        arguments.write.write_text(_markdown(rows, command, day))


if __name__ == "__main__":
    main()
