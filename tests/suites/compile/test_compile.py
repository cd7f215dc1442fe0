"""`nox -s compile` on real kernels: compiled with no GPU, held to expectations, and kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import CompileRow, Record, read
from tests import ROOT
from tests.builders.commands import Running, run_python, wait_for

pytestmark = pytest.mark.long_run

FILE = ROOT / "tests" / "candidates" / "kernels_to_compile.py"


_HANGING = """
import time
import torch
from kernel_workbench import ATTENTION_DELTA, Domain, kernel

DOMAIN = Domain(
    dtypes=(torch.bfloat16,), alignment=16, strides="contiguous", sizes={"d_v": (64, 64)}
)

@kernel(ATTENTION_DELTA, DOMAIN)
def hanging(out, do):
    time.sleep(600)

@kernel(ATTENTION_DELTA, DOMAIN)
def returning(out, do):
    return (out.sum(-1),)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the checkout as a user's shell would: without the interpreter."""
    return run_python("-m", *arguments, variables=_environment())


def _environment() -> dict[str, str]:
    hidden = {"TRITON_INTERPRET", "COLUMNS", "TRITON_DEFAULT_FP_FUSION"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


class Compiled:
    """Runs of the command into one folder, from one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"

    def run(self, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Record | None]:
        """Run it; return how it ended, and its record where it left one."""
        before = set(self.folder.glob("*.jsonl"))
        places = ("--results", str(self.folder), "--cache", str(self.cache))
        done = run("kernel_workbench.suites.compile", "--jobs", "1", *places, *arguments)
        made = set(self.folder.glob("*.jsonl")) - before
        return done, read(made.pop()) if made else None


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A folder for this module's runs."""
    return Compiled(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def cold(compiled: Compiled) -> tuple[str, Record]:
    """The user's file compiled for sm 86 with nothing kept: what was printed, and the record."""
    done, record = compiled.run("--kernels", str(FILE), "--sm", "86")
    assert done.returncode == 1, done.stderr
    assert record is not None
    return done.stdout, record


def of_kernel(record: Record, name: str) -> CompileRow:
    """The row of one of the file's kernels."""
    return next(row for row in record.compiled if row.kernel == name)


def test_signatures_are_those_of_the_launches(cold: tuple[str, Record]) -> None:
    """Types, divisibility, constants and warps are captured: no second word of the user's."""
    rows = {row.kernel: row for row in cold[1].compiled}
    assert {row.case.dtype for row in rows.values()} == {"bfloat16"}
    assert rows["rows"].tile == {"BLOCK_M": 128, "BLOCK_D": 64, "num_stages": 3}
    assert rows["spilling_rows"].tile["BLOCK_M"] == 256
    assert rows["products"].warps == 8
    assert all(row.fp_fusion for row in rows.values() if row.status == "compiled")


def test_launches_of_every_kind_are_taken_down(cold: tuple[str, Record]) -> None:
    """Each configuration of an autotuner, a descriptor made on the host, Gluon's own."""
    found = [(row.kernel, row.warps) for row in cold[1].compiled if row.status == "compiled"]
    assert sorted(each for each in found if each[0] == "tuned") == [("tuned", 2), ("tuned", 4)]
    assert ("described", 4) in found
    assert ("in_gluon", 4) in found
    assert "kernels that launch no Triton kernel: attention_delta without_launches" in cold[0]


def test_call_that_ends_the_process_is_one_row(cold: tuple[str, Record]) -> None:
    """Its row says how; the calls after it are made all the same."""
    (failed,) = (row for row in cold[1].compiled if row.status == "failed")
    assert failed.kernel == "dying"
    assert "its process was killed by SIGABRT" in (failed.reason or "")


def test_call_that_hangs_is_one_row(tmp_path: Path) -> None:
    """It is ended when its time is over, and the call after it is made all the same."""
    file = tmp_path / "mine.py"
    file.write_text(_HANGING)
    arguments = ["--kernels", str(file), "--sm", "80", "--jobs", "1", "--results", str(tmp_path)]
    code = (
        "from kernel_workbench.suites.compile import workers\n"
        "limit = property(lambda task: 2.0 if task.name.startswith('hanging') else 600.0)\n"
        "workers.Take.limit_s = limit\n"
        f"from kernel_workbench.suites.compile.__main__ import main\n"
        f"raise SystemExit(main({arguments}))"
    )
    done = run_python("-c", code, variables=_environment())
    assert done.returncode == 1, done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    (failed,) = read(path).compiled
    assert failed.kernel == "hanging"
    assert (failed.reason or "").endswith(", it didn't return within 2 s")
    assert "kernels that launch no Triton kernel: attention_delta returning" in done.stdout


def test_compilation_that_reaches_its_limit_is_incomplete(tmp_path: Path) -> None:
    """How long it takes is the machine's: it has no row, and the report names it."""
    places = ["--results", str(tmp_path), "--cache", str(tmp_path / "cache")]
    chosen = ["--kernels", str(FILE), "--kernel", "rows", "--kernel", "products", "--sm", "86"]
    arguments = [*chosen, "--jobs", "1", *places]
    code = (
        "from kernel_workbench.suites.compile import workers\n"
        "workers.Compile.limit_s = property(lambda task: 1e-3 if 'rows' in task.name else 600.0)\n"
        f"from kernel_workbench.suites.compile.__main__ import main\n"
        f"raise SystemExit(main({arguments}))"
    )
    done = run_python("-c", code, variables=_environment())
    assert done.returncode == ExitStatus.INCOMPLETE, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    record = read(path)
    assert [(row.kernel, row.status) for row in record.compiled] == [("products", "compiled")]
    assert record.end is not None
    (problem,) = record.end.problems
    assert problem.startswith("rows on attention_delta-")
    assert problem.endswith("for sm 86: it didn't return within 0.001 s")
    assert " INCOMPLETE " in done.stdout


def test_list_names_what_would_be_compiled_and_begins_no_record(compiled: Compiled) -> None:
    """Calls are made, to know what they launch; a variant has its generations beside it."""
    few = ("--kernel", "rows", "--kernel", "dying", "--sm", "86", "--sm", "90")
    done, record = compiled.run("--kernels", str(FILE), *few, "--list")
    assert (done.returncode, done.stderr, record) == (0, "", None)
    assert done.stdout.startswith("1 kernel, and how often each would be compiled:\n")
    assert "  attention_delta rows 2\n" in done.stdout
    (variant,) = (line for line in done.stdout.splitlines() if ", sm " in line and ": rows" in line)
    assert variant.endswith(", sm 86 90")
    assert "2 calls failed, and the launches are unknown:\n  on sm " in done.stdout


def test_kernels_as_they_should_be_keep_every_expectation(cold: tuple[str, Record]) -> None:
    """The kernels that the mutants were made of pass, so the mutants fail by their changes."""
    for name in ("rows", "products"):
        row = of_kernel(cold[1], name)
        assert (row.status, row.expected, row.broken) == ("compiled", 2, ())


@pytest.mark.parametrize(
    ("name", "says", "instruction"),
    [
        ("narrow_rows", "rows come 16 bytes at a time", "LDG.E.U16"),
        ("spilling_rows", "rows stay in registers", "STL"),
        ("oversized_products", "products fit", None),
    ],
)
def test_mutant_breaks_its_expectation(
    cold: tuple[str, Record], name: str, says: str, instruction: str | None
) -> None:
    """A dropped divisibility, a doubled tile, a longer pipeline: each by its claim, and no other.

    The reason comes with the instruction and the line it is of; of shared memory, which is asked
    for at launch, there is no instruction.
    """
    text, record = cold
    (broken,) = of_kernel(record, name).broken
    assert broken.says == says
    if instruction is None:
        assert broken.sass is None
        assert "101,376" in broken.reason
    else:
        assert instruction in (broken.sass or "")
        assert "tests/candidates/kernels_to_compile.py:" in (broken.sass or "")
    assert says in text
    assert record.end is not None
    assert record.end.exit_status == 1


@pytest.fixture(scope="module")
def warm(compiled: Compiled, cold: tuple[str, Record]) -> tuple[str, Record]:
    """Three of the kernels again with sm 90 beside it, against the first record."""
    against = ("--against", str(cold[1].path))
    sms = ("--sm", "86", "--sm", "90")
    names = ("products", "oversized_products", "described")
    few = (word for name in names for word in ("--kernel", name))
    done, record = compiled.run("--kernels", str(FILE), *few, *sms, *against)
    assert record is not None, done.stderr
    return done.stdout, record


def test_kept_measurements_are_taken_and_not_made_again(
    cold: tuple[str, Record], warm: tuple[str, Record]
) -> None:
    """Rows of sm 86 are those of the first run, seconds included, and so nothing was compiled."""
    again = [row for row in warm[1].compiled if row.sm == 86]
    assert len(again) == 3
    assert all(row in cold[1].compiled for row in again)
    assert "0 changes" in warm[0]


def test_what_is_too_large_for_one_generation_fits_another(warm: tuple[str, Record]) -> None:
    """sm 90 has room for what sm 86 hasn't, and other instructions."""
    rows = {(row.kernel, row.sm): row for row in warm[1].compiled}
    assert rows["described", 90].mix is not None
    assert rows["described", 90].mix.bulk
    assert rows["oversized_products", 86].blocks_per_sm == 0
    assert rows["oversized_products", 90].blocks_per_sm == 1
    assert rows["products", 90].mix is not None
    assert any("HGMMA" in name for name in rows["products", 90].mix.matrix)
    (broken,) = rows["products", 90].broken
    assert "no HMMA is in its code, which has HGMMA" in broken.reason


def test_user_file_that_ends_the_process_is_one_sentence(
    compiled: Compiled, tmp_path: Path
) -> None:
    """Importing it in earnest would end the run: it is tried in a process that may end."""
    file = tmp_path / "mine.py"
    file.write_text("import os\nos._exit(7)\n")
    done, record = compiled.run("--kernels", str(file))
    assert (done.returncode, record) == (2, None)
    assert done.stderr == (
        f"--kernels {file}: while it was imported, it ended its process, with status 7\n"
    )


_WRONG_IN_A_HELPER = """
import torch, triton, triton.language as tl
from kernel_workbench import ATTENTION_DELTA, Domain, kernel

@triton.jit
def helper(pointer):
    total = 0
    for i in range(4):
        total = tl.load(pointer + i)
    return total

@triton.jit
def wrong(pointer):
    tl.store(pointer, helper(pointer))

@kernel(ATTENTION_DELTA, Domain(dtypes=(torch.float32,), sizes={"d_v": (64, 64)}))
def mine(out, do):
    delta = torch.empty(out.shape[:-1], device=out.device)
    wrong[(1,)](delta)
    return (delta,)
"""


def test_fault_in_a_function_that_a_kernel_calls_is_named(
    compiled: Compiled, tmp_path: Path
) -> None:
    """By its line and its cause, though Triton raises an error at the call."""
    file = tmp_path / "mine.py"
    file.write_text(_WRONG_IN_A_HELPER)
    done, record = compiled.run("--kernels", str(file), "--sm", "90")
    assert done.returncode == 1, done.stderr
    assert record is not None
    (reason,) = {row.reason or "" for row in record.compiled if row.status == "failed"}
    assert "it doesn't compile: CompilationError: at 3:4: `for i in range(4):` ... " in reason
    assert "Loop-carried variable total has initial type int32" in reason


@pytest.fixture(scope="module")
def widths() -> dict[str, dict[str, object]]:
    """Return what is measured of a pass over rows for each known fact about its pointers."""
    done = run("studies.vector_widths")
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("sm", [80, 90, 100, 120])
@pytest.mark.parametrize(
    ("known", "width"),
    [
        ("pointer and stride by 16", 16),
        ("pointer by 8", 8),
        ("pointer alone", 2),
        ("stride alone", 2),
        # A mask narrows loads to what divides its end: 36 elements of 2 bytes, and 40.
        ("36 columns", 8),
        ("40 columns", 16),
    ],
)
def test_loads_are_as_wide_as_what_is_known_allows(
    widths: dict[str, dict[str, object]], known: str, width: int, sm: int
) -> None:
    """Every load of both tensors has the width, on every generation."""
    found = widths[known][str(sm)]
    assert isinstance(found, list)
    loads, registers = found
    assert loads == {str(width): 2 * 64 * 64 * 2 // (128 * width)}
    assert 16 <= registers <= 255


def test_narrow_loads_take_more_registers(widths: dict[str, dict[str, object]]) -> None:
    """Single elements take an address and a register each: never fewer than vectors do."""
    for sm in ("80", "90", "100", "120"):
        wide, narrow = widths["pointer and stride by 16"][sm], widths["stride alone"][sm]
        assert isinstance(wide, list)
        assert isinstance(narrow, list)
        assert narrow[1] > wide[1]


def test_missing_tools_are_told_and_the_rest_is_read(
    widths: dict[str, dict[str, object]],
) -> None:
    """Without cuobjdump and nvdisasm registers still come from ptxas, and no code is made up."""
    blind = widths["blind"]
    assert blind["mix"] is None
    assert isinstance(blind["registers"], int)
    assert isinstance(blind["unread"], list)
    assert any("nvdisasm" in str(text) for text in blind["unread"])
    assert any("cuobjdump" in str(text) for text in blind["unread"])


def test_ctrl_c_leaves_the_rows_that_were_compiled(tmp_path: Path) -> None:
    """A row is in the record as soon as it is measured, not when all are."""
    environment = {name: each for name, each in os.environ.items() if name != "TRITON_INTERPRET"}
    places = ("--results", str(tmp_path), "--cache", str(tmp_path / "cache"))
    command = ("-m", "kernel_workbench.suites.compile", "--kernel", "delta", "--jobs", "1", *places)
    running = Running(sys.executable, *command, variables=environment)
    records = partial(tmp_path.glob, "*.jsonl")
    wait_for(lambda: any(each.read_bytes().count(b"\n") > 1 for each in records()), running)
    assert running.process.poll() is None, "no row came"
    done = running.ended(by=signal.SIGINT)
    (path,) = tmp_path.glob("*.jsonl")
    record = read(path)
    assert done.returncode == ExitStatus.INCOMPLETE
    assert record.end is not None
    assert record.end.interrupted
    assert 0 < len(record.compiled) == record.end.rows < record.header.planned_rows


def test_own_cases_are_compiled_in_place_of_the_suites(compiled: Compiled, tmp_path: Path) -> None:
    """A recording's line is one; expectations are about the suite's cases, and don't count."""
    file = tmp_path / "calls.jsonl"
    line = {"op": "attention_delta", "sizes": {"b": 1, "h_q": 3, "s_q": 77, "d_v": 64}}
    file.write_text(json.dumps(line | {"dtype": "bfloat16", "weight": 12, "calls": []}) + "\n")
    chosen = ["--kernels", str(FILE), "--kernel", "rows", "--kernel", "spilling_rows"]
    done, record = compiled.run(*chosen, "--sm", "86", "--cases", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert record is not None
    assert {row.kernel for row in record.compiled} == {"rows", "spilling_rows"}
    assert {row.case.sizes["s_q"] for row in record.compiled} == {77}
    assert {row.expected for row in record.compiled} == {0}
    file.write_text("{}\n")
    done, record = compiled.run(*chosen, "--sm", "86", "--cases", str(file))
    assert (done.returncode, record) == (2, None)
    assert "calls.jsonl, line 1: op is missing" in done.stderr
