"""What a command line can't mean is refused in one sentence, before anything runs.

Each is tried in this process, through the same command line as `nox -s accuracy` has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import all_kernels, registry
from oracles import LAYER_NORM_BACKWARD

ROOT = Path(__file__).resolve().parents[1]
OP = "layer_norm_backward"
SMALL = f"{OP}-m1-n1-float32-contiguous"
# As the noxfile has it.
QUIET = "--no-header --no-summary --tb=short -q -p no:cacheprovider -p no:logging"

_KERNEL = """
import torch
from kernels import LAYER_NORM_BACKWARD, Domain, kernel

@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)), name={name!r})
def function(**arguments):
    pass
"""
_OURS = ROOT / "kernels" / "layer_norm" / "row_persistent.py"
_SAME = "two kernels of layer_norm_backward are called"
# The text of a user's file, and what follows `--kernels FILE: `; {} is the file.
_WRONG_FILES: dict[str, tuple[str, str]] = {
    "not_python.txt": ("", "not a Python file (its name must end in .py)"),
    "syntax.py": (
        "def mine(:\n",
        "importing it raised SyntaxError: invalid syntax (syntax.py, line 1)",
    ),
    "raises.py": (
        "x = 1\nx / 0\n",
        "importing it raised ZeroDivisionError: division by zero (line 2)",
    ),
    "empty.py": (
        "import kernels\n",
        "it registers no kernel; decorate a function with @kernel(LAYER_NORM_BACKWARD, ",
    ),
    "misspelt.py": (
        _KERNEL.format(name="mine").replace("32,)", "32,), strides='contigous'"),
        "Domain: strides is 'contigous'; did you mean contiguous? (line 5)",
    ),
    "keyword.py": (
        _KERNEL.format(name="mine").replace("name=", "nam="),
        "importing it raised TypeError: kernel() got an unexpected keyword argument 'nam'; did you",
    ),
    "part.py": (
        _KERNEL.format(name="mine").replace("name=", "returns=('dbais',), name="),
        "kernel mine in {}: returns has 'dbais', which is no output of the op; did you mean dbias?",
    ),
    "twice.py": (
        2 * _KERNEL.format(name="same"),
        f"{_SAME} same: one in {{}}, one in {{}}; give the second another name",
    ),
    "taken.py": (
        _KERNEL.format(name="row_persistent"),
        f"{_SAME} row_persistent: one in {_OURS}, one in {{}}; give the second another name",
    ),
}
_WRONG_OPTIONS: dict[str, tuple[str, str]] = {
    "file": ("--kernels=no/such.py", "--kernels no/such.py: there is no such file"),
    "op": ("--op=layernorm", f"--op layernorm: there is no such op; did you mean {OP}?"),
    "no op": (
        "--op=fft",
        "--op fft: there is no such op; there are attention_backward, attention_delta, ",
    ),
    "kernel": (
        "--kernel=row_presistent",
        "--kernel row_presistent: there is no such kernel; did you mean row_persistent?",
    ),
    "kernel of another op": (
        "--op=attention_delta --kernel=row_persistent",
        "--op and --kernel together leave no kernel to run",
    ),
    "dtype": (
        "--dtype=bf16",
        "--dtype bf16: there is no such dtype; did you mean bfloat16?",
    ),
    "tier": ("--tier=fast", "--tier fast: there is no such tier; use ci or full"),
    "case": (
        f"--case={SMALL[:-1]}",
        f"--case {SMALL[:-1]}: there is no such case; did you mean {SMALL}?",
    ),
    "case and dtype": (
        f"--case={SMALL} --dtype=float16",
        "--case and --dtype together leave no case to run",
    ),
    "device": ("--device=gpu", "--device gpu: there is no such device; use cpu or cuda"),
}


@pytest.fixture
def refusal(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run the suite in this process with options that it refuses; give the one line shown."""
    all_kernels()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{QUIET} -p no:faulthandler")
    monkeypatch.chdir(ROOT)

    def refused(*options: str) -> str:
        status = pytest.main(["suites/accuracy", "--device", device.type, *options])
        assert status == pytest.ExitCode.USAGE_ERROR
        shown = capsys.readouterr()
        (line,) = (shown.out + shown.err).split("\n\n")[0].splitlines()
        assert (shown.out + shown.err).strip() == line
        return line

    return refused


@pytest.mark.parametrize("name", _WRONG_FILES)
def test_users_file_that_is_no_use_is_refused(
    name: str, refusal: Callable[..., str], tmp_path: Path
) -> None:
    """In one line that names the file and says what to change."""
    text, sentence = _WRONG_FILES[name]
    file = str(tmp_path / name)
    Path(file).write_text(text)
    line = refusal("--kernels", file)
    assert line.startswith(f"ERROR: --kernels {file}: {sentence.replace('{}', file)}")


@pytest.mark.parametrize("name", _WRONG_OPTIONS)
def test_option_that_means_nothing_is_refused(name: str, refusal: Callable[..., str]) -> None:
    """In one line that says what there is."""
    options, sentence = _WRONG_OPTIONS[name]
    assert refusal(*options.split()).startswith(f"ERROR: {sentence}")


def test_peer_that_is_not_installed_is_refused_with_the_reason(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than as a name that nobody knows."""
    peer = registry.Absent(LAYER_NORM_BACKWARD, "quick", "not installed: pip install quick")
    monkeypatch.setattr(registry, "_absent", {(OP, "quick"): peer})
    assert refusal("--kernel=quick") == "ERROR: --kernel quick: not installed: pip install quick"
