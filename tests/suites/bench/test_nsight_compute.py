"""`--ncu`: what Nsight Compute is asked, what of its report a row has, and why it has nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.reports.record import CountedLaunch, read
from kernel_workbench.suites.bench import nsight_compute, suite
from kernel_workbench.suites.bench.counted_call import profiled
from kernel_workbench.suites.bench.devices import Cache
from kernel_workbench.suites.bench.nsight_compute import NsightCompute, launches_of
from kernel_workbench.suites.bench.suite import _counters
from kernel_workbench.suites.run.option_table import BenchOptions
from kernel_workbench.suites.sandbox.wire import spelled
from tests.builders.commands import run_python, wait_for
from tests.builders.fake_ncu import report_text, write_ncu

pytestmark = pytest.mark.long_run

CASE = layer_norm_case(5, 8, (torch.float32, torch.float32))
KERNEL = next(
    each
    for each in all_kernels()
    if (each.op.name, each.name) == (LAYER_NORM_BACKWARD.name, "torch_eager")
)
_BENCH = [
    *(
        "kernel_workbench/suites/bench",
        "-qq",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.builders.known_ground",
    ),
    *("--device=cpu", "--row-time=0.05", "--ncu", "--kernel=torch_eager"),
    "--case=layer_norm_backward-m64-n256-float32-contiguous",
]
# On a CPU the program has nothing to count: what it is asked, and what is made of its answer.
_ON_CPU = """
import os
import sys
from pathlib import Path
import pytest
from kernel_workbench.suites.bench import suite
from kernel_workbench.suites.bench.nsight_compute import NsightCompute

def counters(options, device):
    return NsightCompute(os.environ["NCU"], device, (), options.cache)

suite._counters = counters
sys.path.append(str(Path(os.environ["NCU"]).parent))
sys.exit(pytest.main(sys.argv[1:]))
"""
# A call in which all that happens is printed in its order.
_IN_ORDER = """
import contextlib, json, sys
import kernel_workbench.kernels.registry
from kernel_workbench.suites.bench import counted_call

request = json.loads(sys.argv[1])
wanted = request["op"], request["kernel"]
all_of_them = kernel_workbench.kernels.registry.all_kernels()
known = next(each for each in all_of_them if (each.op.name, each.name) == wanted)
original = known.function

def noted(**inputs):
    print("call")
    return original(**inputs)

object.__setattr__(known, "function", noted)

@contextlib.contextmanager
def range_on(device):
    print(f"begin on {device}")
    yield
    print("end")

counted_call.all_kernels = lambda: (known,)
counted_call.call(request, range_on)
"""


@pytest.fixture(autouse=True)
def _reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in of ncu_report where it is found, in this process alone."""
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    monkeypatch.syspath_prepend(write_ncu(tmp_path / "bin").parent)


def _launches(folder: Path, text: str) -> tuple[CountedLaunch, ...]:
    (folder / "a.ncu-rep").write_text(text)
    return launches_of(folder / "a.ncu-rep")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that has what the program is asked, a line each time."""
    path = tmp_path / "log"
    monkeypatch.setenv("FAKE_NCU_LOG", str(path))
    return path


def _asked(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def _counting(tmp_path: Path, cache: Cache = "cold") -> NsightCompute:
    return NsightCompute(str(write_ncu(tmp_path / "bin")), torch.device("cpu"), (), cache)


def test_figures_of_a_report_are_those_of_its_launches(tmp_path: Path) -> None:
    """Missing values, NaN, units, other names of the tensor pipe, and three stalls."""
    first, second = _launches(tmp_path, report_text())
    assert first.launch == "rows_kernel(float *, int)"
    assert first.device_us == pytest.approx(1234.5)
    assert (first.registers, first.waves) == (168, 3.5)
    assert (first.occupancy, first.most_occupancy) == pytest.approx((0.412, 0.5))
    shares = first.sm_share, first.tensor_share, first.dram_share, first.l2_share, first.l2_hits
    assert shares == pytest.approx((0.635, 0.55, 0.871, 0.44, 0.333))
    assert list(first.stalls.items()) == [
        ("long scoreboard", 12.5),
        ("math pipe throttle", 2.5),
        ("wait", 1.25),
    ]
    assert second.launch == "reduce_kernel"
    assert second.device_us == pytest.approx(2.048)
    assert (second.waves, second.dram_share, second.tensor_share) == (None, None, 0.0)
    assert second.stalls == {"long scoreboard": 4.0}


@pytest.mark.parametrize("text", ["", "cut off", "[]", '[{"name": "bare", "metrics": {}}]'])
def test_report_that_cannot_be_read_has_no_figures(tmp_path: Path, text: str) -> None:
    """The package takes it for an empty one; a launch without counters has its name alone."""
    expected = (CountedLaunch(launch="bare"),) if "bare" in text else ()
    assert _launches(tmp_path, text) == expected


def test_time_in_a_unit_that_is_not_known_is_missing(tmp_path: Path) -> None:
    """And one in microseconds isn't taken for nanoseconds."""
    assert _launches(tmp_path, report_text("us"))[1].device_us == 2048
    assert _launches(tmp_path, report_text("cycle"))[1].device_us is None


@pytest.mark.parametrize(("cache", "control"), [("cold", "all"), ("warm", "none")])
def test_row_has_the_counters_of_its_call(
    tmp_path: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: Cache,
    control: str,
) -> None:
    """One range alone, at clocks as they are; the report lies beside the record, by its name."""
    monkeypatch.setenv("FAKE_NCU", "skips")
    counting, record = _counting(tmp_path, cache), tmp_path / "50% off" / "bench-1.jsonl"
    record.parent.mkdir()
    told = counting.count(KERNEL, CASE, record)
    assert told.get("counters_reason") is None
    assert [each.launch for each in told["counters"]] == [
        "rows_kernel(float *, int)",
        "reduce_kernel",
    ]
    assert told["counters_file"] == "bench-1-001-torch_eager.ncu-rep"
    assert (record.parent / told["counters_file"]).is_file()
    again = counting.count(KERNEL, CASE, record)
    assert again["counters_file"] == "bench-1-002-torch_eager.ncu-rep"
    profiled, *_ = _asked(log)
    wanted = {
        *("--profile-from-start=off", "--clock-control=none", f"--cache-control={control}"),
        "--target-processes=application-only",
    }
    assert wanted <= set(profiled)


def test_one_call_is_in_the_range_and_what_warms_up_is_before_it() -> None:
    """The device is waited for within the range: no launch of the warm-up falls into it."""
    request = {
        "device": "cpu",
        "op": KERNEL.op.name,
        "kernel": KERNEL.name,
        "case": spelled(CASE),
        "files": [],
    }
    done = run_python("-c", _IN_ORDER, json.dumps(request))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*["call"] * 3, "begin on cpu", "call", "end", ""]


def test_range_on_a_gpu_is_what_profilers_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins and ends by cudaProfilerStart and cudaProfilerStop."""
    said: list[str] = []
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: said.append(name))
    with profiled(torch.device("cuda")):
        said.append("call")
    assert said == ["start", "call", "stop"]


def test_missing_permission_has_its_sentence_once(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence names what to ask for; the rows after it aren't tried in vain."""
    monkeypatch.setenv("FAKE_NCU", "forbidden")
    counting = _counting(tmp_path)
    told = [counting.count(KERNEL, CASE, tmp_path / "bench-1.jsonl") for _ in range(2)]
    assert told[0] == told[1]
    assert told[0].keys() == {"counters_reason"}
    assert "ERR_NVGPUCTRPERM" in told[0]["counters_reason"]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in told[0]["counters_reason"]
    assert len(_asked(log)) == 1


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("broken", "Nsight Compute ended with status 9: ==ERROR== Failed to load the injection"),
        ("empty", "Nsight Compute left no report: ==WARNING== No kernels were profiled."),
    ],
)
def test_program_that_fails_is_a_reason_and_asked_again(
    how: str, reason: str, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own last error, else its last line; the next row may fare better."""
    monkeypatch.setenv("FAKE_NCU", how)
    counting, record = _counting(tmp_path), tmp_path / "bench-1.jsonl"
    told = counting.count(KERNEL, CASE, record)
    assert told.keys() == {"counters_reason"}
    assert told["counters_reason"].startswith(reason)
    monkeypatch.setenv("FAKE_NCU", "skips")
    assert counting.count(KERNEL, CASE, record)["counters"]
    assert len(_asked(log)) == 2


def test_program_that_hangs_is_ended(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that it has started; the row says so."""
    monkeypatch.setenv("FAKE_NCU", "hangs")
    monkeypatch.setattr(nsight_compute, "_LIMIT_S", 3.0)
    told = _counting(tmp_path).count(KERNEL, CASE, tmp_path / "bench-1.jsonl")
    assert told == {"counters_reason": "Nsight Compute didn't end within 0.05 min"}
    started = Path(f"{log}.pid")
    if started.exists():  # a machine that is busy may not have come so far
        process = Path("/proc") / started.read_text()
        wait_for(lambda: not process.exists())


def test_kernel_that_fails_is_told_of(tmp_path: Path, log: Path) -> None:
    """By what it raised, whatever the program says after it."""
    unknown = replace(KERNEL, name="no_such_kernel")
    told = _counting(tmp_path).count(unknown, CASE, tmp_path / "bench-1.jsonl")
    assert told == {
        "counters_reason": "Nsight Compute ended with status 1: the counted call failed: "
        "KeyError: ('layer_norm_backward', 'no_such_kernel')"
    }
    assert len(_asked(log)) == 1


def test_counting_is_refused_where_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program, and no GPU: a sentence, before anything is timed."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    options = BenchOptions(ncu=True)
    with pytest.raises(pytest.UsageError, match="--ncu: ncu isn't installed here: it comes with"):
        _counters(options, torch.device("cuda"))
    assert _counters(BenchOptions(), torch.device("cuda")) is None
    monkeypatch.setattr(suite, "cuda_program", lambda _: "ncu")
    monkeypatch.setattr(suite, "find_spec", lambda _: None)
    with pytest.raises(pytest.UsageError, match=r"ncu-report, .*; install it by pip install"):
        _counters(options, torch.device("cuda"))
    done = run_python("-m", "pytest", *_BENCH, f"--results={tmp_path}/results")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ncu: it counts events of a GPU, and --device cpu has none" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("several", ["--rounds=2", "--against=main"])
def test_counting_in_several_processes_is_refused(several: str, tmp_path: Path) -> None:
    """The reports of all but one would be lost."""
    done = run_python("-m", "pytest", *_BENCH, several, f"--results={tmp_path}/results")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "counters are of one; count in a run of its own" in done.stderr


@pytest.mark.parametrize("how", ["counts", "forbidden"])
def test_bench_with_counters_keeps_its_times(tmp_path: Path, log: Path, how: str) -> None:
    """End to end: the row has its time either way, the report says what there is and why not."""
    program, results = write_ncu(tmp_path / "bin"), tmp_path / "results"
    variables = os.environ | {"NCU": str(program), "FAKE_NCU": how}
    arguments = ("-c", _ON_CPU, *_BENCH, "--details", f"--results={results}")
    done = run_python(*arguments, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = results.glob("*.jsonl")
    (row,) = read(path).benches
    assert row.status == "timed" and row.median_us is not None
    told = " ".join(done.stdout.split())
    if how == "counts":
        assert [each.name for each in results.glob("*.ncu-rep")] == [row.counters_file]
        assert row.counters_file == f"{path.stem}-001-torch_eager.ncu-rep"
        assert len(row.counters) == 2 and row.counters_reason is None
        assert "Counters of a call, by Nsight Compute" in told
        assert len(_asked(log)) == 1
    else:
        assert row.counters == () and row.counters_file is None
        assert "no counters of 1 row: no permission: this user may not read the GPU's" in told
