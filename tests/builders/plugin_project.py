"""A user's project of six tests, two of them wrong, for the pytest plugin."""

from __future__ import annotations

import subprocess

PROJECT = """
import pytest, torch
from kernel_workbench import RMS_NORM_FORWARD, SOFTMAX_FORWARD, Domain

FLOAT32 = Domain(dtypes=(torch.float32,), strides="contiguous", sizes={"n": (1, 64)})

@pytest.mark.kernel(SOFTMAX_FORWARD, FLOAT32, device="cpu")
def test_softmax(x):
    return torch.softmax(x, -1)

@pytest.mark.kernel("softmax_forward", FLOAT32, device="cpu")
def test_softmax_in_half(x):
    return torch.softmax(x.bfloat16(), -1).float()

@pytest.fixture
def factor():
    return 1.0

class TestNorm:
    @pytest.mark.kernel(RMS_NORM_FORWARD, FLOAT32, device="cpu")
    def test_norm(self, inputs, factor, case):
        assert case.op == "rms_norm_forward"
        x, weight, eps = inputs["x"], inputs["weight"], inputs["eps"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight * factor

    @pytest.mark.kernel(RMS_NORM_FORWARD, FLOAT32, device="cpu")
    def test_norm_that_changes_its_input(self, x, weight, eps):
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        x += 1
        return y

@pytest.mark.kernel  # a label of the project's own
def test_plain():
    assert True

def test_other():
    torch.testing.assert_close(torch.ones(2), torch.ones(2))
"""


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Assert that pytest's output has the verdicts of the project, in the words of a report."""
    assert done.returncode == 1, done.stdout + done.stderr
    _, _, summary = done.stdout.partition(" kernel-workbench ===")
    lines = summary.splitlines()
    assert any(line.startswith("test_mine.py::test_softmax: ") for line in lines)
    counts = {
        line.partition(": ")[0].rpartition("::")[2]: line.rpartition(", ")[2]
        for line in lines
        if " cases, " in line
    }
    assert counts["test_softmax"] == counts["test_norm"] == "0 wrong"
    assert counts["test_norm_that_changes_its_input"] != "0 wrong"
    assert counts["test_softmax_in_half"] != "0 wrong"
    assert "deterministic bound: y[" in summary
    assert ": changed input: x isn't what was passed" in summary
    failed = {line.split("[")[0] for line in lines if line.startswith("FAILED ")}
    assert failed == {
        "FAILED test_mine.py::test_softmax_in_half",
        "FAILED test_mine.py::TestNorm::test_norm_that_changes_its_input",
    }
