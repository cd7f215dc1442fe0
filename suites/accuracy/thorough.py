"""What is asked of a kernel beyond two right calls, once that is established.

- With its Triton launches stubbed out it must be wrong: else something else computes its outputs.
  Tried once for each dtype and set of options.
- Each configuration that an autotuned kernel may take must be right, not the fastest alone. In
  `full`.
- The case's metamorphic relations hold, and the properties that the kernel declares: of the bits
  that don't depend on the rows beside a row, or on the number of SMs.
- On a GPU its bits must be the same while another stream keeps the SMs busy, if it says that it is
  repeatable: a race is rarely lost on an idle GPU. Once for each dtype and variant.
- What keeps more memory or does more at the second call is called more often, and told of where
  that goes on. It fails nothing.
- In a process that nothing of the suites is in it must be right, too (plainly.py). On a small
  packed case, once, and on a CPU once for each dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kernels.registry import Kernel
from oracles.op import CONTIGUOUS, Bound, Case, Inputs, Outputs
from reports.schema import Rule, Tried
from suites.accuracy import invariance, relations, repetition
from suites.accuracy.candidate import PLAIN, Call, How
from suites.accuracy.plainly import MOST_BYTES as MOST_BYTES_AS_TEXT
from suites.accuracy.verdict import Verdict
from suites.accuracy.watching import Stub

_STUBBED: dict[Stub, str] = {
    "silent": "its outputs are right with each of its Triton launches made to do nothing: they are "
    "computed elsewhere",
    "raising": "its outputs are right with each of its Triton launches made to fail: it falls back "
    "to something else without a word",
    "scrambled": "its outputs are right where each of its Triton launches read its numbers with "
    "random signs: they are computed elsewhere",
}
_FEWEST_TO_TELL = 64  # elements, of which signs leave all right with a chance of 2^-64
_BUSY_CALLS = {"ci": 4, "full": 10}

MOST_BYTES = 2**26  # of a case, above which one call is a matter of seconds

Finding = tuple[Rule, str]


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel that was right twice on a case.

    call_on  (case, inputs, how) -> a call on copies of these inputs
    bounds   (case, inputs) -> the kernel's bounds there
    serves   whether the kernel's domain holds a case
    judged   the verdict on two calls on the case's own inputs
    plainly  a call on them in a process that the suites aren't in; None: there is none
    """

    kernel: Kernel
    case: Case
    variant: str | None
    inputs: Inputs
    first: Call
    second: Call
    truth: Outputs
    call_on: Callable[[Case, Inputs, How], Call]
    bounds: Callable[[Case, Inputs], dict[str, Bound]]
    serves: Callable[[Case], bool]
    judged: Callable[[Call, Call], Verdict]
    plainly: Callable[[], Call] | None = None

    def call(self, how: How) -> Call:
        """A call on the same values as the first time, in a certain way."""
        return self.call_on(self.case, self.inputs, how)

    def right(self, call: Call) -> Verdict:
        """The verdict on one call alone."""
        return self.judged(call, call)


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of it. broken: the first rule that the kernel breaks after all, and a sentence.

    notes: what is told of the kernel, and fails nothing.
    """

    broken: Finding | None = None
    relations: tuple[Tried, ...] = ()
    invariance: tuple[Tried, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Thorough:
    """What of this has been asked so far in a run."""

    on_gpu: bool
    every_configuration: bool
    _stubbed: set[object] = field(default_factory=set)
    _raced: set[object] = field(default_factory=set)
    _grown: set[object] = field(default_factory=set)
    _plain: set[object] = field(default_factory=set)

    def ask(self, pair: Pair) -> Asked:
        """Everything; what needs a small case is left out of a large one."""
        if pair.kernel.op.bytes(pair.case) > MOST_BYTES:
            return Asked()
        related = relations.examine(
            pair.kernel,
            pair.case,
            pair.inputs,
            pair.first.outputs,
            lambda case, inputs: pair.call_on(case, inputs, PLAIN),
            pair.bounds,
            serves=pair.serves,
        )
        properties = invariance.examine(
            pair.kernel,
            pair.case,
            pair.inputs,
            pair.first.outputs,
            lambda case, inputs: pair.call_on(case, inputs, PLAIN),
            partial(_told, pair),
            serves=pair.serves,
        )
        broken = (
            self._without_launches(pair)
            or _unrelated(related)
            or (None if properties.broken is None else ("invariance", properties.broken))
            or self._configurations(pair)
            or self._races(pair)
            or self._as_users_call(pair)
        )
        return Asked(broken, related, properties.tried, self._repeated(pair))

    def _first_of(self, asked: set[object], pair: Pair, by: object) -> bool:
        """Whether the kernel wasn't asked yet in this dtype, with the same `by`."""
        kernel, case = pair.kernel, pair.case
        kind = kernel.op.name, kernel.name, case.dtype_label, by
        if kind in asked:
            return False
        asked.add(kind)
        return True

    def _without_launches(self, pair: Pair) -> Finding | None:
        if pair.kernel.origin == "baseline" or not pair.first.launches:
            return None
        truths = (pair.truth[name] for name in pair.first.outputs)
        values = [each for each in truths if each is not None]
        if not all(bool((each != 0).any()) for each in values):
            return None  # zeros need no kernel
        if not self._first_of(self._stubbed, pair, pair.case.options):
            return None
        for stub, sentence in _STUBBED.items():
            if stub == "scrambled" and not _tells_signs(pair):
                continue
            if pair.right(pair.call(How(stub=stub))).rule is None:
                return "stubbed", sentence
        return None

    def _configurations(self, pair: Pair) -> Finding | None:
        count = pair.first.configurations
        if not self.every_configuration or count < 2:
            return None
        for number in range(count):
            verdict = pair.right(pair.call(How(configuration=number)))
            if verdict.rule is not None:
                return verdict.rule, f"tuned to configuration {number} of {count}: {verdict.reason}"
        return None

    def _races(self, pair: Pair) -> Finding | None:
        repeatable = pair.kernel.numerics.bitwise_repeatable
        if not self.on_gpu or not repeatable:
            return None
        if not self._first_of(self._raced, pair, pair.variant):
            return None
        for _ in range(_BUSY_CALLS[pair.case.tier]):
            verdict = pair.judged(pair.first, pair.call(How(busy=True)))
            if verdict.rule is not None:
                return verdict.rule, f"beside a busy stream: {verdict.reason}"
        return None

    def _repeated(self, pair: Pair) -> tuple[str, ...]:
        if not repetition.grows(pair.first, pair.second):
            return ()
        if not self._first_of(self._grown, pair, pair.variant):
            return ()
        return repetition.notes(lambda: pair.call(PLAIN))

    def _as_users_call(self, pair: Pair) -> Finding | None:
        case, op = pair.case, pair.kernel.op
        if pair.plainly is None or pair.kernel.origin == "baseline":
            return None
        if case.layout != CONTIGUOUS or op.bytes(case) > MOST_BYTES_AS_TEXT:
            return None
        kind = op.name, pair.kernel.name, None if self.on_gpu else case.dtype_label
        if kind in self._plain:
            return None
        self._plain.add(kind)
        verdict = pair.right(pair.plainly())
        if verdict.rule is None:
            return None
        return verdict.rule, f"called as a user calls it, without the suites: {verdict.reason}"


def _tells_signs(pair: Pair) -> bool:
    """Whether outputs of other numbers would be wrong: many are well beyond their own bounds."""
    bounds = pair.bounds(pair.case, pair.inputs)
    telling = 0
    for name in pair.first.outputs:
        exact = pair.truth[name]
        if exact is not None:
            telling += int((exact.abs() > 4 * bounds[name].deterministic).sum())
    return telling >= _FEWEST_TO_TELL


def _told(pair: Pair, case: Case, inputs: Inputs, count: int) -> tuple[Call, bool]:
    """A call of a kernel that is told of so many SMs, and whether it asked."""
    call = pair.call_on(case, inputs, How(multiprocessors=count))
    return call, call.asked


def _unrelated(found: tuple[Tried, ...]) -> Finding | None:
    for each in found:
        if not each.holds:
            return "metamorphic relation", f"{each.name}: {each.reason}"
    return None
