"""Tasks: what a module of the suites does with a kernel in a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel

MODULE = "tests.builders.tasks"
CASE = layer_norm_case(3, 5, (torch.float32, torch.float32))
EAGER = next(
    each for each in all_kernels() if each.name == "torch_eager" and each.op is LAYER_NORM_BACKWARD
)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Workers that know the task of the tests."""
    made = Workers(torch.device("cpu"), 90, tasks=(MODULE,))
    yield made
    made.close()


def _parcel() -> Parcel:
    return Parcel.of(LAYER_NORM_BACKWARD.inputs(CASE, torch.device("cpu")), torch.device("cpu"))


def _ask(
    workers: Workers,
    what: str = "call",
    kernel: Kernel = EAGER,
    *,
    outputs: bool = True,
    limit_s: float = 60.0,
) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    parcel = _parcel()
    settings = {"what": what, "outputs": outputs}
    return workers.task(kernel, CASE, [parcel, parcel], MODULE, settings, limit_s)


def test_task_returns_what_it_says_and_the_outputs(workers: Workers) -> None:
    """JSON, and the outputs that a call on the parcel's inputs has."""
    said, outputs = _ask(workers)
    assert (said["case"], said["on"]) == (CASE.id(), "cpu")
    expected = EAGER.function(**LAYER_NORM_BACKWARD.inputs(CASE, torch.device("cpu")))
    assert isinstance(expected, tuple)
    assert list(outputs) == list(LAYER_NORM_BACKWARD.outputs)
    for got, right in zip(outputs.values(), expected, strict=True):
        assert torch.equal(got, right)
    assert _ask(workers, outputs=False)[1] == {}


def test_task_has_each_parcel_in_memory_of_its_own(workers: Workers) -> None:
    """A parcel that is sent twice is unpacked twice, so that pointers can rotate."""
    addresses = _ask(workers)[0]["addresses"]
    assert isinstance(addresses, list)
    assert len(set(addresses)) == 2


def test_task_that_ends_or_hangs_is_a_sentence_and_the_next_one_goes_on(workers: Workers) -> None:
    """The process is lost, and nothing else."""
    with pytest.raises(TaskError, match="it ended its process, with status 3"):
        _ask(workers, "die")
    with pytest.raises(TaskError, match=r"it didn't return within 0.5 s"):
        _ask(workers, "hang", limit_s=0.5)
    with pytest.raises(TaskError, match="other outputs than the op's"):
        _ask(workers, "other outputs")
    assert _ask(workers)[1]


def test_task_of_a_module_that_workers_were_not_told_of_is_refused(workers: Workers) -> None:
    """Nothing is imported for a task once a candidate may have been."""
    with pytest.raises(ValueError, match="os isn't among the modules"):
        workers.task(EAGER, CASE, [_parcel()], "os", {}, 1.0)
