"""Mistakes on a command line: one sentence, a status that isn't 0, and nothing written or lost.

Each is tried through the command's own `main`, in a process forked from this one, which has torch
loaded: a process of its own takes seconds for each. Commands that start workers are run as a user
runs them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from kernel_workbench.kernels import all_kernels, registry
from kernel_workbench.oracles import LAYER_NORM_BACKWARD, OPS
from kernel_workbench.reports.__main__ import main as report
from kernel_workbench.reports.comparison.__main__ import main as compare
from kernel_workbench.suites.accuracy.sanitizer import main as sanitize
from kernel_workbench.suites.compile.__main__ import main as compile_kernels
from tests import ROOT
from tests.builders.accuracy_records import example_rows, write_example
from tests.builders.bench_records import bench_rows, write_bench
from tests.builders.commands import run_python
from tests.mutants.__main__ import main as mutants

OP = "layer_norm_backward"
SMALL = f"{OP}-m1-n1-float32-contiguous"
ONE = f"--kernel row_persistent --case {SMALL}"  # a run of all takes a second to plan
# As the noxfile has it.
QUIET = "--no-header --no-summary --tb=short -qq -p no:cacheprovider -p no:logging"
LONGEST_S = 600  # that a mistake takes to be told; seconds on an idle machine

_KERNEL = """
import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)), name={name!r})
def function(**arguments):
    pass
"""
_NORM: dict[str, object] = {"op": OP, "sizes": {"m": 7, "n": 264}, "dtype": "bfloat16"}
_NAN = '{"op": "layer_norm_backward", "sizes": {"m": NaN, "n": 1}, "dtype": "float32"}'
# The files in the user's folder, which the rows call {0}.
_FILES = {
    "text.txt": "a note\n",
    "note.gz": "a note\n",
    "page.html": "a note, and no page\n",
    "code.md": '{"kind": "no Markdown"}\n',
    "syntax.py": "def mine(:\n",
    "raises.py": "x = 1\nx / 0\n",
    "nothing.py": "import kernel_workbench\n",
    "exits.py": "import os\nos._exit(0)\n",
    "quits.py": "raise SystemExit(0)\n",
    "twice.py": 2 * _KERNEL.format(name="same"),
    "variants.py": _KERNEL.format(name="varied").replace(
        "name=", "variants=lambda sm: 1 / 0, name="
    ),
    "taken.py": _KERNEL.format(name="row_persistent"),
    "empty.jsonl": "",
    "garbage.jsonl": "\x01\x02 no record\n",
    "cut.jsonl": '{"kind":"run","schema_ver',
    "cases/not.jsonl": "{op: 3}\n",
    "cases/nan.jsonl": _NAN,
    "cases/negative.jsonl": json.dumps(_NORM | {"sizes": {"m": -1, "n": 1}}),
    "cases/op.jsonl": json.dumps(_NORM | {"op": "layernorm_backward"}),
    "cases/empty.jsonl": "\n",
}
_LONG = "n" * 300

# A command and its options, and what the sentence says. {0} is the user's folder.
_ROWS: tuple[tuple[str, str, str], ...] = (
    ("accuracy", "--kernal flash", "--kernal: there is no such option; did you mean --kernel?"),
    ("accuracy", "--kerne=flash", "--kerne: there is no such option; did you mean --kernel"),
    (
        "accuracy",
        "--sw",
        "--sw: there is no such option; kernel-workbench accuracy --help lists them",
    ),
    ("accuracy", "-n4", "-n4: there is no such option"),
    ("accuracy", "--gate", "it is an option of bench: kernel-workbench bench --gate"),
    ("accuracy", "--gate --against main", "it is an option of bench"),
    ("accuracy", "--ncu", "it is an option of bench: kernel-workbench bench --ncu"),
    ("accuracy", "--accepted=''", "--accepted: it names nothing; write what is meant"),
    ("accuracy", f"--accepted=none {ONE}", "--accepted none: it can't be read (No such file"),
    ("accuracy", f"--accepted={{0}}/bench.jsonl {ONE}", "it begins as JSON and isn't JSON"),
    ("accuracy", f"--accepted={{0}} {ONE}", "it can't be read (Is a directory)"),
    ("accuracy", f"--accept={{0}}/text.txt {ONE}", "isn't a list that --accept wrote, so it"),
    ("accuracy", f"--accept={{0}} {ONE}", "it is a folder; name a file"),
    ("accuracy", f"--accept={{0}}/no/such.txt {ONE}", "there is no such folder; make it first"),
    ("accuracy", "--max-seconds nan", "--max-seconds: 'nan' isn't a number from 0.1"),
    ("accuracy", "--max-seconds 0", "--max-seconds: '0' isn't a number from 0.1"),
    ("accuracy", "--fail-fast=1", "--fail-fast takes no value, and has '1'"),
    ("accuracy", "--json=x", "--json takes no value, and has 'x'"),
    ("accuracy", "--problem=''", "--problem: it names nothing; write what is meant"),
    ("accuracy", "--problem=no/such.py", "no/such.py: there is no such file"),
    ("bench", "--accepted x", "it is an option of accuracy: kernel-workbench accuracy --accepted"),
    ("accuracy", "--rounds 3", "it is an option of bench: kernel-workbench bench --rounds"),
    ("accuracy", "--window=3", "it is an option of profile: kernel-workbench profile --window"),
    ("accuracy", "--benchmark-json=x", "--benchmark-json: there is no such option"),
    ("accuracy", "--op", "--op takes a value; write it after it"),
    ("accuracy", "--no-strict=1", "--no-strict takes no value, and has '1'"),
    ("accuracy", "some/path.py", "some/path.py: accuracy takes no paths and no bare words"),
    ("accuracy", "flash", "flash: accuracy takes no paths and no bare words"),
    ("accuracy", "--op=layernorm_backward", f"there is no such op; did you mean {OP}?"),
    ("accuracy", "--op=fft", "--op fft: there is no such op; there are add_rms_norm_backward, "),
    ("accuracy", "--op=''", "there is no such op; there are add_rms_norm_backward, "),
    ("accuracy", "--kernel=row_presistent", "did you mean row_persistent?"),
    (
        "accuracy",
        "--op=attention_delta --kernel=row_persistent",
        "--op and --kernel together leave no kernel to run",
    ),
    ("accuracy", "--dtype=bf16", "there is no such dtype; did you mean bfloat16?"),
    ("accuracy", "--kernel=FLASH", "--kernel FLASH: there is no such kernel; did you mean flash?"),
    ("accuracy", "--tier=fast", "--tier fast: there is no such tier; use ci or full"),
    ("accuracy", f"--case={SMALL[:-1]}", f"there is no such case; did you mean {SMALL}?"),
    ("accuracy", f"--case={SMALL}-seed{'9' * 30}", "there is no such case"),
    ("accuracy", f"--kernel flash --case {SMALL}", f"it is a case of {OP}, and the selected"),
    ("accuracy", f"--case={SMALL} --dtype=float16", "--case and --dtype together leave no case"),
    ("accuracy", "--device=gpu", "--device gpu: there is no such device; use cpu or cuda"),
    ("accuracy", "--time-limit nan", "--time-limit: 'nan' isn't a number from 0.1 to 604,800"),
    ("accuracy", "--time-limit=-1", "--time-limit: '-1' isn't a number from 0.1"),
    ("accuracy", "--memory-limit nan", "--memory-limit: 'nan' isn't a number from 0.1"),
    ("accuracy", "--memory-limit=inf", "--memory-limit: 'inf' isn't a number from 0.1"),
    ("accuracy", "--in-process --time-limit 3", "--time-limit: --in-process has no process of"),
    ("accuracy", "--jobs 1000000000", "--jobs: '1000000000' isn't a whole number from 1 to"),
    ("accuracy", "--jobs 0", "--jobs: '0' isn't a whole number from 1 to"),
    ("accuracy", "--jobs -1", "--jobs: '-1' isn't a whole number from 1 to"),
    ("accuracy", "--jobs=two", "--jobs: 'two' isn't a whole number from 1 to"),
    ("accuracy", "--seed 0..999999999", "0..999999999 is 1,000,000,000 seeds, and a run has at"),
    ("accuracy", "--seed 0..999", "these options ask for "),
    ("accuracy", "--seed 5..1", "--seed: 5..1 is empty; give the smaller number first"),
    ("accuracy", "--seed=x", "--seed: 'x' isn't a whole number"),
    ("accuracy", "--seed 99999999999", "--seed: '99999999999' isn't a whole number from -2,"),
    ("accuracy", "--sm 0", "--sm: '0' isn't a whole number from 70 to 199"),
    ("accuracy", "--sm sm_90", "--sm: 'sm_90' isn't a whole number from 70 to 199"),
    ("accuracy", "--signs=-1", "--signs: '-1' isn't a whole number from 0"),
    ("accuracy", f"-k nosuchword {ONE}", "-k nosuchword: no row's name matches; one of "),
    ("accuracy", f"-k nosuchword --co {ONE}", "-k nosuchword: no row's name matches"),
    ("accuracy", f"-k 'a and and' {ONE}", "Wrong expression passed to '-k': a and and: at"),
    ("accuracy", f"--resume=missing {ONE}", "--resume: missing: there is no such file"),
    ("accuracy", f"--resume={{0}}/garbage.jsonl {ONE}", "garbage.jsonl, line 1: not JSON"),
    ("accuracy", f"--resume={{0}}/bench.jsonl {ONE}", "its suite is bench, and here it is"),
    ("accuracy", "--maxfail 0", "--maxfail: '0' isn't a whole number from 1 to"),
    ("accuracy", f"--failed=missing {ONE}", "--failed: missing: there is no such file"),
    ("accuracy", f"--failed={{0}}/bench.jsonl {ONE}", "it is a record of bench, and this run is"),
    ("accuracy", f"--failed={{0}}/record.jsonl --case {SMALL}", "these options select none of"),
    ("accuracy", "--results=''", "--results: it names nothing; write what is meant"),
    ("accuracy", f"--results=/dev/null/a {ONE}", "--results /dev/null/a: "),
    ("accuracy", f"--results={{0}}/text.txt {ONE}", "the record can't be created"),
    ("accuracy", "--kernels=''", "--kernels: it names nothing; write what is meant"),
    ("accuracy", "--kernels=no/such.py", "--kernels no/such.py: there is no such file"),
    ("accuracy", "--kernels={0}", "it is a folder; name a Python file"),
    ("accuracy", f"--kernels={_LONG}.py", "there is no such file ([Errno 36] File name too long"),
    ("accuracy", "--kernels={0}/text.txt", "not a Python file (its name must end in .py)"),
    ("accuracy", "--kernels={0}/syntax.py", "raised SyntaxError: invalid syntax (syntax.py, line"),
    ("accuracy", "--kernels={0}/raises.py", "raised ZeroDivisionError: division by zero (line 2)"),
    ("accuracy", "--kernels={0}/nothing.py", "it registers no kernel; decorate a function with"),
    ("accuracy", "--kernels={0}/exits.py", "--kernels {0}/exits.py: "),
    ("accuracy", "--kernels={0}/quits.py", "--kernels {0}/quits.py: "),
    ("accuracy", "--kernels={0}/twice.py", f"two kernels of {OP} are called same: one in {{0}}"),
    ("accuracy", "--kernels={0}/taken.py", f"two kernels of {OP} are called row_persistent: one"),
    ("accuracy", "--cases={0}/cases/none.jsonl", "there is no such file; give a file of JSON"),
    ("accuracy", "--cases={0}/cases", "it is no file; give a file of JSON lines"),
    ("accuracy", "--cases=/proc/self/mem", "--cases /proc/self/mem: it can't be read ("),
    ("accuracy", "--cases={0}/cases/empty.jsonl", "the file has no case; write one JSON object"),
    ("accuracy", "--cases={0}/cases/not.jsonl", "not.jsonl, line 1: not JSON at column 2"),
    ("accuracy", "--cases={0}/cases/nan.jsonl", "nan.jsonl, line 1: sizes.m: input should be a"),
    ("accuracy", "--cases={0}/cases/negative.jsonl", "line 1: m is -1; give a whole number"),
    ("accuracy", "--cases={0}/cases/op.jsonl", f'"layernorm_backward"; did you mean {OP}?'),
    ("accuracy", "--resume={0}/none.jsonl", "--resume: {0}/none.jsonl: there is no such file"),
    ("accuracy", "--failed={0}/none.jsonl", "--failed: {0}/none.jsonl: there is no such file"),
    ("search", "--resume={0}/empty.jsonl", "--resume: {0}/empty.jsonl: the file is empty"),
    ("accuracy", "--pdb", "--pdb: it says how --in-process is done, which isn't there"),
    ("accuracy", "-s", "-s: it says how --in-process is done, which isn't there"),
    ("accuracy", "--in-process --jobs=2", "--jobs: --in-process calls kernels in one process"),
    ("accuracy", "--in-process --signs=2", "--signs: --in-process calls kernels on the same"),
    ("bench", "--pdb", "--pdb: bench doesn't serve it; it is an option of accuracy"),
    ("profile", "-s", "-s: profile doesn't serve it; it is an option of accuracy"),
    ("search", "--pdb", "--pdb: search doesn't serve it; it is an option of accuracy"),
    ("sanitize", "--pdb", "--pdb: sanitize doesn't serve it; it is an option of accuracy"),
    ("search", "--dtype=float8", "--dtype float8: there is no such dtype"),
    ("compile", "--check-driver --sm 90", "--sm: --check-driver asks the driver of this machine"),
    ("bench", "--tier full", "it is an option of accuracy, sanitize"),
    (
        "bench",
        "--in-process",
        "it is an option of accuracy, search: kernel-workbench accuracy --in",
    ),
    (
        "bench",
        "--resume=x",
        "it is an option of accuracy, search: kernel-workbench accuracy --resume",
    ),
    ("bench", "--row-time nan", "--row-time: 'nan' isn't a number from 0.001 to 3,600"),
    ("bench", "--row-time=-1", "--row-time: '-1' isn't a number"),
    ("bench", "--rounds 0", "--rounds: '0' isn't a whole number from 1 to 1,000"),
    ("bench", "--gpus ''", "--gpus: it names nothing; write what is meant"),
    ("bench", "--gate", "--gate: it says how --against is done, which isn't there"),
    ("bench", "--gpus-together", "--gpus-together: it says how --gpus is done"),
    ("bench", "--cache=hot", "--cache: invalid choice: 'hot' (choose from"),
    ("bench", "--op=attention_delta", "bench: no case of attention_delta is timed by default"),
    ("bench", f"--op {OP} -k zzz", "-k zzz: no row's name matches; one of "),
    ("bench", "--against=nosuchref", "nosuchref"),
    ("bench", "--against=old.py", "name the newer file too: --kernels NEW.py --against OLD.py"),
    ("bench", "--benchmark-jsn=x", "there is no such option; did you mean --benchmark-json?"),
    ("bench", "--benchmark-json={0}/record.jsonl", "the file that is there is a record"),
    ("bench", "--rounds 2 --benchmark-json=x.json", "--rounds times in several processes"),
    ("bench", "--against=HEAD --benchmark-json=x.json", "--against times in several processes"),
    ("bench", "--rounds 2 --lf", "--lf: --rounds starts several runs, of which none is the last"),
    ("bench", "--gpus=all --ff", "--ff: --gpus starts several runs, of which none is the last"),
    ("bench", f"--op {OP} --benchmark-compare", "--benchmark-compare: no run is saved in "),
    ("bench", f"--op {OP} --benchmark-compare=0001", "no run that 0001 names is saved in "),
    ("bench", "--benchmark-skip", "--benchmark-skip: every row would be left out"),
    ("bench", "--benchmark-compare-fail=min:5%", "--benchmark-compare is done, which isn't"),
    ("bench", f"--op {OP} --benchmark-group-by=x", "--benchmark-group-by x: there is no such"),
    ("profile", "--window nan", "--window: 'nan' isn't a number from 2 to 3,600"),
    ("profile", "--trials 0", "--trials: '0' isn't a whole number from 1 to 1,000"),
    ("profile", "--distribution=ones", "--distribution: invalid choice: 'ones' (choose from"),
    (
        "profile",
        "--jobs 2",
        "an option of accuracy, search, compile: kernel-workbench accuracy --jobs",
    ),
    (
        "accuracy",
        "--check-driver",
        "it is an option of compile: kernel-workbench compile --check-driver",
    ),
    ("sanitize", "--sw", "--sw: there is no such option"),
    ("sanitize", "--lf", "--lf: sanitize doesn't serve it; it is an option of accuracy"),
    ("sanitize", "--device cpu", "--device: sanitize doesn't serve it"),
    ("compile", "--jobs 0", "--jobs: '0' isn't a whole number from 1 to"),
    ("compile", "flash", "flash: kernel-workbench compile takes options alone"),
    ("compile", "--tier full", "--tier: compile doesn't serve it; it is an option of accur"),
    ("compile", "--against=''", "--against: it names nothing; write what is meant"),
    ("compile", "--kernels={0}/syntax.py", "raised SyntaxError: invalid syntax (syntax.py, line"),
    ("compile", "--kernels={0}/variants.py", "its variants for sm 120 raised ZeroDivisionError"),
    ("compile", "--sm=x", "--sm: 'x' isn't a whole number from 1 to 999"),
    ("compile", "--sm 77", "--sm 77: there is no such generation; there are 75, 80, 86"),
    ("compile", "--op=attention_foward", "there is no such op; did you mean attention_forward?"),
    ("compile", "--kernel=flush", "there is no such kernel; did you mean flash?"),
    ("compile", "--op=attention_delta --kernel=flash", "leave no kernel to run"),
    ("compile", "--kernels={0}/exits.py", "while it was imported, it ended its process, with"),
    ("compile", "--kernels={0}", "it is a folder; name a Python file"),
    ("compile", "--sm 90 --against={0}/record.jsonl", "a record of accuracy"),
    ("compile", "--sm 90 --against={0}/none.jsonl", "there is no such file"),
    ("compile", "--results={0}/text.txt", "it is no folder; name one"),
    ("report", "{0}/record.jsonl --html {0}/record.jsonl", "is a record, so it isn't overwritten"),
    ("report", "{0}/record.jsonl --svg {0}/bench.jsonl", "is a record, so it isn't overwritten"),
    ("report", "{0}/record.jsonl --junit {0}/record.jsonl", "is a record, so it isn't"),
    ("report", "{0}/record.jsonl --markdown {0}/record.jsonl", "is a record, so it isn't"),
    ("report", "{0}/bench.jsonl --roofline {0}/record.jsonl", "is a record, so it isn't"),
    ("report", "{0}/record.jsonl --html {0}/page.html", "isn't HTML, so it isn't overwritten"),
    ("report", "{0}/record.jsonl --markdown {0}/code.md", "isn't Markdown, so it isn't"),
    ("report", "{0}/record.jsonl --markdown {0}/text.txt", "isn't Markdown, so it isn't"),
    ("report", "{0}/record.jsonl --html {0}", "the file can't be written (it is a folder)"),
    ("report", "{0}/record.jsonl --svg -", "--svg -: SVG is written to a file; name one"),
    ("report", "{0}/record.jsonl --svg {0}/a --html {0}/a", "names the same file; give each"),
    ("report", "{0}/record.jsonl --html {0}/a.html --junit /dev/null/b", "--junit /dev/null/b: "),
    ("report", "{0}/none.jsonl", "none.jsonl: there is no such file"),
    ("report", "{0}", "it is a folder; name a record in it"),
    ("report", "{0}/note.gz", "it can't be read (Not a gzipped file (b'a ')); name a record"),
    ("report", "{0}/empty.jsonl", "the file is empty, so it is no record"),
    ("report", "{0}/garbage.jsonl", "garbage.jsonl, line 1: not JSON"),
    ("report", "{0}/cut.jsonl", "cut.jsonl, line 1: not JSON, so the file is no record or its"),
    ("report", "--results={0}/text.txt", "text.txt: it is no folder; --results takes"),
    ("report", "--width=5", "--width: '5' isn't a whole number from 20 to 10,000"),
    ("report", "--widht=80", "--widht: there is no such option; did you mean --width?"),
    ("report", "{0}/record.jsonl {0}/bench.jsonl --markdown -", "--markdown takes one record"),
    ("report", "{0}/record.jsonl --baseline flash", "--baseline takes one of bench"),
    ("report", "{0}/bench.jsonl --baseline x", "no row is of a kernel 'x'"),
    ("report", "{0}/bench.jsonl --junit {0}/a", "a record of bench has no form as JUnit"),
    ("report", "{0}/record.jsonl --roofline {0}/a", "there is no roofline"),
    ("report", "{0}/record.jsonl --against {0}/bench.jsonl", "--against takes two of comp"),
    ("compare", "{0}/bench.jsonl {0}/bench.jsonl --gpu H900", "--gpu H900: none of these records"),
    ("report", "{0}/record.jsonl --check --details", "--details: --check shows nothing"),
    ("report", "{0}/record.jsonl --check --html={0}/new.html", "--html: --check shows nothing"),
    ("report", "{0}/record.jsonl --results={0}", "--results names the latest record's folder"),
    ("compare", "", "RECORD is missing; name at least one"),
    ("compare", "{0}/bench.jsonl {0}/none.jsonl", "none.jsonl: there is no such file"),
    ("compare", "{0}/bench.jsonl {0}", "it is a folder; name a record in it"),
    ("compare", "{0}/bench.jsonl {0}/garbage.jsonl", "garbage.jsonl, line 1: not JSON"),
    ("compare", "{0}/bench.jsonl {0}/cut.jsonl", "cut.jsonl, line 1: not JSON"),
    ("compare", "{0}/bench.jsonl {0}/empty.jsonl", "the file is empty, so it is no record"),
    ("compare", "{0}/bench.jsonl", "was passed {0}/bench.jsonl of bench; name another record"),
    ("compare", "{0}/bench.jsonl {0}/record.jsonl", "compare needs two records of one suite"),
    ("compare", "{0}/bench.jsonl {0}/bench.jsonl --html {0}/bench.jsonl", "is a record, so it"),
    ("compare", "{0}/bench.jsonl {0}/bench.jsonl --gat", "there is no such option; did you mean"),
    ("mutants", "--jobs 0", "--jobs: '0' isn't a whole number from 1 to"),
    ("mutants", "--sample 0", "--sample: '0' isn't a whole number from 1 to 10,000"),
    ("mutants", "--detection {0}", "the file can't be written (it is a folder)"),
    ("mutants", "--detection {0}/record.jsonl", "is a record, so it isn't overwritten"),
    ("mutants", "nosuchmutant", "there is no mutant called nosuchmutant"),
)


def _suite(folder: str) -> Callable[[list[str]], int]:
    return lambda arguments: int(pytest.main([folder, *arguments]))


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "accuracy": _suite("kernel_workbench/suites/accuracy"),
    "bench": _suite("kernel_workbench/suites/bench"),
    "profile": _suite("kernel_workbench/suites/profile"),
    "search": _suite("kernel_workbench/suites/search"),
    "sanitize": sanitize,
    "compile": compile_kernels,
    "report": report,
    "compare": compare,
    "mutants": mutants,
}
_WITH_RESULTS = {"accuracy", "bench", "profile", "search", "compile"}
_MODULES = {
    "accuracy": ("pytest", "kernel_workbench/suites/accuracy"),
    "bench": ("pytest", "kernel_workbench/suites/bench"),
    "compile": ("kernel_workbench.suites.compile",),
}
# Options with which these are refused by workers, or while those start, as compile's all do.
_BY_WORKERS = re.compile(r"--kernels=\{0\}|^--op=attention_delta$| -k zzz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> Path:
    """A user's folder: files that are no use, and two records."""
    if device.type == "cuda":
        pytest.skip("a GPU isn't to be used after a fork; --device=cpu tells mistakes alike")
    made = tmp_path_factory.mktemp("user")
    for name, text in _FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    write_example(made / "record.jsonl", example_rows())
    write_bench(made / "bench.jsonl", bench_rows())
    all_kernels()  # once, for all forks
    for each in OPS.values():
        each.cases()
    return made


def _held(folder: Path) -> dict[Path, bytes]:
    files = (each for each in folder.rglob("*") if each.is_file())
    # Python keeps what it has compiled of a user's file beside it, as for every import.
    return {each: each.read_bytes() for each in files if each.parent.name != "__pycache__"}


def _run(command: str, arguments: list[str]) -> tuple[int, str]:
    """Run a command as a user does; its exit status, and what it prints."""
    interprets = str(int(command != "compile"))
    variables = os.environ | {"PYTEST_ADDOPTS": QUIET, "TRITON_INTERPRET": interprets}
    done = run_python("-m", *_MODULES[command], *arguments, variables=variables)
    return done.returncode, (done.stdout + done.stderr).strip()


def _forked(command: str, arguments: list[str], output: Path) -> tuple[int, str]:
    """Run a command in a process forked from this one; its exit status, and what it prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which wait for work here
        child = os.fork()
    if child == 0:
        _in_child(command, arguments, output)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output.read_text().strip()


def _in_child(command: str, arguments: list[str], output: Path) -> NoReturn:
    status = 70  # of an error that nobody caught
    try:
        signal.alarm(LONGEST_S)
        file = os.open(output, os.O_CREAT | os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(file, stream)
        sys.stdout, sys.stderr = (open(each, "w", buffering=1) for each in (1, 2))  # noqa: SIM115,PTH123
        os.environ["PYTEST_ADDOPTS"] = f"{QUIET} -p no:faulthandler"
        os.chdir(ROOT)
        status = _COMMANDS[command](arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            sys.stdout.write(end.code)
    except BaseException:  # noqa: BLE001 (all of it is to be seen by the test)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@pytest.mark.parametrize(("command", "options", "words"), _ROWS)
def test_mistake_is_told_in_one_sentence(
    command: str, options: str, words: str, folder: Path, tmp_path: Path
) -> None:
    """The status isn't 0, no file is made, changed or lost, and what is wrong is said."""
    arguments = [each.replace("{0}", str(folder)) for each in shlex.split(options)]
    if command in _WITH_RESULTS:
        results = [] if "--results" in options else [f"--results={folder}/results"]
        device = [] if command == "compile" or "--device" in options else ["--device=cpu"]
        arguments = [*results, *device, *arguments]
    before = _held(folder)
    if command == "compile" or (command in _MODULES and _BY_WORKERS.search(options)):
        status, told = _run(command, arguments)
    else:
        status, told = _forked(command, arguments, tmp_path / "output")
    assert status > 0, told
    assert len(told.splitlines()) == 1, told
    assert words.replace("{0}", str(folder)) in told
    assert "Traceback" not in told and "INTERNALERROR" not in told
    assert told.isprintable()
    assert _held(folder) == before


def test_peer_that_is_not_installed_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than as a name that nobody knows."""
    peer = registry.Absent(LAYER_NORM_BACKWARD, "quick", "not installed: pip install quick")
    monkeypatch.setattr(registry, "_absent", {(OP, "quick"): peer})
    arguments = [f"--results={folder}/results", "--device=cpu", "--kernel=quick"]
    status, told = _forked("accuracy", arguments, tmp_path / "output")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert told == "ERROR: --kernel quick: not installed: pip install quick"


@pytest.mark.parametrize("module", ["pytest", "kernel_workbench.suites.compile", "tests.mutants"])
def test_python_without_asserts_is_refused(module: str) -> None:
    """Under -O a kernel's contract would go unchecked, and the suites' own invariants."""
    suite = ["kernel_workbench/suites/accuracy"] if module == "pytest" else []
    done = run_python("-O", "-m", module, *suite)
    assert done.returncode != 0
    (line,) = (done.stdout + done.stderr).splitlines()
    assert line.startswith("Python's -O and PYTHONOPTIMIZE leave out asserts")


def test_mistakes_are_many() -> None:
    """Every command has some mistakes."""
    assert len(_ROWS) >= 100
    assert {command for command, _, _ in _ROWS} == set(_COMMANDS)
