"""`nox -s bench` from end to end, on the CPU, in processes of its own."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.reports.record import Record, read
from kernel_workbench.suites.bench.gpus import wanted_gpus
from kernel_workbench.suites.bench.protocol import Sample
from kernel_workbench.suites.bench.roofs import flush_probe, judged_probe
from tests.builders.commands import Running, run_python, wait_for

pytestmark = pytest.mark.long_run

_SMALL = "layer_norm_backward-m64-n256-float32-contiguous"
_COMMAND = ["-m", "pytest", "kernel_workbench/suites/bench", "-qq", "-p", "no:cacheprovider"]
_KNOWN = ("-p", "tests.builders.known_ground")
_BRIEF = ["--device=cpu", "--row-time=0.1", f"--case={_SMALL}"]

# A flush that left everything in the cache.
_WARM_FLUSH = """
import sys
import pytest
from kernel_workbench.suites.bench.roofs import judged_probe
from tests.builders import known_ground

known_ground.PROBE = judged_probe(2**23, 100.0, 101.0, 400.0, least_way=0.5)
sys.exit(pytest.main(sys.argv[1:], plugins=[known_ground]))
"""

# A host of two GPUs, of which neither is needed.
_TWO_GPUS = """
import sys
import pytest
import kernel_workbench.suites.bench.gpus as gpus

gpus.visible_gpus = lambda: ("GPU-a", "GPU-b")
sys.exit(pytest.main(sys.argv[1:]))
"""


def _run(*arguments: str, command: list[str] = _COMMAND) -> subprocess.CompletedProcess[str]:
    return run_python(*command, *arguments)


def _record(folder: Path) -> Record:
    (path,) = folder.glob("bench-*.jsonl")
    return read(path)


def test_bench_writes_roofs_flush_rows_and_what_pytest_benchmark_has(tmp_path: Path) -> None:
    """The same medians in the record and in pytest-benchmark's JSON, and none for a refused row."""
    made = tmp_path / "made.json"
    kernels = [f"--kernel={each}" for each in ("torch_eager", "torch_native_cpu", "row_persistent")]
    done = _run(*_BRIEF, *kernels, f"--results={tmp_path}", f"--benchmark-json={made}")
    assert done.returncode == 0, done.stdout + done.stderr
    record = _record(tmp_path)
    assert record.end is not None and not record.end.interrupted
    assert record.header.flush is not None and record.header.flush.evicts
    empty_us = record.header.empty_call_us
    assert empty_us is not None and empty_us > 0
    assert {"copy", "add", "matmul float32"} <= {each.name for each in record.header.roofs}
    rows = {each.kernel: each for each in record.benches}
    assert rows["row_persistent"].status == "refused"
    assert rows["row_persistent"].reason == "interpreted: its time says nothing"
    benchmarks = json.loads(made.read_text())["benchmarks"]
    medians = {each["params"]["kernel"]: each["stats"]["median"] for each in benchmarks}
    assert medians.keys() == {"torch_eager", "torch_native_cpu"}
    for kernel, median_s in medians.items():
        row = rows[kernel]
        (process,) = row.processes
        assert row.median_us == pytest.approx(statistics.median(process.times_us), rel=1e-9)
        assert row.median_us is not None
        assert 1e6 * median_s == pytest.approx(row.median_us, rel=1e-6)
        assert row.accuracy == "passed"
        assert row.gb_s == pytest.approx((row.bytes or 0) / row.median_us * 1e-3)
        assert row.share_of_peak is None and row.share_of_ceiling is not None


def test_bench_without_a_gpu_says_so_in_one_sentence(tmp_path: Path) -> None:
    """Nothing is timed by mistake, and no record is begun."""
    done = _run(f"--results={tmp_path}")
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(told) == 1
    assert "bench: torch sees no GPU here" in told[0]
    assert "--device cpu" in told[0]
    assert not list(tmp_path.iterdir())


def test_bench_helps_without_a_gpu() -> None:
    """And times nothing where cases are only to be listed."""
    done = _run("--help")
    assert done.returncode == 0
    assert "--row-time" in done.stdout
    listed = _run("--device=cpu", "--collect-only", f"--case={_SMALL}", "--rounds=3")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert listed.stdout.count("test_bench.py: 2") == 1


def test_bench_whose_cold_reads_are_warm_is_refused(tmp_path: Path) -> None:
    """A session that would call warm samples cold has none."""
    command = ["-c", _WARM_FLUSH, *_COMMAND[2:]]
    done = _run(*_BRIEF, f"--results={tmp_path}", command=command)
    assert done.returncode != 0
    assert "the flush left it in the cache, so no sample would be cold" in done.stderr
    assert not list(tmp_path.glob("*.jsonl"))


def test_bench_that_is_interrupted_keeps_what_it_timed(tmp_path: Path) -> None:
    """Ctrl-C after the first row: a whole record, of what there is."""
    options = [*_KNOWN, "--device=cpu", "--op=layer_norm_backward", "--row-time=0.3"]
    running = Running(sys.executable, *_COMMAND, *options, f"--results={tmp_path}")
    records = partial(tmp_path.glob, "bench-*.jsonl")
    wait_for(lambda: any(b'"status":"timed"' in each.read_bytes() for each in records()), running)
    assert running.ended(by=signal.SIGINT).returncode != 0
    record = _record(tmp_path)
    assert record.end is not None and record.end.interrupted
    timed = [each for each in record.benches if each.status == "timed"]
    assert 1 <= len(timed) < record.header.planned_rows


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kernel=flash"], "bench: nothing was timed: interpreted: its time says nothing"),
        (["--gpus=0"], "--gpus 0: torch sees no GPU here"),
    ],
)
def test_option_that_bench_cannot_use_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    """In one sentence."""
    done = _run(*_KNOWN, "--device=cpu", f"--results={tmp_path}", *arguments)
    assert done.returncode != 0
    assert sentence in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize("together", [False, True])
def test_gpus_have_a_run_each(tmp_path: Path, *, together: bool) -> None:
    """Two runs, two records, and the status of both."""
    command = ["-c", _TWO_GPUS, *_COMMAND[2:]]
    options = [*_BRIEF, *_KNOWN, "--kernel=torch_eager", "--gpus=all", f"--results={tmp_path}"]
    done = _run(*options, *(["--gpus-together"] if together else []), command=command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("bench: GPU-") == 2
    records = [read(path) for path in tmp_path.glob("bench-*.jsonl")]
    assert len(records) == 2
    assert all(each.benches[0].status == "timed" for each in records)


def test_interrupt_leaves_the_next_gpu_alone(tmp_path: Path) -> None:
    """One sentence, status 2, and no run on the second GPU."""
    options = (
        *_KNOWN,
        "--device=cpu",
        "--gpus=all",
        "--kernel=torch_eager",
        f"--results={tmp_path}",
    )
    running = Running(sys.executable, "-c", _TWO_GPUS, "kernel_workbench/suites/bench", *options)
    wait_for(lambda: running.printed[1] == "bench: GPU-a\n", running)
    done = running.ended(by=signal.SIGINT)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "GPU-b" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "bench: interrupted"


def test_gpus_are_named_by_number_or_uuid() -> None:
    """All, some of them once, and a number that there isn't."""
    visible = ("GPU-a", "GPU-b")
    assert wanted_gpus("all", visible) == visible
    assert wanted_gpus("1, GPU-b,0", visible) == ("GPU-b", "GPU-a")
    with pytest.raises(pytest.UsageError, match="there is no GPU 2; there are 0 to 1, or all"):
        wanted_gpus("0,2", visible)


def test_flush_is_judged_by_a_read_of_untouched_memory() -> None:
    """As slow as that: cold. Where the cache is no faster than memory there is nothing to evict."""
    judged = partial(judged_probe, 2**23, least_way=0.75)
    assert judged(5.0, 10.0, 10.0).evicts
    assert judged(5.0, 9.0, 10.0).evicts
    assert judged(10.0, 10.0, 10.0).evicts
    assert not judged(5.0, 6.0, 10.0).evicts


class _Cache:
    """A device on which one place is slower to read from memory than the others, as on an H200."""

    cache_bytes = 2**21
    rest = 0.0

    def __init__(self, *, evicts: bool) -> None:
        self.cache: Literal["cold", "warm"] = "cold"
        self._evicts = evicts
        self._slow: int | None = None
        self._held: int | None = None  # the place that was read last: there is room for one

    def sample(self, prepare: Callable[[], Any]) -> Sample:
        call = prepare()
        if self.cache == "cold" and self._evicts:
            self._held = None
        place = call.args[0].data_ptr()
        self._slow = self._slow or place
        held, self._held = place == self._held, place
        return Sample(10.4 if held else 13.1 if place == self._slow else 12.1)


@pytest.mark.parametrize("evicts", [True, False])
def test_flush_probe_reads_one_place_cold_warm_and_untouched(*, evicts: bool) -> None:
    """So that a slow place is neither taken for a cold read nor for memory."""
    device: Any = _Cache(evicts=evicts)
    probe = flush_probe(torch.device("cpu"), device)
    assert probe.evicts is evicts
    assert probe.warm_us == 10.4
    assert probe.cold_us == (12.1 if evicts else 10.4)
    assert "12.1 us from memory" in probe.reason
    assert probe.bytes == 2**20


class _Disturbed(_Cache):
    """At first others' work keeps what the flush is to evict; it is over after one probe."""

    def __init__(self) -> None:
        super().__init__(evicts=False)
        self._left = 45

    def sample(self, prepare: Callable[[], Any]) -> Sample:
        self._left -= 1
        self._evicts = self._left < 0
        return super().sample(prepare)


def test_flush_probe_of_a_shared_host_is_asked_again() -> None:
    """A flush is refused where none of several probes finds that it evicts."""
    device: Any = _Disturbed()
    assert flush_probe(torch.device("cpu"), device).evicts


def test_bench_cases_are_those_of_the_peers_figures_and_others() -> None:
    """Each shape of the peers' files once, and at most a dozen beside."""
    for op, peers, device in (
        ("layer_norm_backward", 22, "cuda"),
        ("attention_forward", 18, "cuda"),
        ("attention_backward", 18, "cuda"),
    ):
        ids = [each.id() for each in OPS[op].workloads.timed(device)]
        assert len(set(ids)) == len(ids)
        assert peers < len(ids) <= peers + 12


_OWN_OP = """
import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench import Domain, kernel
from kernel_workbench import COLUMNS, ROWS
from kernel_workbench import op


@op(sizes={"m": ROWS, "n": COLUMNS})
def doubled(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x + x


@kernel(doubled, Domain(dtypes=(torch.float32,)))
def twice(x):
    return 2 * x
"""


def test_op_that_is_a_function_is_timed_where_its_oracle_may_not_be_asked(tmp_path: Path) -> None:
    """The oracle finds which signs the op's values may have; a kernel's process has no oracle."""
    file = tmp_path / "own.py"
    file.write_text(_OWN_OP)
    case = "doubled_forward-m256-n256-float32-contiguous"
    done = _run(
        *_KNOWN, "--device=cpu", "--row-time=0.1", f"--kernels={file}", f"--case={case}",
        f"--results={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row.status for row in _record(tmp_path).benches] == ["timed"]
