"""A JSON file of pytest-benchmark, from anywhere, as a record whose figures are `imported`.

It has times and no clocks, no accuracy, and no word on cache or inputs. `extra_info` may name op,
kernel, case, cache, distribution, dtype, flops and bytes; else the op is the benchmark's group or
file, the kernel its function and the case its parameters. A GPU is known only where `machine_info`
names it (`gpu`, `gpu_name`, `device_name`, or `device` as `bench` has it).
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import (
    BENCH_PROTOCOL,
    BenchRow,
    CaseInfo,
    Environment,
    Record,
    RecordError,
    RunHeader,
    Status,
    TimedProcess,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LARGEST_BYTES = 1 << 30  # of a file that is read whole; 5,000 benchmarks of 200 rounds take 50 MB
_SHOWN = 80  # characters of a value quoted in a message
_UNKNOWN = "not said"
_ACCURACY: dict[str, Status] = {"passed": "passed", "failed": "failed"}


class _ReadFile(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Stats(_ReadFile):
    """In seconds. data: a time for each round, where it was saved."""

    median: float = Field(gt=0)
    q1: float | None = Field(default=None, gt=0)
    q3: float | None = Field(default=None, gt=0)
    data: tuple[float, ...] | None = None


class _Benchmark(_ReadFile):
    name: str
    fullname: str = ""
    group: str | None = None
    param: str | None = None
    extra_info: dict[str, object] = Field(default_factory=dict)
    stats: _Stats


class _File(_ReadFile):
    benchmarks: tuple[_Benchmark, ...]
    machine_info: dict[str, object] = Field(default_factory=dict)
    commit_info: dict[str, object] = Field(default_factory=dict)
    datetime: str = _UNKNOWN
    version: str = _UNKNOWN


def read_import(path: Path) -> Record | None:
    """Return the file as a record; None where it is no such file. Raises RecordError."""
    try:
        with path.open("rb") as opened:
            if not _looks_like_one(opened.read(1 << 16)):
                return None
            opened.seek(0)
            data = opened.read(_LARGEST_BYTES + 1)
    except (OSError, ValueError):
        return None  # said by whoever reads it as a record
    if len(data) > _LARGEST_BYTES:
        raise RecordError(f"{shown(path)}: more than {_LARGEST_BYTES >> 20:,} MiB; split it")
    try:
        file = _File.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise RecordError(
            f"{shown(path)}: not a whole JSON file of pytest-benchmark: "
            f"{shown(where)[:_SHOWN]}: {shown(message)[:_SHOWN]}"
        ) from error
    if not file.benchmarks:
        raise RecordError(f"{shown(path)}: a file of pytest-benchmark that holds no benchmark")
    return Record(
        path=path,
        header=_header(file),
        rows=(),
        end=None,
        problem=None,
        benches=tuple(map(_row, file.benchmarks)),
    )


def _looks_like_one(start: bytes) -> bool:
    """Return an object whose first key pytest-benchmark writes; a record begins with kind."""
    text = start.lstrip()[:200].lstrip(b"{ \r\n\t")
    keys = (b'"machine_info"', b'"benchmarks"', b'"commit_info"', b'"datetime"', b'"version"')
    return start.lstrip()[:1] == b"{" and text.startswith(keys)


def _header(file: _File) -> RunHeader:
    machine = file.machine_info
    gpu = _gpu(machine)
    cpu_info = machine.get("cpu")
    cpu = (_text(cpu_info, "brand_raw") if isinstance(cpu_info, dict) else None) or _text(
        machine, "processor"
    )
    count = cpu_info.get("count") if isinstance(cpu_info, dict) else None
    commit, dirty = _text(file.commit_info, "id"), file.commit_info.get("dirty")
    missing = {"clock_mhz": "pytest-benchmark keeps no clocks"}
    if gpu is None:
        missing["device_name"] = "it names no GPU, so it is taken as of its CPU"
    device: Literal["cpu", "cuda"] = "cpu" if gpu is None else "cuda"
    return RunHeader(
        suite="bench",
        protocol=BENCH_PROTOCOL,
        started_at=file.datetime,
        command=f"pytest-benchmark {file.version}",
        environment=Environment(
            device=device,
            device_name=gpu or cpu or _UNKNOWN,
            hostname=_text(machine, "node") or _UNKNOWN,
            platform=_text(machine, "system") or _UNKNOWN,
            multiprocessors=_count(_device(machine), "multiprocessors"),
            power_limit_w=_figure(_device(machine), "power_limit_w"),
            cpu=cpu or _UNKNOWN,
            cpu_count=count if isinstance(count, int) and count > 0 else 1,
            python=_text(machine, "python_version") or _UNKNOWN,
            packages={},
            git_commit=commit,
            git_dirty=dirty if isinstance(dirty, bool) else None,
            missing=missing,
        ),
        kernels=(),
        planned_rows=len(file.benchmarks),
        gate_baselines=False,
        figures="imported",
    )


def _device(machine: Mapping[str, object]) -> Mapping[str, object]:
    """Return the device that `bench` wrote; empty for a file from another program."""
    words = machine.get("device")
    return words if isinstance(words, dict) else {}


def _gpu(machine: Mapping[str, object]) -> str | None:
    """Return the GPU's name, where the file has it."""
    device = _device(machine)
    if device:
        return _text(device, "device_name") if device.get("sm") is not None else None
    names = (_text(machine, name) for name in ("gpu_name", "gpu", "device_name"))
    return next((name for name in names if name is not None), None)


def _row(benchmark: _Benchmark) -> BenchRow:
    words, stats = benchmark.extra_info, benchmark.stats
    function, _, parameters = benchmark.name.partition("[")
    kernel = _text(words, "kernel") or function
    op = _text(words, "op") or benchmark.group or _of_file(benchmark.fullname)
    of_case = words.get("case")
    named = _text(of_case, "id") if isinstance(of_case, dict) else _text(words, "case")
    case = named or benchmark.param or parameters.removesuffix("]") or function
    samples = tuple(1e6 * seconds for seconds in stats.data or () if seconds > 0)
    return BenchRow(
        op=op,
        kernel=kernel,
        case=CaseInfo(
            id=case,
            op=op,
            sizes={},
            dtype=_text(words, "dtype") or _UNKNOWN,
            layout=_UNKNOWN,
            distribution=_text(words, "distribution") or "normal",
            options=(),
            seed=0,
            tier="full",
            why="",
        ),
        status="timed",
        accuracy=_ACCURACY.get(str(words.get("accuracy"))),
        cache="warm" if _text(words, "cache") == "warm" else "cold",
        distribution=_text(words, "distribution") or "normal",
        processes=(TimedProcess(times_us=samples),) if samples else (),
        median_us=1e6 * stats.median,
        first_quartile_us=None if stats.q1 is None else 1e6 * stats.q1,
        third_quartile_us=None if stats.q3 is None else 1e6 * stats.q3,
        flops=_count(words, "flops"),
        bytes=_count(words, "bytes"),
    )


def _of_file(fullname: str) -> str:
    """Return `suite` of `benchmarks/test_suite.py::test_it[8]`."""
    stem = PurePosixPath(fullname.partition("::")[0]).stem.removeprefix("test_")
    return stem or "benchmark"


def _text(values: Mapping[str, object], name: str) -> str | None:
    result = values.get(name)
    return result if isinstance(result, str) and result else None


def _count(values: Mapping[str, object], name: str) -> int | None:
    result = values.get(name)
    return (
        result if isinstance(result, int) and not isinstance(result, bool) and result > 0 else None
    )


def _figure(values: Mapping[str, object], name: str) -> float | None:
    result = values.get(name)
    return float(result) if isinstance(result, int | float) and 0 < result < 1e6 else None
