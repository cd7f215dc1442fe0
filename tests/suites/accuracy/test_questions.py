"""Checks that a kernel gets once in a run of several processes, and cases that twins share."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.accuracy.questions import Questions
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.suite import Accuracy
from kernel_workbench.suites.run.option_table import AccuracyOptions
from kernel_workbench.suites.sandbox.wire import spelled

_CPU = torch.device("cpu")
_TWINS = ("two_pass_fp32", "two_pass_tf32")


def test_processes_of_a_run_share_what_they_asked(tmp_path: Path) -> None:
    """A check is known to every process of the folder, until one gives it up."""
    one, other, alone = Questions(tmp_path), Questions(tmp_path), Questions()
    check = ("raced", "op", "kernel", "bfloat16", None)
    assert check not in one
    one.add(check)
    assert check in other
    assert check not in alone
    other.update([("raced", "op", "kernel", "bfloat16", "variant")])
    assert sum(1 for path in tmp_path.iterdir() if path.is_file()) == 2
    one.discard(check)
    assert check not in Questions(tmp_path)


_USERS = """
import torch
from kernel_workbench import ATTENTION_DELTA, Domain, kernel

@kernel(ATTENTION_DELTA, Domain(dtypes=(torch.float32,)))
def users(out, do):
    return ((out.double() * do.double()).sum(-1).transpose(1, 2).contiguous().float(),)
"""


def test_process_that_takes_families_shares_its_checks(tmp_path: Path) -> None:
    """A process with a share of its own asks for itself, so that a CPU's runs are alike.

    So does one that calls a user's kernel, which could write to the folder.
    """
    case = next(case for case in OPS["attention_delta"].cases() if not case.options)
    file, cases = tmp_path / "users.py", tmp_path / "cases"
    file.write_text(_USERS)
    for family, files, folder in ((0, (), tmp_path), (None, (), None), (0, (str(file),), None)):
        cases.write_text(json.dumps(spelled(case) | {"share": 0, "family": family}))
        options = AccuracyOptions(
            op=("attention_delta",), kernels=files, planned_cases=str(cases), shard="0/2"
        )
        suite = Accuracy(options, _CPU)
        try:
            suite.plan()
            assert suite.judge.asked_before.folder == folder
        finally:
            suite.close()


@pytest.mark.parametrize(
    ("kind", "sm", "named", "served", "share"),
    [
        ("cuda", 90, False, 1, None),
        ("cuda", 90, True, 2, 1.0),
        ("cuda", 75, False, 1, 1.0),
        ("cpu", 90, False, 1, 1.0),
    ],
)
def test_fp32_and_tf32_share_generated_cases_on_a_gpu(
    kind: str, sm: int, served: int, share: float | None, *, named: bool
) -> None:
    """Each of these cases is tried in one of the two, unless the options name a kernel.

    An interpreter runs the same code for both, and tries all of them in fp32. So does a GPU that
    has no TF32. served: the kernels that a case is tried on; share: of the cases in fp32.
    """
    suite = Accuracy.__new__(Accuracy)
    suite._refusals = {}
    suite.judge = Run(torch.device(kind), sm, briefly=True)
    suite.judge.named = frozenset(_TWINS) if named else frozenset()
    suite.kernels = all_kernels()
    twins = [kernel for kernel in suite.kernels if kernel.name in _TWINS]
    in_fp32 = next(kernel for kernel in twins if kernel.name == _TWINS[0])
    assert len(twins) == 2
    cases = [
        case
        for case in in_fp32.op.cases()
        if case.tier == "ci" and suite.judge.refusal(in_fp32, case) is None
    ]

    def is_tried(kernel: Kernel, case: Case) -> bool:
        return suite.is_for(kernel, case) and suite.judge.refusal(kernel, case) is None

    generated = [case for case in cases if case.why == GENERATED]
    tried = Counter(sum(is_tried(kernel, case) for kernel in twins) for case in generated)
    assert set(tried) == {served}
    of_fp32 = sum(is_tried(in_fp32, case) for case in generated) / len(generated)
    assert of_fp32 == share if share is not None else 0.3 < of_fp32 < 0.7
    written = [case for case in cases if case.why != GENERATED]
    assert all(suite.is_for(kernel, case) for case in written for kernel in twins)
    other = replace(in_fp32, name="two_pass", same_code_as=None)
    assert all(suite.is_for(other, case) for case in cases)
