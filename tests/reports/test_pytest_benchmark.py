"""JSON files of pytest-benchmark from elsewhere are compared where they have what is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_workbench.reports.comparison.__main__ import main
from kernel_workbench.reports.record import RecordError
from kernel_workbench.reports.record.pytest_benchmark import read_import
from tests.builders.compared_records import bench_row, case, header, write


def benchmark(median_s: float = 1e-4, **changes: object) -> dict[str, Any]:
    """One benchmark, as pytest-benchmark writes it."""
    return {
        "group": None,
        "name": "test_row[8192]",
        "fullname": "benchmarks/test_norms.py::test_row[8192]",
        "params": {"m": 8192},
        "param": "8192",
        "extra_info": {},
        "options": {"rounds": 5},
        "stats": {
            "median": median_s,
            "q1": 0.999 * median_s,
            "q3": 1.001 * median_s,
            "data": [median_s * each for each in (0.999, 0.9995, 1.0, 1.0005, 1.001)],
        },
    } | changes


def file_of(path: Path, *benchmarks: dict[str, Any], **changes: object) -> Path:
    """A whole file, indented as pytest-benchmark does."""
    content = {
        "machine_info": {
            "node": "elsewhere",
            "processor": "x86_64",
            "system": "Linux",
            "python_version": "3.12.1",
            "cpu": {"brand_raw": "Example CPU", "count": 8},
        },
        "commit_info": {"id": "abc", "dirty": False},
        "benchmarks": list(benchmarks),
        "datetime": "2026-11-21T04:15:00",
        "version": "5.1.0",
    } | changes
    path.write_text(json.dumps(content, indent=4))
    return path


def test_two_imports_of_one_machine_get_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unconfirmed, as there are no clocks; that no accuracy is known is said."""
    a = file_of(tmp_path / "a.json", benchmark(1e-4))
    b = file_of(tmp_path / "b.json", benchmark(1.05e-4))
    assert main([str(a), str(b), "--gate", "--width", "200"]) == 1
    shown = capsys.readouterr().out
    assert "+5.0 %  " in shown
    assert "unconfirmed" in shown
    assert "accuracy not known" in shown
    assert "it names no GPU" in shown


def test_import_meets_a_record_of_the_same_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`extra_info` names the row, `machine_info` the GPU; the record's own accuracy still rules."""
    told = {"op": "layer_norm_backward", "kernel": "row_persistent", "case": case().id}
    imported = file_of(
        tmp_path / "a.json", benchmark(1e-4, extra_info=told), machine_info={"gpu": "NVIDIA H200"}
    )
    record = write(tmp_path / "b.jsonl", header(), [bench_row(100.0)])
    assert main([str(imported), str(record), "--width", "200"]) == 0
    shown = capsys.readouterr().out
    assert "A: H200, imported" in shown
    assert "of 1 row, 0 slower, 0 faster, 1 the same" in shown
    wrong = bench_row(status="wrong", accuracy="failed", processes=(), median_us=None)
    failed = write(tmp_path / "c.jsonl", header(), [wrong])
    assert main([str(imported), str(failed), "--width", "200"]) == 0
    assert "its accuracy failed in B" in capsys.readouterr().out


def test_json_of_bench_is_of_the_gpu_that_it_names(tmp_path: Path) -> None:
    """`nox -s bench -- --benchmark-json` tells device, row and accuracy in its own words."""
    device = {"device_name": "NVIDIA H200", "sm": 90, "multiprocessors": 132, "power_limit_w": 700}
    info = bench_row().model_dump(mode="json", include={"op", "kernel", "case", "accuracy"})
    record = read_import(
        file_of(tmp_path / "a.json", benchmark(extra_info=info), machine_info={"device": device})
    )
    assert record is not None
    environment, (row,) = record.header.environment, record.benches
    assert (environment.device_name, environment.multiprocessors) == ("NVIDIA H200", 132)
    assert environment.power_limit_w == 700
    assert (row.kernel, row.case.id, row.accuracy) == ("row_persistent", case().id, "passed")


def test_import_without_samples_goes_by_its_quartiles(tmp_path: Path) -> None:
    """`--benchmark-save` keeps no samples; without quartiles too, the median alone is left."""
    stats = {"median": 1e-4, "q1": 0.9e-4, "q3": 1.1e-4}
    record = read_import(file_of(tmp_path / "a.json", benchmark(stats=stats)))
    assert record is not None
    (row,) = record.benches
    assert row.processes == ()
    assert (row.first_quartile_us, row.median_us, row.third_quartile_us) == pytest.approx(
        (90.0, 100.0, 110.0)
    )
    assert record.header.figures == "imported"


def test_import_names_rows_by_file_function_and_parameters(tmp_path: Path) -> None:
    """Where nothing tells op, kernel and case; a group is the op."""
    record = read_import(
        file_of(tmp_path / "a.json", benchmark(), benchmark(group="norms", name="test_other"))
    )
    assert record is not None
    assert [(row.op, row.kernel, row.case.id) for row in record.benches] == [
        ("norms", "test_row", "8192"),
        ("norms", "test_other", "8192"),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"benchmarks": []}', "holds no benchmark"),
        ('{"machine_info": {}}', "benchmarks: field required"),
        ('{"machine_info": {}, "benchmarks": [{"name": "a", "stats": {}}]}', "stats.median"),
        (
            '{"benchmarks": [{"name": "a", "stats": {"median": -1.0}}]}',
            "benchmarks.0.stats.median: input should be greater than 0",
        ),
        ('{"benchmarks": [{"name": "a"', "not a whole JSON file"),
    ],
)
def test_broken_import_is_refused_in_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    """The sentence names the problem and its place, without a traceback."""
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=words) as refused:
        read_import(path)
    assert "\n" not in str(refused.value)


def test_what_pytest_benchmark_writes_is_read(tmp_path: Path) -> None:
    """A file that the installed version wrote a moment ago."""
    suite = tmp_path / "test_sums.py"
    suite.write_text("def test_sum(benchmark):\n    benchmark(sum, [1, 2, 3])\n")
    path = tmp_path / "out.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)),
            *(f"--rootdir={tmp_path}", "-c", "/dev/null", "--benchmark-max-time=0.01"),
            f"--benchmark-json={path}",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    record = read_import(path)
    assert record is not None
    (row,) = record.benches
    assert (row.op, row.kernel) == ("sums", "test_sum")
    assert row.median_us is not None
    assert 0 < row.median_us < 1000
    assert len(row.processes[0].times_us) > 1
