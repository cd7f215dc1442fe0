"""What is asked of a kernel beyond two right calls, once that is established.

- With its Triton launches stubbed out it must be wrong: else something else computes its outputs.
  Tried once for each dtype and set of options.
- Each configuration that an autotuned kernel may take must be right, not the fastest alone. In
  `full`.
- On a GPU its bits must be the same while another stream keeps the SMs busy, if it says that it is
  repeatable: a race is rarely lost on an idle GPU. Once for each dtype and set of options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kernels.registry import Kernel
from oracles.op import Case, Outputs
from reports.schema import Rule
from suites.accuracy.candidate import Call, How
from suites.accuracy.verdict import Verdict
from suites.accuracy.watching import Stub

_STUBBED: dict[Stub, str] = {
    "silent": "its outputs are right with each of its Triton launches made to do nothing: they are "
    "computed elsewhere",
    "raising": "its outputs are right with each of its Triton launches made to fail: it falls back "
    "to something else without a word",
}
_BUSY_CALLS = {"ci": 4, "full": 20}

Finding = tuple[Rule, str]


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel that was right twice on a case.

    call   on the same values as the first time, in a certain way
    right  the verdict on such a call alone; twice: on two calls together
    """

    kernel: Kernel
    case: Case
    first: Call
    truth: Outputs
    call: Callable[[How], Call]
    right: Callable[[Call], Verdict]
    twice: Callable[[Call, Call], Verdict]


@dataclass(slots=True)
class Thorough:
    """What of this has been asked so far in a run."""

    on_gpu: bool
    every_configuration: bool
    _stubbed: set[object] = field(default_factory=set)
    _raced: set[object] = field(default_factory=set)

    def check(self, pair: Pair) -> Finding | None:
        """The rule that the kernel breaks after all, and a sentence; None where it breaks none."""
        return self._without_launches(pair) or self._configurations(pair) or self._races(pair)

    def _first_of(self, asked: set[object], pair: Pair) -> bool:
        """Whether the kernel wasn't asked yet in this dtype, with these options."""
        kernel, case = pair.kernel, pair.case
        kind = kernel.op.name, kernel.name, case.dtype_label, case.options
        if kind in asked:
            return False
        asked.add(kind)
        return True

    def _without_launches(self, pair: Pair) -> Finding | None:
        if pair.kernel.origin == "baseline" or not pair.first.launches:
            return None
        values = [each for each in pair.truth.values() if each is not None]
        if not all(bool((each != 0).any()) for each in values):
            return None  # zeros need no kernel
        if not self._first_of(self._stubbed, pair):
            return None
        for stub, sentence in _STUBBED.items():
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
        if not self.on_gpu or not repeatable or not self._first_of(self._raced, pair):
            return None
        for _ in range(_BUSY_CALLS[pair.case.tier]):
            verdict = pair.twice(pair.first, pair.call(How(busy=True)))
            if verdict.rule is not None:
                return verdict.rule, f"beside a busy stream: {verdict.reason}"
        return None
