"""Runs of `suites/profile` from end to end, on a machine with no GPU whose sampler replays a trace.

A run takes some seconds that it sleeps through, so all start at once, and the tests read what they
left.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernel_workbench.profiles.traces import save
from kernel_workbench.reports.record import Record, latest, read
from tests.builders.commands import Running, wait_for
from tests.builders.synthetic_traces import constant, synthetic

pytestmark = pytest.mark.long_run

CASE = "layer_norm_backward-m9-n1024-float32-contiguous"
KERNELS = """
    import os, torch
    from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
    DOMAIN = Domain(dtypes=(torch.float32,))
    CALLS, KEPT = [], []

    def computed(dy, x, weight, mean, rstd):
        x_hat = (x - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
        g = dy * weight
        c1, c2 = (each.mean(-1, keepdim=True) for each in (g, g * x_hat))
        return (g - c1 - x_hat * c2) * rstd.unsqueeze(-1), (dy * x_hat).sum(0), dy.sum(0)

    @kernel(LAYER_NORM_BACKWARD, DOMAIN)
    def sound(dy, x, weight, mean, rstd):
        return computed(dy, x, weight, mean, rstd)

    @kernel(LAYER_NORM_BACKWARD, DOMAIN)
    def wrong(dy, x, weight, mean, rstd):
        dx, dweight, dbias = computed(dy, x, weight, mean, rstd)
        return dx * 1.01, dweight, dbias

    @kernel(LAYER_NORM_BACKWARD, DOMAIN)
    def gives_back_what_it_kept(dy, x, weight, mean, rstd):
        KEPT.append(computed(dy, x, weight, mean, rstd))
        return KEPT[-1] if len(KEPT) < 3 else KEPT[1]

    @kernel(LAYER_NORM_BACKWARD, DOMAIN)
    def dies_when_looped(dy, x, weight, mean, rstd):
        CALLS.append(1)
        if len(CALLS) > 4:
            os._exit(3)
        return computed(dy, x, weight, mean, rstd)
"""


@dataclass(slots=True)
class Started:
    """A run under way."""

    running: Running
    results: Path

    @property
    def done(self) -> subprocess.CompletedProcess[str]:
        """The result of the run's process."""
        return self.running.ended()

    @property
    def record(self) -> Record:
        """The one record that it left."""
        self.running.ended()
        return read(latest(self.results))


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs: whole, with one fault each, and one that Ctrl-C cut off."""

    whole: Started
    no_library: Started
    lost: Started
    cut: Started


def _start(folder: Path, name: str, *options: str, faults: str = "") -> Started:
    results = folder / name
    command = [
        "-m",
        "pytest",
        "kernel_workbench/suites/profile",
        "-p",
        "tests.builders.profile_on_cpu",
    ]
    command += ["-qq", "--no-header", "--no-summary", "--tb=short", "-p", "no:cacheprovider"]
    command += [f"--results={results}", "--device=cpu", "--window=2", f"--case={CASE}", *options]
    replayed = f"{folder / 'recorded.jsonl'}{faults}"
    variables = os.environ | {
        "TRITON_INTERPRET": "1",
        "WORKBENCH_REPLAYED": replayed,
        "TMPDIR": str(results),  # where traces are put
    }
    results.mkdir()
    return Started(Running(sys.executable, *command, variables=variables), results)


def _interrupt_in_trials(run: Started) -> None:
    """Ctrl-C in the second trial: after those of idle, of the sampler and of the first trial."""
    fourth = "kernel-workbench-*/trace-4.jsonl"
    wait_for(lambda: list(run.results.glob(fourth)), run.running)
    run.running.process.send_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Start all runs, and return them with what they leave."""
    folder = tmp_path_factory.mktemp("power")
    save(synthetic(constant(600.0), seconds=5.0), folder / "recorded.jsonl")
    (folder / "mine.py").write_text(textwrap.dedent(KERNELS))
    both = ("--distribution=normal", "--distribution=zeros")
    mine, eager = f"--kernels={folder / 'mine.py'}", "--kernel=torch_eager"
    started = Runs(
        whole=_start(folder, "whole", mine, "--trials=2", "--distribution=normal"),
        no_library=_start(folder, "no_library", eager, "--trials=2", *both, faults=";no library"),
        lost=_start(folder, "lost", eager, "--trials=1", faults=";gpu lost@0.5"),
        cut=_start(folder, "cut", eager, "--trials=50"),
    )
    _interrupt_in_trials(started.cut)
    return started


def test_run_measures_what_is_right_and_tells_of_the_rest(runs: Runs) -> None:
    """A sound kernel has its energy, a wrong one and one that dies a reason and no figure."""
    record = runs.whole.record
    assert record.problem is None
    rows = {row.kernel: row for row in record.profiles}
    assert set(rows) == {"sound", "wrong", "gives_back_what_it_kept", "dies_when_looped"}
    sound = rows["sound"]
    assert (sound.status, sound.accuracy, sound.validity) == ("measured", "passed", "valid")
    assert sound.energy_j == pytest.approx(600 * 500e-6, rel=0.05)
    assert len(sound.windows) == 2
    assert sound.idle_before_w == pytest.approx(600, rel=0.02)
    assert sound.idle_after_w == pytest.approx(600, rel=0.02)
    assert sound.sampler_slowdown == 0.0
    wrong, dead = rows["wrong"], rows["dies_when_looped"]
    assert (wrong.status, wrong.accuracy, wrong.energy_j) == ("wrong", "failed", None)
    assert wrong.reason
    kept = rows["gives_back_what_it_kept"]
    assert (kept.status, kept.accuracy, kept.energy_j) == ("wrong", "passed", None)
    assert kept.reason is not None
    assert kept.reason.startswith("its outputs were right before it was looped, and wrong after: ")
    assert (dead.status, dead.energy_j) == ("failed", None)
    assert dead.reason == "process ended: it ended its process, with status 3"


def test_run_with_a_wrong_kernel_fails_and_says_where_its_record_is(runs: Runs) -> None:
    """Exit status 1, the path, and no traceback."""
    assert runs.whole.done.returncode == 1
    # A long path is folded where the terminal ends.
    assert str(latest(runs.whole.results)) in re.sub(r"\s*\n\s*", "", runs.whole.done.stdout)
    assert "Traceback" not in runs.whole.done.stdout + runs.whole.done.stderr
    end = runs.whole.record.end
    assert end is not None
    assert end.exit_status == 1


def test_run_without_nvml_has_times_and_reasons(runs: Runs) -> None:
    """No library: the loop's times are there, and every figure of NVML's has its reason."""
    row, beside = runs.no_library.record.profiles
    assert runs.no_library.done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert (row.status, row.validity) == ("measured", "invalid")
    assert row.energy_j is None
    assert row.idle_before_w is None
    for name in ("energy_j", "idle_before_w", "sampler_slowdown"):
        assert row.missing[name].startswith("no library: ")
    assert row.windows[0].device_us == pytest.approx(500)
    assert "no library" in row.codes
    assert (row.distribution, len(row.windows)) == ("normal", 2)
    assert (beside.distribution, len(beside.windows)) == ("zeros", 1)
    assert beside.sampler_slowdown is None
    assert beside.missing["sampler_slowdown"].startswith("not tried: ")


def test_run_on_a_gpu_that_is_lost_keeps_what_was_seen(runs: Runs) -> None:
    """No window has an energy, the record is whole, and the loop's own times are in it."""
    record = runs.lost.record
    assert record.problem is None
    (row,) = record.profiles
    assert row.validity == "invalid"
    assert "gpu lost" in row.codes
    assert row.missing["energy_counter_j"].startswith("gpu lost: ")
    assert row.windows[0].device_us == pytest.approx(500)


def test_run_that_is_interrupted_keeps_the_trials_that_it_made(runs: Runs) -> None:
    """Ctrl-C: a row of the windows so far, what is missing said to be, a readable record."""
    record = runs.cut.record
    assert record.end is not None
    assert record.end.interrupted
    (row,) = record.profiles
    assert 0 < len(row.windows) < 50
    assert row.energy_j == pytest.approx(600 * 500e-6, rel=0.05)
    assert row.idle_before_w is not None
    assert row.missing["idle_after_w"].startswith("not measured: ")
    assert runs.cut.done.returncode != 0
    assert "Traceback" not in runs.cut.done.stdout + runs.cut.done.stderr
