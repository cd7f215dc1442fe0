"""Commands that reports print, and options: none that decides a result is lost or ignored."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.reports.record import Record, latest, read
from kernel_workbench.suites.run.option_table import OF_SUITE, OPTIONS, CallingOptions, options_from
from kernel_workbench.suites.run.options import SuiteOptions
from kernel_workbench.suites.run.reproduce import DECIDE, command_of, deciding_options
from tests.builders.commands import run_python

pytestmark = pytest.mark.long_run

_SUITES = ("accuracy", "bench", "profile", "search")
CPU = torch.device("cpu")
# A baseline that --kernel names gates, as by --gate-baselines; a search's cases come by --case.
SELECT = frozenset(
    (
        *("--op", "--kernel", "--kernels", "--dtype", "--case", "--seed", "-k", "--lf"),
        *("--ff", "--failed", "--resume", "--shard", "--known", "--done", "--configuration"),
        *("--minutes", "--finds", "--quick", "--no-baselines", "--distribution"),
        "--gate-baselines",
    )
)
SHOW = frozenset(
    (
        *("--jobs", "--coverage", "--gpus", "--gpus-together", "--against", "--rounds", "--ncu"),
        *("--gate", "-x", "--maxfail", "--results", "--hash-uuid", "--details", "--list"),
        *("--collect-only", "--pdb", "-s", "-q", "-v", "--no-header", "--no-summary", "-p", "-W"),
        *("-o", "--tb", "--json", "--max-seconds", "--fail-fast", "--accept", "--accepted"),
        *("--function", "--changed"),
    )
)
# Right at first sight, and wrong by what a command has to repeat: where it is interpreted, the sm
# that it is asked about, how long a call may take, by a configuration, on some values alone.
_KERNELS = """
import os, time, torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, configuration, kernel

SERVED = Domain(dtypes=(torch.float32, torch.bfloat16), strides="contiguous")

def _softmax(x):
    x = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    return x / x.sum(-1, keepdim=True)

@kernel(SOFTMAX_FORWARD, SERVED)
def wrong_on_80(x):
    off = 2 if os.environ["WORKBENCH_SIMULATED_SM"] == "80" else 1
    return (_softmax(x) * off).to(x.dtype)

@kernel(SOFTMAX_FORWARD, SERVED)
def slow(x):
    time.sleep(3)
    return _softmax(x).to(x.dtype)

@kernel(SOFTMAX_FORWARD, SERVED, configurations=lambda case, sm: ("one", "two"))
def wrong_by_two(x):
    return (_softmax(x) * (1 + (configuration() == "two"))).to(x.dtype)
"""
_LINE = {"op": "softmax_forward", "sizes": {"m": 3, "n": 21}, "dtype": "float32"}


def _options(suite: str, *words: str) -> CallingOptions:
    options = options_from(OF_SUITE[suite], SuiteOptions(suite).read(list(words)))
    assert isinstance(options, CallingOptions)
    return options


@pytest.mark.parametrize("suite", _SUITES)
def test_each_option_is_of_one_kind(suite: str) -> None:
    """A new one has to be called one that decides, selects or shows."""
    names = {each.names[0] for each in OPTIONS if suite in each.suites}
    kinds = [frozenset(DECIDE), SELECT, SHOW]
    assert not names - frozenset.union(*kinds)
    assert sum(map(len, kinds)) == len(frozenset.union(*kinds))


_VALUES = {
    "--sm": "80",
    "--time-limit": "7",
    "--memory-limit": "1.5",
    "--signs": "12",
    "--tier": "full",
    "--cache": "warm",
    "--row-time": "0.2",
    "--window": "3",
    "--trials": "2",
    "--device": "cpu",
}


@pytest.mark.parametrize("suite", ["accuracy", "bench", "profile"])
def test_command_of_a_row_has_each_option_that_decides(suite: str, tmp_path: Path) -> None:
    """With the same value, so that the suite reads the same from it."""
    for option in OPTIONS:
        name = option.names[0]
        if suite not in option.suites or name not in DECIDE:
            continue
        file = "FILE" in str(option.settings.get("metavar"))
        flag = option.settings.get("action") == "store_true"
        words = [name]
        if not flag:
            words.append(str(tmp_path / "file") if file else _VALUES[name])
        options = _options(suite, *words)
        kernel = next(each for each in all_kernels() if each.name == "torch_eager")
        case = next(iter(kernel.op.cases()))
        command = command_of(suite, kernel, case, deciding_options(options, suite, CPU))
        repeated = _options(suite, *shlex.split(command.partition(f" {suite} ")[2]))
        destination = vars(options).keys() - {"device", "kernel", "case"}
        assert {each: vars(repeated)[each] for each in destination} == {
            each: vars(options)[each] for each in destination
        }, command
        assert repeated.device == "cpu"


@pytest.mark.parametrize("limit", ["0.1", "0.3", "1", "100000"])
def test_memory_limit_is_repeated_to_the_byte(limit: str) -> None:
    """The least limit too: rounded to whole bytes, it may not fall below what the option takes."""
    options = _options("accuracy", "--memory-limit", limit)
    words = shlex.split(" ".join(deciding_options(options, "accuracy", CPU)))
    assert vars(_options("accuracy", *words))["memory_limit"] == vars(options)["memory_limit"]


def test_limit_of_a_search_is_that_of_its_command() -> None:
    """A call may take 60 s in a search and 300 in `accuracy`, which runs the command."""
    words = deciding_options(_options("search"), "accuracy", CPU)
    assert words == ("--device cpu", "--time-limit 60")
    assert deciding_options(_options("accuracy"), "accuracy", CPU) == ("--device cpu",)


def _run(suite: str, results: Path, *words: str, **variables: str) -> tuple[str, Record]:
    ran = run_python(
        "-m",
        "kernel_workbench.suites.run",
        suite,
        f"--results={results}",
        *words,
        variables=os.environ | variables,
    )
    assert "INTERNALERROR" not in ran.stdout
    return ran.stdout, read(latest(results))


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("wrong_on_80", ("--sm=80",)),
        ("slow", ("--time-limit=0.5",)),
        ("wrong_by_two", ("--every-configuration",)),
    ],
)
def test_printed_command_sees_the_same_failure(
    kernel: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """As it is printed, and on that row alone."""
    file, cases = tmp_path / "my kernels.py", tmp_path / "cases"
    file.write_text(_KERNELS)
    cases.write_text(json.dumps(_LINE))
    asked = ("--device=cpu", f"--kernels={file}", f"--cases={cases}", f"--kernel={kernel}")
    printed, record = _run("accuracy", tmp_path / "first", *asked, *options)
    (failed,) = [row for row in record.rows if row.status == "failed"]
    command = re.findall(r"^ +kernel-workbench accuracy (.*)$", printed, re.MULTILINE)[0]
    assert failed.reproduce == f"kernel-workbench accuracy {command}"
    _, again = _run("accuracy", tmp_path / "again", *shlex.split(command))
    (row,) = again.rows
    told = ("kernel", "rule", "reason", "outputs", "configuration", "signs")
    assert [getattr(row, each) for each in told] == [getattr(failed, each) for each in told]


def test_command_of_a_search_finds_the_same(tmp_path: Path) -> None:
    """Run as it is printed it said PASSED, on kernels of the checkout."""
    file = tmp_path / "my kernels.py"
    file.write_text(_KERNELS)
    few = ("--sm=80", "--minutes=30", "--finds=1", "--jobs=1", "--dtype=bfloat16")
    asked = ("--device=cpu", f"--kernels={file}", "--kernel=wrong_on_80", *few)
    printed, record = _run("search", tmp_path / "search", *asked)
    (find,) = record.finds
    assert {row.case.dtype for row in record.rows} == {"bfloat16"}
    assert find.dtypes == ("bfloat16",)
    text = " ".join(printed.split())
    words = shlex.split(re.findall(r"all of them again: kernel-workbench accuracy (.*?);", text)[0])
    _, again = _run("accuracy", tmp_path / "again", *words)
    (row,) = again.rows
    assert (row.case.id, row.kernel, row.status) == (find.case.id, find.kernel, "failed")


# Read before a suite begins; by way of `vars`, as a suite may lack it; or by pytest.
_ELSEWHERE = {"device", "resume", "done", "shard", "planned_cases", "failedfirst", "pdb"}


@pytest.mark.parametrize("suite", ["accuracy", "search"])
def test_each_option_is_read(suite: str, tmp_path: Path) -> None:
    """An option that no code of a run looks at does nothing: `search --dtype` was such a one."""
    file, cases = tmp_path / "mine.py", tmp_path / "cases"
    file.write_text(_KERNELS)
    cases.write_text(json.dumps(_LINE))
    asked = ["--device=cpu", f"--kernels={file}", "--kernel=wrong_on_80", f"--cases={cases}"]
    asked += ["-p", "tests.builders.read_options", "--jobs=1"]
    asked += ["--minutes=0.01"] * (suite == "search")
    names = tmp_path / "read"
    _run(suite, tmp_path / "results", *asked, WORKBENCH_TEST_READ=str(names))
    options = _options(suite)
    shown = {
        SuiteOptions(suite)._option_string_actions[each.names[0]].dest
        for each in OPTIONS
        if suite in each.suites and not each.pytests
    }
    assert shown <= set(vars(options))
    assert shown - set(names.read_text().split()) <= _ELSEWHERE
