"""`nox -s profile` as a user meets it where there is no GPU, what it would run, and its check."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.profiles.traces import Missing
from kernel_workbench.reports.record import Spread, Window
from kernel_workbench.suites.profile import suite
from kernel_workbench.suites.profile.cases import distributions_of, profiled_kernels
from kernel_workbench.suites.profile.figures import window_of
from kernel_workbench.suites.profile.loop_request import Card, zero
from kernel_workbench.suites.profile.windows import measure
from kernel_workbench.suites.run.option_table import ProfileOptions
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from studies.power_check import checks
from tests.builders.commands import run_python
from tests.builders.synthetic_traces import constant, synthetic
from tests.suites.profile.test_trials import _reply

# The cases of the ops that there are kernels of ours for.
CASES = tuple(
    case
    for op in dict.fromkeys(each.op.name for each in all_kernels() if each.origin == "ours")
    for case in OPS[op].workloads.profiled
)
IDLE = Window(4.0, energy_counter_j=400.0)


def _run(*options: str, results: Path) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pytest", "kernel_workbench/suites/profile", f"--results={results}", *options)
    quiet = {"PYTEST_ADDOPTS": "--no-header --no-summary --tb=short -qq -p no:cacheprovider"}
    return run_python(*command, variables=os.environ | quiet | {"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize("options", [(), ("--device=cpu",)])
def test_machine_without_gpu_is_refused_in_a_sentence(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """The sentence says what is needed; the exit status is 4, and there is no record."""
    ran = _run(*options, results=tmp_path)
    assert ran.returncode == 4
    assert "power is read of an NVIDIA GPU" in ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_options_are_told_without_a_gpu(tmp_path: Path) -> None:
    """--help needs none."""
    ran = _run("--help", results=tmp_path)
    assert ran.returncode == 0
    for option in ("--window", "--trials", "--distribution", "--hash-uuid"):
        assert option in ran.stdout


def test_eight_kernels_run_by_default() -> None:
    """Ours that dispatch takes and its peers, of three ops."""
    kernels = all_kernels()
    options = ProfileOptions()
    chosen = profiled_kernels(options, kernels, CASES, 90)
    names = [each.name for case in CASES for each in chosen[case.id()]]
    assert len(names) == 8
    assert [chosen[case.id()][0].origin for case in CASES] == ["ours"] * 3
    assert all(each.origin == "baseline" for of in chosen.values() for each in of[1:])


def test_kernels_of_one_name_are_listed_for_each_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header lists PyTorch's kernel of every planned op."""
    card = Card("GPU-00000000-synthetic", None, 90, 2**20)
    monkeypatch.setattr(suite, "_card", lambda *_: card)
    monkeypatch.setattr(Workers, "kernels", lambda _: all_kernels())
    monkeypatch.setattr(Workers, "refusal", lambda *_: None)
    run = suite.Profile(ProfileOptions(kernel=("torch_eager",)), torch.device("cpu"))
    planned = {(kernel.op.name, kernel.name) for kernel, _ in run.plan()}
    assert {(kernel.op.name, kernel.name) for kernel in run.kernels} == planned
    assert len({op for op, _ in planned}) > 1


def test_zeros_are_tried_where_arithmetic_draws_the_power() -> None:
    """Attention by default on both, layer norm on normal alone; what is asked for is taken."""
    by_default = {case.op: distributions_of((), case) for case in CASES}
    assert by_default == {
        "layer_norm_backward": ("normal",),
        "attention_forward": ("normal", "zeros"),
        "attention_backward": ("normal", "zeros"),
    }
    assert distributions_of(("zeros",), CASES[0]) == ("zeros",)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_zeros_leave_outputs_finite(case: object) -> None:
    """Operands are zero, and what a forward pass has kept of a row isn't."""
    assert case in CASES
    of = next(each for each in CASES if each == case)
    sizes = {"m": 4, "n": 8, "b": 1, "h_q": 1, "h_kv": 1, "s_q": 8, "s_kv": 8, "d": 16, "d_v": 16}
    small = replace(
        of,
        sizes=tuple((name, sizes[name]) for name, _ in of.sizes),
        dtype=torch.float32,
        weight_dtype=torch.float32,
    )
    op = OPS[of.op]
    inputs = op.inputs(small, torch.device("cpu"))
    zero(op, inputs)
    outputs = op.oracle(small, inputs)
    assert all(each is None or torch.isfinite(each).all() for each in outputs.values())
    operands = [inputs["x"]] if "x" in inputs else [inputs["q"], inputs["v"]]
    assert not any(torch.any(each) for each in operands if isinstance(each, torch.Tensor))


def test_check_holds_for_a_gpu_that_tells_the_truth() -> None:
    """All that is checked, on a made-up trace."""
    trace = synthetic(constant(690.0), capped=lambda _: True)
    found = list(checks(window_of(trace, _reply(1000.0, 5.5), 1.5), IDLE, 0.001))
    assert [each.name for each in found if not each.holds] == []
    assert len(found) == 4


def test_check_finds_what_does_not_hold() -> None:
    """A counter that is off, reasons that aren't those counted, a sampler that costs 2 %."""
    trace = synthetic(constant(120.0), capped=lambda at_s: at_s > 3)
    window = window_of(trace, _reply(1000.0, 5.5), 1.5)
    assert window.energy_counter_j is not None
    wrong = replace(
        window,
        energy_counter_j=1.03 * window.energy_counter_j,
        reasons_polled={"SW power cap": 1.0},
    )
    assert [each.holds for each in checks(wrong, IDLE, 0.02)] == [False] * 4


def test_check_of_a_gpu_that_tells_nothing_does_not_hold() -> None:
    """A figure that is missing is no proof; its reason is shown."""
    bare = measure(replace(synthetic(constant(1.0)), samples=()), 1000.0, 1005.0).window
    window = replace(
        window_of(synthetic(constant(1.0)), _reply(1000.0, 5.5), 1.5),
        energy_counter_j=None,
        reasons_s={},
        power_w=None,
        missing={"energy_counter_j": "mig: the board's power is shared"},
    )
    found = list(checks(window, bare, Missing("no samples", "none were taken")))
    assert [each.holds for each in found] == [False] * 4
    assert "mig: " in found[0].result


def test_spread_of_idle_samples_stands_in_for_a_counter() -> None:
    """Where idle has no ticks the mean of the samples is taken."""
    sampled = Window(1.0, power_w=Spread(80.0, 80.0, 80.0, 80.0, 80.0))
    window = window_of(synthetic(constant(690.0)), _reply(1000.0, 5.5), 1.5)
    assert list(checks(window, sampled, 0.0))[-1].result.startswith("80 W to ")
