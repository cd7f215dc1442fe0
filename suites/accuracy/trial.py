"""The verdict on a kernel and a case: all checks, in order.

Two calls come first, the second on values whose signs are changed, and both are judged
(verdict.py). In `ci` one call without further checks is enough for a generated case, in which pairs
of levels meet, for a kernel whose code an interpreter runs for another one too, and for a kernel
with a fixed configuration. If both calls are right, and as long as no rule is broken:

- The case's metamorphic relations hold, and the properties that the kernel declares: its bits don't
  depend on the rows beside a row, or on the number of SMs.
- With its Triton launches stubbed out it must be wrong: else something else computes its outputs.
  Tried once for each dtype with each option, and for each pair of options. A kernel without such
  launches, in CUDA C++ or in C, skips this check, and its row says so.
- Most of its outputs' numbers must not be copies of tensors that PyTorch's operations handed to its
  launches. Tried once for each dtype.
- Each configuration that an autotuned kernel may take must be right, not the fastest alone. In
  `full`, and with --every-configuration.
- On a GPU its bits must be the same while another stream keeps the SMs busy, if it says that it is
  repeatable: a race is rarely lost on an idle GPU. Once for each dtype and variant.
- In a process without the suites' code it must be right, too (plain_calls.py). On a small packed
  case, once, and on a CPU once for each dtype.
- On a GPU a CUDA graph of the call must be right when it is replayed on other values in the same
  memory, where the call can be captured. Once for each dtype and variant.
- On values that are drawn from a secret it must be right, on part of a run's cases; and right after
  a call on other values in the same memory, so that nothing may be kept by address.

A kernel that keeps more memory or does more work at the second call is called more often, and gets
a note if the growth goes on; it doesn't fail. Both are counted, not timed: the bytes that a call
leaves allocated beside its outputs, and its Triton launches and operations of PyTorch. A call or
two fill a cache; a leak grows with every call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases.distributions import generator
from kernel_workbench.oracles.op import Bound, Case, Inputs, optional
from kernel_workbench.reports.record import Rule, Tried
from kernel_workbench.suites.accuracy import invariance, relations
from kernel_workbench.suites.accuracy.truth import CaseValues
from kernel_workbench.suites.accuracy.verdict import Verdict, explained, judge
from kernel_workbench.suites.sandbox.call import NOT_CAPTURED, PLAIN, Call, Declared, How, Stub
from kernel_workbench.suites.sandbox.judge_side.workers import Workers

if TYPE_CHECKING:
    from kernel_workbench.suites.accuracy.run import Run

_HALF = 0.5  # of the signs
_STUBBED: dict[Stub, str] = {
    "silent": "its outputs are right with each of its Triton launches made to do nothing: they are "
    "computed elsewhere",
    "raising": "its outputs are right with each of its Triton launches made to fail: it falls back "
    "to something else without a word",
    "scrambled": "its outputs are right where each of its Triton launches read its numbers with "
    "random signs: they are computed elsewhere",
}
_UNSTUBBED = (
    "wasn't tried with its launches stubbed: none of them is Triton's, and nobody asked whether "
    "they are what computes its outputs"
)
_COPIED = (
    "PyTorch's operations compute {names}, and its Triton launches copy it: a tensor that a launch "
    "was handed is right in its place"
)
_FEWEST_TO_TELL = 64  # elements that other signs make wrong
# Few signs may leave all of them right: a row of zeros knows that of its loss alone. If a draw
# tells with probability p, a right kernel fails with p^8 (1 - p)^48: below 2e-10 for any p.
_DRAWS_TO_TELL, _SCRAMBLED_CALLS = 8, 48
_BUSY_CALLS = {"ci": 4, "full": 10}
_MORE_CALLS = 8  # to see whether what a call leaves goes on
_SECRETS = 2**32
DRAWN = "on values drawn from a secret"
LATER = "after a call on other values at the same addresses"
REPLAYED = "replayed in a CUDA graph after its inputs' memory got other values"
STALE = (
    "; the outputs are those of the values before: a launch on another stream than torch's current "
    "one isn't part of the graph"
)
MOST_BYTES = 2**26  # a case of more bytes takes seconds for each call

Finding = tuple[Rule, str]


@dataclass(slots=True)
class Trial:
    """A kernel on a case, with the results so far.

    plain: the call in a user's own process, if it was made beside the first two.
    notes: clauses about the kernel for its row, which don't fail it.
    captured: kernels of any language in a CUDA graph of the call; None: it wasn't captured.
    """

    run: Run
    kernel: Kernel
    values: CaseValues
    declared: Declared
    first: Call
    second: Call
    plain: Call | None = None
    relations: tuple[Tried, ...] = ()
    invariance: tuple[Tried, ...] = ()
    notes: tuple[str, ...] = ()
    captured: int | None = None
    _judged: Callable[[Call, Call], Verdict] = field(init=False)
    _inputs: Inputs = field(default_factory=dict)

    @property
    def launches(self) -> int | None:
        """Triton launches of a call; of a call without any, the kernels of its graph if known."""
        counted = self.first.launches
        return counted if counted or self.captured is None else self.captured

    def verdict(self) -> Verdict:
        """Return the first rule that the kernel breaks, in the order of this module's text."""
        if self.first.rule is not None or self.second.rule is not None:
            return judge(self.first, self.second, {}, {}, self.kernel.numerics)
        verdict = self._of_two_calls()
        alone = self.run.two_calls_alone or self.run.is_brief(self.kernel, self.values.case)
        if verdict.rule is not None or alone:
            return verdict
        if self.kernel.op.bytes(self.values.case) > MOST_BYTES:
            return verdict
        self._inputs = self.values.originals.read()
        related, properties = self._compared_with_itself()
        broken = (
            self._without_launches()
            or self._copies()
            or related
            or properties
            or self._configurations()
            or self._races()
            or self._in_a_graph()
            or self._as_users_call()
        )
        self.notes = (*self._repeated(), *self.notes)
        if broken is not None:
            return Verdict(*broken, verdict.outputs)
        return self._on_secret_values() or verdict

    def _of_two_calls(self) -> Verdict:
        """Judge the two calls, and a third one if signs or bits need it."""
        # The truth comes only now, so that a running candidate can't find it.
        run, values = self.run, self.values
        self._judged = run.judged_by(self.kernel, values, self.declared.workspace_bytes)
        values.judged = self.kernel.name, self.first, self._judged
        verdict = self._judged(self.first, self.second)
        if verdict.rule is not None and run.apart:
            bounds = values.bounds_of(self.kernel)
            if not values.keep_true_signs(bounds):
                self.second = run.call_flipped(self.kernel, values, "sentinel")
                verdict = self._judged(self.first, self.second)
        if verdict.rule == "not repeatable" and run.apart:
            # Bits that follow the signs are a rounding that knows signs, which isn't wrong.
            third = run.call_flipped(self.kernel, values, "nan")
            verdict = self._judged(third, self.second)
        on_zeros = How(zeros=True)
        return explained(verdict, self.first.undefined, lambda: self._right(on_zeros))

    def _call(self, how: How = PLAIN) -> Call:
        """Call the kernel again on the first call's values, under special conditions."""
        return self.run.call(self.kernel, self.values, "nan", how)

    def _right(self, how: How) -> Verdict:
        """Judge one such call alone."""
        call = self._call(how)
        return self._judged(call, call)

    def _first_of(self, question: str, by: Hashable, *, of_dtype: bool = True) -> bool:
        """Return True at the first call with this question and `by` for the kernel and dtype."""
        kind = self._kind(question, by, of_dtype=of_dtype)
        is_first = kind not in self.run.asked_before
        self.run.asked_before.add(kind)
        return is_first

    def _kind(self, question: str, by: Hashable, *, of_dtype: bool = True) -> Hashable:
        dtype = self.values.case.dtype_label if of_dtype else None
        return question, self.kernel.op.name, self.kernel.name, dtype, by

    def _compared_with_itself(self) -> tuple[Finding | None, Finding | None]:
        """Try the case's relations and the kernel's properties; return a broken one of each."""
        kernel, case, inputs = self.kernel, self.values.case, self._inputs

        def call(case: Case, changed: Inputs, how: How) -> Call:
            if changed is inputs:
                return self._call(how)
            return self.run.call_on(kernel, case, changed, self.values, how)

        def serves(case: Case) -> bool:
            return self.run.refusal(kernel, case) is None

        outputs = self.first.outputs
        self.relations = relations.examine(
            kernel, case, inputs, outputs, call, self._bounds, serves=serves
        )
        properties = invariance.examine(kernel, case, inputs, outputs, call, serves=serves)
        self.invariance = properties.tried
        unrelated: Finding | None = None
        failed = next((relation for relation in self.relations if not relation.holds), None)
        if failed is not None:
            unrelated = "metamorphic relation", f"{failed.name}: {failed.reason}"
        broken = properties.broken
        return unrelated, None if broken is None else ("invariance", broken)

    def _bounds(self, case: Case, inputs: Inputs) -> dict[str, Bound]:
        if inputs is self._inputs:
            return self.values.bounds_of(self.kernel)
        op, numerics = self.kernel.op, self.kernel.numerics.of_bounds
        return op.bound(case, inputs, op.oracle(case, inputs), numerics)

    def _without_launches(self) -> Finding | None:
        """Find a kernel that is right although its Triton launches are stubbed out."""
        if self.kernel.origin == "baseline":
            return None
        if not self.first.launches:
            is_needed = self.run.apart and self._launches_are_needed()
            if is_needed and self._first_of("unstubbed", None, of_dtype=False):
                self.notes += (_UNSTUBBED,)
            return None
        words = sorted(self.values.case.features)
        pairs = tuple(combinations(words, 2))

        def unasked(question: str) -> set[Hashable]:
            kinds = {self._kind(question, word) for word in (None, *words)}
            kinds |= {self._kind(question, pair, of_dtype=False) for pair in pairs}
            return {kind for kind in kinds if kind not in self.run.asked_before}

        stubbed, scrambled = unasked("stubbed"), unasked("scrambled")
        if not (stubbed or scrambled) or not self._launches_are_needed():
            return None
        if stubbed:
            self.run.asked_before.update(stubbed)
            for stub in ("silent", "raising"):
                if self._right(How(stub=stub)).rule is None:
                    return "stubbed", _STUBBED[stub]
        # A case that can't tell leaves the question to the next one of its kind.
        # The numbers of an expanded tensor are one in memory, and have one sign.
        has_signs = not self.values.case.layout.is_expanded
        if scrambled and has_signs and all(map(self._tells_signs, range(_DRAWS_TO_TELL))):
            self.run.asked_before.update(scrambled)
            calls = (self._right(How(stub="scrambled")) for _ in range(_SCRAMBLED_CALLS))
            if all(verdict.rule is None for verdict in calls):
                return "stubbed", _STUBBED["scrambled"]
        return None

    def _launches_are_needed(self) -> bool:
        """Return whether every output has elements that only a computation can get right.

        Zeros, a copy of an argument, and NaN where NaN is right need no launch: a buffer may hold
        them before the first launch, and launches add to a buffer of zeros.
        """
        bounds = self.values.bounds_of(self.kernel)
        for name, change in self._changes().items():
            limit = bounds[name].deterministic
            needed = change.isfinite() & (change.abs() > limit)
            or_nan = bounds[name].or_nan
            if or_nan is not None:
                needed &= ~or_nan
            if not bool(needed.any()) or any(
                bool(((change - argument.to(change)).abs() <= limit).all())
                for argument in self._inputs.values()
                if isinstance(argument, Tensor) and argument.shape == change.shape
            ):
                return False
        return True

    def _copies(self) -> Finding | None:
        """Find outputs that launches only copy, if they hold most of the outputs' numbers.

        An output that doesn't depend on signs is left out: a launch computes it rightly.
        """
        kernel, outputs = self.kernel, self.first.outputs
        if kernel.origin == "baseline" or kernel.wraps is not None or not self.first.launches:
            return None
        kind = "handed", kernel.op.name, kernel.name, self.values.case.dtype_label
        if kind in self.run.asked_before:
            return None
        telling = {name for name, count in self._telling(0).items() if count}
        if not telling:
            return None
        self.run.asked_before.add(kind)
        for _ in range(_SCRAMBLED_CALLS):
            call = self._call(How(stub="handed"))
            if call.rule is not None:
                return None
            telling &= {name for name in call.replaced if self._is_right_in(name, call)}
            numbers = sum(outputs[name].numel() for name in telling)
            if 2 * numbers <= sum(map(Tensor.numel, outputs.values())):
                return None
        return "stubbed", _COPIED.format(names=" and ".join(sorted(telling)))

    def _is_right_in(self, name: str, call: Call) -> bool:
        """Return True if this call's output of that name is right in place of the first call's."""
        only = replace(self.first, outputs=self.first.outputs | {name: call.outputs[name]})
        return self._judged(only, only).rule is None

    def _tells_signs(self, number: int) -> bool:
        """Return True if this draw of signs makes at least 64 elements wrong."""
        return sum(self._telling(number).values()) >= _FEWEST_TO_TELL

    def _telling(self, number: int) -> dict[str, int]:
        """Count, by output, the elements that depend on signs and can't be right by chance.

        They lie well beyond their bounds from zeros, and from the truth of inputs with other signs,
        the draw of this number. Softmax of numbers near 0 has none.
        """
        bounds, truth = self.values.bounds_of(self.kernel), self.values.exact()
        case = self.values.case
        turned = self.kernel.op.oracle(case, _with_signs(case, self._inputs, number))
        telling = dict.fromkeys(self.first.outputs, 0)
        for name, change in self._changes().items():
            least, other, exact = 4 * bounds[name].deterministic, turned[name], truth[name]
            assert other is not None
            assert exact is not None
            telling[name] = int(((change.abs() > least) & ~((other - exact).abs() <= least)).sum())
        return telling

    def _changes(self) -> dict[str, Tensor]:
        """Return the truth of each output, minus its earlier value if it is updated in place.

        A launch that stores the earlier value looks like one that stored nothing.
        """
        truth, changes = self.values.exact(), {}
        for name in self.first.outputs:
            exact = truth[name]
            if exact is not None:
                before = optional(self._inputs, name) if name in self.kernel.op.updates else None
                changes[name] = exact if before is None else exact - before.to(exact)
        return changes

    def _configurations(self) -> Finding | None:
        """Find a wrong configuration of an autotuned kernel."""
        count = self.first.configurations
        if not self.run.every_configuration or count < 2:
            return None
        for number in range(count):
            verdict = self._right(How(configuration=number))
            if verdict.rule is not None:
                return verdict.rule, f"tuned to configuration {number} of {count}: {verdict.reason}"
        return None

    def _races(self) -> Finding | None:
        """Find a call that differs or is wrong while another stream keeps the SMs busy."""
        if self.run.device.type != "cuda" or not self.kernel.numerics.bitwise_repeatable:
            return None
        if not self._first_of("raced", self.declared.variant):
            return None
        for _ in range(_BUSY_CALLS[self.values.case.tier]):
            verdict = self._judged(self.first, self._call(How(busy=True)))
            if verdict.rule is not None:
                return verdict.rule, f"beside a busy stream: {verdict.reason}"
        return None

    def _as_users_call(self) -> Finding | None:
        """Find a call that is wrong in a process without the suites' code."""
        call = self.plain
        if call is None:
            case, workers = self.values.case, self.run.runner
            kind = self.run.plain_kind(self.kernel, case)
            if kind is None:
                return None
            self.run.asked_before.add(kind)
            assert isinstance(workers, Workers)
            call = workers.call_plainly(self.kernel, case, self._inputs)
        verdict = self._judged(call, call)
        if verdict.rule is None:
            return None
        return verdict.rule, f"called as a user calls it, without the suites: {verdict.reason}"

    def _repeated(self) -> tuple[str, ...]:
        """Call a kernel that grows more often; return notes on growth that goes on."""
        grows = _keeps([self.second]) or _does_more([self.first, self.second])
        if not grows or not self._first_of("grown", self.declared.variant):
            return ()
        calls: list[Call] = []
        while len(calls) < _MORE_CALLS and (_keeps(calls) or _does_more(calls)):
            call = self._call()
            if call.rule is not None:
                return ()
            calls.append(call)
        notes = []
        if _keeps(calls):
            least = min(call.kept_bytes or 0 for call in calls)
            notes.append(f"keeps {least:,} bytes more after each of {_MORE_CALLS} more calls")
        if _does_more(calls):
            notes.append(
                f"does more at each call: {_work(calls[0])} launches and operations of PyTorch at "
                f"the first of {_MORE_CALLS} more calls, {_work(calls[-1])} at the last"
            )
        return tuple(notes)

    def _on_secret_values(self) -> Verdict | None:
        """Judge the kernel on values drawn from the case's secret; return a failure or None.

        Part of a run's cases is tried so, and each case if the options name the secret, so that a
        failure comes again.
        """
        run, kernel = self.run, self.kernel
        always = run.signs is not None or run.further >= 1
        if not run.apart or not (always or self.values.secret < run.further * _SECRETS):
            return None
        for other in self.values.draw_others(both=always):
            if run.refusal(kernel, other.case) is not None:
                continue
            again = run.call_then(kernel, self.values, other, "call")
            if again is not None and again.rule is None and self._on(other, again).rule is None:
                continue
            call = run.call(kernel, other, "nan")
            verdict = self._on(other, call)
            if verdict.rule is not None:
                return replace(verdict, reason=f"{DRAWN}: {verdict.reason}")
            if again is not None and (verdict := self._on(other, again)).rule is not None:
                return replace(verdict, reason=f"{LATER}: {verdict.reason}")
        return None

    def _on(self, values: CaseValues, call: Call) -> Verdict:
        """Judge a call on further values."""
        if call.rule is not None:
            return judge(call, call, {}, {}, self.kernel.numerics)
        return self.run.judged_by(self.kernel, values)(call, call)

    def _in_a_graph(self) -> Finding | None:
        """Find a call whose CUDA graph is wrong after the memory of its inputs got other values.

        A call that can't be captured, because it reads numbers on the host, gets a note and doesn't
        fail.
        """
        run, kernel = self.run, self.kernel
        is_asked = run.apart and run.device.type == "cuda" and kernel.origin != "baseline"
        if not is_asked or not self._first_of("replayed", self.declared.variant):
            return None
        other = self.values.of_seed(self.values.secret)
        if _numbers(other.originals.read()) != _numbers(self._inputs):
            return None  # they are part of the graph
        call = run.call_then(kernel, self.values, other, "replay")
        if call is None:
            return None
        if call.rule == NOT_CAPTURED:
            self.notes += (f"can't be part of a CUDA graph: {call.reason}",)
            return None
        self.captured = call.launches
        verdict = self._on(other, call)
        if verdict.rule is None:
            return None
        stale = STALE if are_equal(call.outputs, self.first.outputs) else ""
        return verdict.rule, f"{REPLAYED}: {verdict.reason}{stale}"


def are_equal(outputs: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Return True if outputs have the same elements, NaN equal to NaN."""
    return outputs.keys() == others.keys() and all(
        torch.allclose(output, others[name], rtol=0, atol=0, equal_nan=True)
        for name, output in outputs.items()
    )


def _numbers(inputs: Inputs) -> dict[str, object]:
    """Return the arguments that aren't tensors."""
    return {name: value for name, value in inputs.items() if not isinstance(value, Tensor)}


def _with_signs(case: Case, inputs: Inputs, number: int) -> Inputs:
    """Return the inputs with random signs, drawn from the case and this number."""

    def turned(name: str, tensor: Tensor) -> Tensor:
        draw = generator(tensor.device, "signs", number, case.id(), name)
        drawn = torch.rand(tensor.shape, generator=draw, device=tensor.device)
        return torch.where(drawn < _HALF, tensor, -tensor)

    return {
        name: turned(name, value)
        if isinstance(value, Tensor) and value.is_floating_point()
        else value
        for name, value in inputs.items()
    }


def _keeps(calls: list[Call]) -> bool:
    return all((call.kept_bytes or 0) > 0 for call in calls)


def _does_more(calls: list[Call]) -> bool:
    return all(_work(call) < _work(following) for call, following in pairwise(calls))


def _work(call: Call) -> int:
    return (call.launches or 0) + (call.operations or 0)
