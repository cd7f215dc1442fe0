"""Judge one kernel on one case: every output must be as near the truth as a sound kernel's.

The rules apply in this order, and the verdict names the first broken one: the call (it raised,
wrong form, inputs changed), elements never written, values that aren't finite, the deterministic
bound, the probabilistic bound, the emulation (blocks.py), bits that differ between two calls, and
more memory than declared. NaN never passes: an element is right only where error <= bound is true.

An element with an infinite bound isn't judged by any rule. An element whose bound says nothing
(`Bound.powerless`) is judged by its bounds, but doesn't count: if an output has no other elements,
a row without a failure has no power, and didn't pass.

Non-finite values: where the truth is NaN the output must be NaN; where it is an infinity, that
infinity or NaN (inf - inf depends on the order of evaluation), and with a bound of exactly 0 that
infinity alone; in fp8, whose casts saturate, it may be the largest number of its sign. Where the
truth is finite the output must be finite, but for an infinity of the right sign where |truth| +
bound reaches the dtype's largest number. Where `Bound.or_nan` says so NaN is right.

The second call's numbers that differ from the first's are judged by the same bounds, also if the
kernel declares that its calls differ. They are compared as numbers: signs that were flipped for the
second call, and back, leave the sign of a zero to chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kernel_workbench.oracles.op import Bound, Numerics, Outputs
from kernel_workbench.reports.record import OutputError, Rule
from kernel_workbench.suites.accuracy.elements import Element, Findings, Output, extent
from kernel_workbench.suites.sandbox.call import Call

if TYPE_CHECKING:
    from torch import Tensor

    from kernel_workbench.suites.accuracy.blocks import Block

_OF_VALUES: tuple[Rule, ...] = (
    "non-finite values",
    "deterministic bound",
    "probabilistic bound",
    "emulation",
)
_UNWRITTEN, _NOT_FINITE, _DETERMINISTIC, _PROBABILISTIC, _DIFFERING = range(5)  # Findings.kinds


@dataclass(frozen=True, slots=True)
class Verdict:
    """The broken rule and a sentence, None if no rule is broken; and the errors of each output."""

    rule: Rule | None
    reason: str | None
    outputs: tuple[OutputError, ...]

    @property
    def status(self) -> Literal["passed", "failed", "no power"]:
        """Return the status; "no power" if no rule is broken, but some output can't break one.

        A call without outputs has no power either.

        >>> Verdict("deterministic bound", "y[0]: got 2, expected 1", ()).status
        'failed'
        >>> Verdict(None, None, ()).status
        'no power'
        """
        if self.rule is not None:
            return "failed"
        judged = self.outputs and all(map(_has_power, self.outputs))
        return "passed" if judged else "no power"


def _has_power(output: OutputError) -> bool:
    judged = (output.elements or 0) - output.unjudged
    return not output.powerless or output.powerless < judged


def judge(
    first: Call,
    second: Call,
    truth: Outputs,
    bounds: dict[str, Bound],
    numerics: Numerics,
    *,
    declared_bytes: int | None = None,
    emulation: Outputs | None = None,
    other_orders: Callable[[], Iterable[Outputs]] = tuple,
) -> Verdict:
    """Judge two calls; fresh memory held NaN at the first, the sentinel at the second.

    The sentinel may have either sign, if the second call's outputs had theirs flipped back.

    Args:
        first: the first call.
        second: the second call, whose memory is measured: the first may compile, tune or fill a
            cache.
        truth: the true outputs by name, float64.
        bounds: the bounds by output.
        numerics: the kernel's declaration.
        declared_bytes: the most bytes that a call may take beyond inputs and outputs; None allows
            any number.
        emulation: the outputs of `Op.emulate`; outputs that it lacks aren't compared with it.
        other_orders: yields emulations in other orders of addition, which are computed only if the
            first emulation fails an output: the largest of all errors counts.

    Returns:
        The verdict, with the first broken rule.
    """
    for call in (first, second):
        if call.rule is not None:
            return Verdict(call.rule, call.reason, ())  # type: ignore[arg-type]
    failures: list[tuple[Rule, str]] = []
    unrepeated: list[tuple[Rule, str]] = []
    errors = []
    for name, got in first.outputs.items():
        exact = truth[name]
        assert exact is not None
        emulated = None if emulation is None else emulation.get(name)
        again, bound = second.outputs[name], bounds[name]
        plain = () if emulated is None else (emulated,)
        output = Output(name, got, again, exact, bound, plain)
        findings, failure = _of_indices(output) if bound.chosen is not None else _of_values(output)
        if failure is not None and failure[0] == "emulation":
            findings = _in_other_orders(findings, other_orders())
            failure = _failure(findings)
        errors.append(_measured(findings))
        if failure is not None:
            failures.append(failure)
        if findings.kinds[_DIFFERING].exists:
            unrepeated.append(("not repeatable", _unrepeated(name, findings.kinds[_DIFFERING])))
    if not failures and numerics.bitwise_repeatable:
        failures = unrepeated
    used = second.workspace_bytes
    if used is not None and declared_bytes is not None and not used <= declared_bytes:
        failures.append(("workspace", _took(used, declared_bytes)))
    first_rule, why = failures[0] if failures else (None, None)
    return Verdict(first_rule, why, tuple(errors))


def _of_values(output: Output) -> tuple[Findings, tuple[Rule, str] | None]:
    """Measure an output, and name the rule that it breaks."""
    findings = Findings.of(output)
    return findings, _failure(findings)


def _of_indices(output: Output) -> tuple[Findings, tuple[Rule, str] | None]:
    """Judge indices by the numbers at their places; a second call that differs is judged too."""
    chosen = output.bound.chosen
    assert chosen is not None
    findings = Findings.of(output)
    if findings.kinds[_UNWRITTEN].exists:
        return findings, _failure(findings)
    differing, failure = findings.kinds[_DIFFERING], None
    calls = (output.first, output.second) if differing.exists else (output.first,)
    for number, got in enumerate(calls):
        values, expected, limit = chosen.judged(got)
        numbers = Output(output.name, values, values, expected, Bound(limit, None))
        of_call = Findings.of(numbers)
        if number == 0:
            findings = of_call
            findings.kinds[_DIFFERING] = differing
        at_second = " at the second call" if number else ""
        wrong = chosen.wrong(got)
        failure = _failure(of_call)
        if wrong is not None:
            failure = "deterministic bound", f"{output.name}{wrong}{at_second}"
        elif failure is not None:
            failure = failure[0], f"{failure[1]}; numbers at its indices are compared{at_second}"
        if failure is not None:
            break
    return findings, failure


def _in_other_orders(findings: Findings, emulations: Iterable[Outputs]) -> Findings:
    """Compare an output with emulations in other orders, until it passes or none is left."""
    for emulation in emulations:
        emulated = emulation.get(findings.output.name)
        if emulated is not None:
            output = replace(findings.output, emulated=(*findings.output.emulated, emulated))
            findings = Findings.of(output)
        if _failure(findings) is None:
            break
    return findings


def explained(verdict: Verdict, loads: Sequence[str], on_zeros: Callable[[], Verdict]) -> Verdict:
    """Blame undefined loads for a verdict that doesn't hold if their lanes read zeros.

    Args:
        verdict: the verdict on the first two calls.
        loads: sentences that name loads with undefined lanes.
        on_zeros: judges a call whose undefined lanes read zeros.

    Returns:
        A verdict "undefined load", or the given verdict if the loads don't explain it.
    """
    if verdict.rule not in _OF_VALUES or not loads:
        return verdict
    # It imports triton, which the judge of a user's own test does without.
    from kernel_workbench.suites.interpreter.strict import masked_lanes  # noqa: PLC0415

    other = on_zeros()
    finite = verdict.rule == "non-finite values" and other.rule != verdict.rule
    if other.rule is not None and not finite:  # something else is wrong, and these may not be
        return verdict
    broken = [load for load in loads if masked_lanes.PROMISED in load]
    if broken:
        lanes, zeros = "lanes that break a promise to the compiler", "the lanes as they are"
        advice = "promise less, or use nothing of these lanes"
        loads = broken
    else:
        lanes = "lanes that a mask switches off in a load without `other`"
        zeros, advice = "zeros", "give the load an `other`"
    if other.rule is not None:
        then = f"where they read {zeros}, it fails by {other.rule}: {other.reason}"
    elif broken:
        then = f"it is right where they read {zeros}"
    else:
        then = "it is right where they read zeros, as on today's NVIDIA backend, which Triton "
        then += "doesn't promise"
    reason = (
        f"{verdict.reason}; it comes of {lanes}, which are undefined: "
        f"{masked_lanes.listed(loads)}; {then}; {advice}"
    )
    return Verdict("undefined load", reason, verdict.outputs)


def _took(used: int, declared: int) -> str:
    beyond = f"it took {used:,} bytes beyond its inputs and outputs"
    return f"{beyond}, and declares {declared:,} for this case"


def _unrepeated(name: str, found: Element) -> str:
    return (
        f"two calls on the same values differ: {name}{list(found.place)} is "
        f"{found.got:.9g} and then {found.again:.9g}; a kernel that isn't bitwise repeatable "
        "says so with Numerics(bitwise_repeatable=False)"
    )


def _measured(found: Findings) -> OutputError:
    """Return the record's form of an output's measures."""
    worst, kinds = found.kinds[_DETERMINISTIC], found.kinds
    shown = next((kind for kind in kinds[:_DETERMINISTIC] if kind.exists), worst)
    probable = found.output.bound.probabilistic is not None
    used = max((place + 1 for place, count in enumerate(found.histogram) if count), default=0)
    return OutputError(
        output=found.output.name,
        worst_deterministic=worst.badness,
        worst_probabilistic=kinds[_PROBABILISTIC].badness if probable else None,
        worst_emulation=None if found.block is None else found.block.ratio,
        worst_index=shown.place,
        got=shown.got,
        expected=shown.expected,
        bound=shown.limit,
        rmse=math.sqrt(found.squares / found.compared) if found.compared else 0.0,
        max_ulp=found.ulps,
        ulp_histogram=found.histogram[:used],
        elements=found.output.first.numel(),
        unjudged=found.unjudged,
        powerless=found.powerless,
        replayed=_count(found.output.bound.replayed),
    )


def _count(mask: Tensor | None) -> int:
    return 0 if mask is None else int(mask.count_nonzero())


def _failure(found: Findings) -> tuple[Rule, str] | None:
    """Return the rule that the output breaks, and a sentence; None if it is right."""
    output, kinds = found.output, found.kinds
    if kinds[_UNWRITTEN].exists:
        more = extent(output, "left", "weren't")
        place = list(kinds[_UNWRITTEN].place)
        return "unwritten output", f"{output.name}{place} was never written{more}"
    if kinds[_NOT_FINITE].exists:
        more = extent(output, "wild", "are finite where they mustn't be, or the reverse")
        return "non-finite values", f"{output.name}{kinds[_NOT_FINITE].text}{more}"
    worst, likely = kinds[_DETERMINISTIC], kinds[_PROBABILISTIC]
    if not worst.badness <= 1.0:
        excess = f"{worst.badness:.3g} times the bound {worst.limit:.3g}"
        more = extent(output, "beyond", "are beyond it")
        return "deterministic bound", f"{output.name}{worst.text}, {excess}{more}"
    if output.bound.probabilistic is not None and not likely.badness <= 1.0:
        excess = f"{likely.badness:.3g} times the probabilistic bound {likely.likely:.3g}"
        if output.bound.replayed is not None and bool(output.bound.replayed[likely.place]):
            excess += ", which is one of replays with random roundings"
        more = extent(output, "unlikely", "are beyond it")
        return "probabilistic bound", f"{output.name}{likely.text}, {excess}{more}"
    if found.block is not None and not found.block.ratio <= 1.0:
        return "emulation", _unlike(output, found.block)
    return None


def _unlike(output: Output, block: Block) -> str:
    """Describe a block that the emulation doesn't explain, and its worst element."""
    name, columns = output.name, output.matrix[1]
    first = output.place(block.rows.start * columns + block.columns.start)
    last = output.place((block.rows.stop - 1) * columns + block.columns.stop - 1)
    return (
        f"in the block {name}{list(first)} to {name}{list(last)} {block.excess}; "
        f"{name}{list(output.place(block.element))}: got {block.got:.9g}, expected "
        f"{block.expected:.9g}, an emulation has {block.emulated:.9g}, the bound is "
        f"{block.scale:.3g}"
    )
