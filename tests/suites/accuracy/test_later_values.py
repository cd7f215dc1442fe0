"""Kernels are called on other values in the same memory, and replayed in a CUDA graph on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel, load_file
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.trial import LATER, STALE, Trial
from kernel_workbench.suites.sandbox.call import NOT_CAPTURED, Call
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.parcels import Parcel, Unpacked, make_arena
from kernel_workbench.suites.sandbox.worker_side.candidate import Captured, replay_candidate
from tests import ROOT

_CPU = torch.device("cpu")
_FILE = ROOT / "tests" / "candidates" / "planted" / "kept_by_address.py"
_PAIRS = {
    "keeps_targets": ("reads_targets", "cross_entropy_forward-m12-n64-float32-contiguous"),
    "keeps_losses": ("reads_targets", "cross_entropy_forward-m12-n64-float32-contiguous"),
    "keeps_weight": ("reads_weight", "rms_norm_forward-m12-n64-float32-contiguous"),
    "keeps_tables": ("reads_tables", "rope_forward-s12-h3-p32-float32-contiguous"),
}


def _case(name: str) -> Case:
    made = case_named(OPS[name.partition("-")[0]], name)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Start workers that have the file."""
    made = Workers(_CPU, 90, files=(_FILE,))
    made.kernels()
    yield made
    made.close()


@pytest.fixture(scope="module")
def registered() -> dict[str, Kernel]:
    """Return the file's kernels in this process, by name."""
    return {each.name: each for each in load_file(_FILE)}


def _known_as(workers: Workers, name: str) -> Kernel:
    return next(each for each in workers.kernels() if each.name == name)


@pytest.mark.parametrize("wrong", _PAIRS)
def test_kernel_that_keeps_numbers_by_address_fails(wrong: str, workers: Workers) -> None:
    """It is right on its first values, and its twin is right on both."""
    right, name = _PAIRS[wrong]
    run = Run(_CPU, 90, workers=workers, signs=7)
    row = run.try_pair(_known_as(workers, wrong), _case(name))
    assert row.status == "failed"
    assert (row.reason or "").startswith(LATER)
    row = run.try_pair(_known_as(workers, right), _case(name))
    assert (row.status, row.reason) == ("passed", None)


def _unpacked(case: Case, seed: int) -> Unpacked:
    op = OPS[case.op]
    parcel = Parcel.of(op.inputs(case_of_seed(case, seed), _CPU), _CPU)
    arena = make_arena(parcel.nbytes, _CPU)
    return Unpacked(arena, parcel.put(arena), op.updates, _CPU)


def case_of_seed(case: Case, seed: int) -> Case:
    """Return the case with other values."""
    made = case_named(OPS[case.op], f"{case.id()}-seed{seed}" if seed else case.id())
    assert made is not None
    return made


def _graph(call: Callable[[], object], _: torch.device) -> Captured:
    """Stand for a CUDA graph of 3 kernels: a replay computes into the tensor that it returned."""
    returned = call()

    def replay() -> None:
        again = call()
        assert isinstance(returned, Tensor)
        assert isinstance(again, Tensor)
        returned.copy_(again)

    return returned, replay, 3


@pytest.mark.parametrize(("name", "is_right"), [("reads_weight", True), ("keeps_weight", False)])
def test_replay_is_of_the_values_that_memory_holds_then(
    name: str, registered: dict[str, Kernel], *, is_right: bool
) -> None:
    """A kernel that kept the first values returns their output."""
    case = _case(_PAIRS["keeps_weight"][1])
    op, kernel = OPS[case.op], registered[name]
    given, other = _unpacked(case, 0), _unpacked(case, 5)
    kernel.function(**given.arguments)
    call = replay_candidate(kernel, case, given, other, _graph)
    assert call.rule is None, call.reason
    assert call.launches == 3
    later = case_of_seed(case, 5)
    truth = op.oracle(later, op.inputs(later, _CPU))["y"]
    assert truth is not None
    assert torch.allclose(call.outputs["y"].double(), truth, rtol=1e-5, atol=1e-5) == is_right


def test_kernel_that_cannot_be_captured_breaks_no_rule_of_a_row(
    registered: dict[str, Kernel],
) -> None:
    """Where a capture raises, the call says so, and its process isn't used again."""
    case = _case(_PAIRS["keeps_weight"][1])
    kernel = registered["reads_weight"]

    def refuses(_call: Callable[[], object], _device: torch.device) -> Captured:
        raise RuntimeError("operation not permitted when stream is capturing")

    call = replay_candidate(kernel, case, _unpacked(case, 0), _unpacked(case, 5), refuses)
    assert call.rule == NOT_CAPTURED
    assert call.spent


@pytest.mark.parametrize("is_stale", [True, False])
def test_replay_that_repeats_the_earlier_outputs_is_said_to(*, is_stale: bool) -> None:
    """A launch on a stream of its own isn't captured, and a replay does nothing."""
    before = {"y": torch.tensor([1.0, torch.nan])}
    later = before if is_stale else {"y": torch.tensor([2.0, torch.nan])}
    after = Call(later, 0.1, launches=3)
    sets = SimpleNamespace(originals=SimpleNamespace(read=dict), secret=5)
    run = SimpleNamespace(apart=True, device=torch.device("cuda"), call_then=lambda *_: after)
    trial = SimpleNamespace(
        run=run,
        kernel=SimpleNamespace(origin="user"),
        declared=SimpleNamespace(variant=None),
        first=Call(before, 0.1),
        values=SimpleNamespace(secret=5, of_seed=lambda _: sets),
        _inputs={},
        _first_of=lambda *_: True,
        _on=lambda *_: SimpleNamespace(rule="deterministic bound", reason="y[0]: got 1"),
    )
    finding = Trial._in_a_graph(trial)  # type: ignore[arg-type]
    assert finding is not None
    assert (STALE in finding[1]) == is_stale
    assert trial.captured == 3
