"""A kernel says of many cases at once what it says of each alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.sandbox.call import Declared
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests.suites.sandbox.test_tasks import CASE

pytestmark = pytest.mark.long_run

# The kernel ends its process for 7 rows, raises for 8, and replaces code of the suites for 9. It
# serves other even numbers of rows, and refuses odd ones.
_FILE = """
import os, sys, torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

def _also(case):
    m = case.size("m")
    if m == 7:
        os._exit(3)
    if m == 9:
        sys.modules["kernel_workbench.suites.sandbox.worker_side.watch"].seen = print
    return "of an odd number of rows" if m % 2 else None

def _variant(case, sm):
    if case.size("m") == 8:
        raise ValueError("eight")
    return f"of {case.size('m')}"

@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), also=_also), variant=_variant)
def asked(dy, x, weight, mean, rstd):
    return None
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel whose answers differ by the number of rows."""
    path = tmp_path_factory.mktemp("asked") / "asked.py"
    path.write_text(_FILE)
    return path


@pytest.fixture
def workers(file: Path) -> Iterator[Workers]:
    """Workers that have been asked nothing."""
    made = Workers(torch.device("cpu"), 90, files=(file,))
    yield made
    made.close()


def _case(rows: int) -> Case:
    return replace(CASE, sizes=(("m", rows), ("n", 5)))


def _asked(workers: Workers) -> Kernel:
    return next(kernel for kernel in workers.kernels() if kernel.name == "asked")


def test_answers_to_many_questions_are_those_to_each_alone(workers: Workers) -> None:
    """A refusal, a variant, an error, an end of the process, and code that is replaced."""
    kernel, cases = _asked(workers), [_case(rows) for rows in range(1, 12)]
    for case in cases:
        workers.declared(kernel, case)
    alone = dict(workers._answers)
    workers._answers.clear()
    workers.learn(kernel, cases)
    assert workers._answers == alone
    answers = {case.size("m"): workers.declared(kernel, case) for case in cases}
    assert answers[4] == Declared(variant="of 4")
    assert answers[5].refusal == "of an odd number of rows"
    assert "status 3" in str(answers[7].problem)
    assert "eight" in str(answers[8].problem)
    assert [rows for rows, answer in answers.items() if answer.rule == "replaced code"] == [9]


def test_many_questions_take_one_message(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do questions that are asked again none."""
    kernel, cases = _asked(workers), [_case(rows) for rows in range(20, 80)]
    messages = []
    exchange = Workers._exchange

    def counted(*arguments: object) -> object:
        messages.append(arguments)
        return exchange(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Workers, "_exchange", counted)
    workers.learn(kernel, cases)
    workers.learn(kernel, cases)
    assert [workers.refusal(kernel, case) is None for case in cases] == [True, False] * 30
    assert len(messages) == 1
