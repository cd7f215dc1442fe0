"""The power of the accuracy suite: the smallest error, planted in one place, that a case detects.

    python -m studies.smallest_error [--op NAME ...] [--write docs/power.md]

The study multiplies one number of a sound kernel in plain torch by 1 + 2^-k: the bias, the slopes,
the softcap, the sink, dropout's scale, the scale, delta, or the last key's score; in layer norm
rstd, mean, the weight, the last column's part of the row's means, c1 or c2. For each op and dtype,
bisection finds the largest k for which a contiguous case of `ci` fails, and the rule that fails:
over all cases, over cases that aren't exact probes, and over these by the bounds alone, without the
emulation. The kernel also rounds, so that the verdict equals a run's.
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
        changed = given.copy()
        changed["scale"] = scale * self._of("scale")
        if "alibi_slopes" in changed:
            changed["alibi_slopes"] = changed["alibi_slopes"] * self._of("slopes")
        if "softcap" in changed:
            changed["softcap"] *= self._of("softcap")
        if "sink" in changed:
            changed["sink"] = changed["sink"] * self._of("sink")
        return changed

    def backward(self, *args: Tensor, **arguments: object) -> tuple[Tensor | None, ...]:
        if self.thing == "sink" and isinstance(arguments.get("sink"), Tensor):
            arguments = {**arguments, "sink": arguments["sink"] * self.factor}  # type: ignore[operator]
        return super().backward(*args, **arguments)  # type: ignore[arg-type]


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
        return dx.to(x.dtype), *(total.to(weight.dtype) for total in sums)

    return function


@dataclass(frozen=True, slots=True)
class Planted:
    """The number that is wrong in an op, and the option that a case needs for it, or ""."""

    op: str
    thing: str
    option: str = ""

    def function(self, factor: float) -> Function:
        """Return the kernel with its number multiplied by `factor`."""
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
    *(Planted(FORWARD, *scored) for scored in _OF_SCORES),
    Planted(DELTA, "delta"),
    *(Planted(op, *pair) for op in (BACKWARD, GRADIENTS) for pair in (*_OF_SCORES, ("delta", ""))),
    *(Planted(LAYER_NORM, name) for name in ("rstd", "mean", "weight", "last column", "c1", "c2")),
)


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """A case with its truth, bounds and emulation."""

    op: Op
    case: Case
    inputs: Inputs
    truth: Outputs
    bounds: dict[str, Bound]
    emulation: Outputs

    @classmethod
    def of(cls, op: Op, case: Case) -> JudgedCase:
        """Compute the truth, the bounds and the emulation of a case, for a plain kernel."""
        inputs = op.inputs(case, CPU)
        truth = op.oracle(case, inputs)
        emulation = op.emulate(case, inputs, _NUMERICS)
        return cls(op, case, inputs, truth, op.bound(case, inputs, truth, _NUMERICS), emulation)

    def rule(self, function: Function, *, emulation: bool) -> Rule | None:
        """Return the rule that a kernel breaks, or None if it passes."""
        forms = self.op.forms(self.case)
        outputs = dict(zip(self.op.outputs, function(**self.inputs), strict=True))
        call = Call(
            {name: x for name, x in outputs.items() if name in forms and x is not None}, 0.0
        )
        other = self.emulation if emulation else None
        return judge(call, call, self.truth, self.bounds, _NUMERICS, emulation=other).rule


def _trials(op: str) -> Iterator[JudgedCase]:
    """Yield the contiguous, finite cases of `ci` that are small enough to be tried often."""
    for case in OPS[op].cases():
        plain = case.layout.name == "contiguous" and case.weight_dtype == case.dtype
        if op == LAYER_NORM:
            plain = plain and not case.options
        finite = not case.distribution.startswith(("nan", "inf"))
        if case.tier == "ci" and plain and finite and OPS[op].flops(case) <= _MOST_FLOPS:
            yield JudgedCase.of(OPS[op], case)


@dataclass(frozen=True, slots=True)
class Detection:
    """The smallest detected error as a power of two, or None, and its rule and case."""

    power: int | None
    rule: Rule | None = None
    case: str = ""

    @property
    def text(self) -> str:
        """The error, for example "2^-12", or "none"."""
        return "none" if self.power is None else f"2^-{self.power}"


def smallest_seen(planted: Planted, trials: list[JudgedCase], *, emulation: bool) -> Detection:
    """Return the smallest detected error, by bisection: a larger error counts as detected too.

    Raises AssertionError if the sound kernel fails.
    """
    sound = planted.function(1.0)
    for trial in trials:
        assert trial.rule(sound, emulation=emulation) is None, trial.case.id()
    order = list(trials)

    def seen(power: int) -> Detection | None:
        function = planted.function(1 + 2.0**-power)
        for index, trial in enumerate(order):
            rule = trial.rule(function, emulation=emulation)
            if rule is not None:
                order.insert(0, order.pop(index))  # the likeliest to detect the next error
                return Detection(power, rule, trial.case.id())
        return None

    low, high, best = -1, _MOST + 1, Detection(None)
    while high - low > 1:
        middle = (low + high) // 2
        detection = seen(middle)
        if detection is None:
            high = middle
        else:
            low, best = middle, detection
    return best


@dataclass(frozen=True, slots=True)
class Row:
    """The detections of a planted error in one dtype, and the number of cases."""

    planted: Planted
    dtype: str
    cases: int
    every: Detection
    rounding: Detection
    bounds: Detection


def measure(ops: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each planted error of some ops, in every dtype that a case has."""
    for op, every in itertools.groupby(PLANTED, key=lambda error: error.op):
        if op not in ops:
            continue
        trials = list(_trials(op))
        for planted, dtype in itertools.product(
            every, (torch.float32, torch.float16, torch.bfloat16)
        ):
            fit = [
                trial
                for trial in trials
                if trial.case.dtype == dtype
                and (not planted.option or planted.option in trial.case.options)
            ]
            rounding = [trial for trial in fit if trial.case.distribution not in _PROBES]
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
contiguous `ci` case detects, by bisection (`studies/smallest_error.py`). *Seen from*: an error of
this size fails a case, and half of it fails none. *No probes*: the same without the exact probes,
by the bounds and the emulation. *Bounds alone*: the same without the emulation too. "none": twice
the number passes too.

{day}, on a CPU: `{command}`

"""
    lines = [_TITLES, tuple("---" for _ in _TITLES), *map(_cells, rows)]
    return head + "".join(f"|{'|'.join(cells)}|\n" for cells in lines)


def main() -> None:
    """Measure and print the page, and write it if --write says so."""
    parser = argparse.ArgumentParser(prog="python -m studies.smallest_error", description=__doc__)
    parser.add_argument("--op", action="append", choices=tuple(OPS), help="may be repeated")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a table in Markdown")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    progress = Console(stderr=True)
    for row in measure(arguments.op or OPS):
        seen = ", ".join(detection.case for detection in (row.every, row.rounding, row.bounds))
        progress.print(f"{' '.join(_cells(row))}: {seen}", highlight=False, soft_wrap=True)
        rows.append(row)
    words = ["python -m studies.smallest_error", *(f"--op {op}" for op in arguments.op or ())]
    if arguments.write is not None:
        words.append(f"--write {arguments.write}")
    text = _markdown(rows, " ".join(words), datetime.now(UTC).date().isoformat())
    print(text, end="")
    if arguments.write is not None:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
