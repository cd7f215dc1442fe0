"""Recorded calls: what is counted, what a file says, and that suites replay it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernel_workbench import recording as room
from kernel_workbench.kernels.layer_norm import rms_norm
from kernel_workbench.recording import RecordingError, inside, record, recorded_values
from kernel_workbench.recording.values import ValuesError
from kernel_workbench.suites.run.user_cases import CasesError, read_cases, skipped_calls
from kernel_workbench.testing import assert_matches
from tests import ROOT

_ENOUGH = 2**37
_PAGE = (ROOT / "docs" / "how-to" / "recorded-calls.md").read_text(encoding="utf-8")
_BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def _no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the graphs that earlier tests compiled in this process: a recording reports them."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        monkeypatch.setitem(dynamo.counters, "stats", Counter())


class _Block(nn.Module):
    """A block of a small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(32), nn.RMSNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.gate, self.up, self.down = (nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and pass on through a gated unit."""
        batch, length, width = x.shape
        packed = self.qkv(self.before(x)).view(batch, length, 3, 2, width // 2)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.between(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _weights(path: Path) -> dict[str, float | None]:
    return {case.id(): case.weight for case in read_cases([path], _ENOUGH)}


def _ran(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_calls_of_a_transformer_are_cases_with_counts(tmp_path: Path) -> None:
    """Two blocks and two steps: each op forward and backward, in the layouts of the model."""
    model = nn.Sequential(_Block(), _Block())
    x = torch.randn(2, 8, 32)
    with record(tmp_path / "calls.jsonl") as recording:
        for _ in range(2):
            functional.cross_entropy(model(x).view(-1, 32), torch.arange(16)).backward()
    attention = "b2-h_q2-h_kv2-s_q8-s_kv8-d16-d_v16-float32-qkv_interleaved-causal"
    expected = {
        f"attention_forward-{attention}": 4,
        f"attention_backward-{attention}": 4,
        "layer_norm_forward-m16-n32-float32-contiguous": 4,
        "layer_norm_backward-m16-n32-float32-contiguous": 4,
        "rms_norm_forward-m16-n32-float32-contiguous": 4,
        "rms_norm_backward-m16-n32-float32-contiguous": 4,
        "swiglu_forward-m16-n32-float32-contiguous": 4,
        "swiglu_backward-m16-n32-float32-contiguous": 4,
        "cross_entropy_forward-m16-n32-float32-contiguous": 2,
        "cross_entropy_backward-m16-n32-float32-dloss_expanded_all": 2,
        "matmul_forward-m16-n96-k32-float32-b_transposed": 4,
        "matmul_forward-m16-n32-k32-float32-b_transposed": 16,
    }
    weights = _weights(tmp_path / "calls.jsonl")
    assert {name: weights.get(name) for name in expected} == expected
    assert recording.unseen == ()
    assert recording.summary == "calls.jsonl: 96 calls of 16 cases of 11 ops"
    (norm,) = [
        line for line in _lines(tmp_path / "calls.jsonl") if line["op"] == "rms_norm_forward"
    ]
    assert "eps = 1.19209e-07 is replayed as" in json.dumps(norm["calls"])


def test_functions_are_as_before_after_a_recording(tmp_path: Path) -> None:
    """Modules, classes and names imported from them have their functions back."""
    before = functional.layer_norm, vars(Tensor).get("__mul__"), Tensor.__matmul__, rms_norm
    with record(tmp_path / "calls.jsonl"):
        assert functional.layer_norm is not before[0]
        assert rms_norm is not before[3]
    assert (functional.layer_norm, vars(Tensor).get("__mul__"), Tensor.__matmul__) == before[:3]
    assert rms_norm is before[3]


def test_recording_counts_names_that_were_imported_before(tmp_path: Path) -> None:
    """`from kernel_workbench import rms_norm` at the head of a model's file is seen."""
    with record(tmp_path / "calls.jsonl"):
        rms_norm(torch.randn(3, 8), torch.ones(8))
    assert _weights(tmp_path / "calls.jsonl") == {"rms_norm_forward-m3-n8-float32-contiguous": 1}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x: functional.layer_norm(x, (8,)), "the call no weight and no bias"),
        (lambda x: torch.bmm(x[None], x.T[None]), "a batch of products"),
        (
            lambda x: functional.scaled_dot_product_attention(
                x[None, None], x[None, None], x[None, None], torch.ones(4, 4, dtype=torch.bool)
            ),
            "no boolean mask",
        ),
        (lambda x: functional.softmax(x.double(), -1), "float64"),
    ],
)
def test_call_without_an_op_has_a_sentence_and_a_count(
    tmp_path: Path, call: Callable[[Tensor], object], sentence: str
) -> None:
    """It is a line of the file, which --cases takes beside others, and prints."""
    path = tmp_path / "calls.jsonl"
    with record(path):
        for _ in range(3):
            call(torch.randn(4, 8))
    (line,) = _lines(path)
    assert sentence in str(line["skipped"])
    assert line["weight"] == 3
    with pytest.raises(CasesError, match=r"the file has no case; calls\.jsonl: 3 recorded calls"):
        read_cases([path], _ENOUGH)
    (printed,) = skipped_calls([path])
    assert sentence in printed


@pytest.mark.parametrize(
    ("move", "layout", "differs"),
    [
        (lambda x: x, "contiguous", False),
        (lambda x: x.T.contiguous().T, "x_transposed", False),
        (lambda _: torch.randn(6, 9)[:, :6], "rowpad3", False),
        (lambda _: torch.randn(6, 13)[:, :6], "rowpad8", True),
    ],
)
def test_strides_become_the_nearest_layout(
    tmp_path: Path, move: Callable[[Tensor], Tensor], layout: str, *, differs: bool
) -> None:
    """A layout of the op with the same strides, or one like it and a note that says so."""
    x = move(torch.randn(6, 6))
    with record(tmp_path / "calls.jsonl"):
        torch.softmax(x, -1)
    (line,) = _lines(tmp_path / "calls.jsonl")
    assert line.get("layout", "contiguous") == layout
    assert ("are replayed as" in json.dumps(line)) == differs


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_recording_survives_what_ends_its_block(tmp_path: Path, error: type[BaseException]) -> None:
    """The file has what was recorded, and the exception goes on."""

    def interrupted() -> None:
        with record(tmp_path / "calls.jsonl"):
            torch.softmax(torch.randn(2, 4), -1)
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(_weights(tmp_path / "calls.jsonl").values()) == [1]
    assert not hasattr(torch.softmax, "__wrapped__")


def test_recordings_nest_and_see_all_threads(tmp_path: Path) -> None:
    """An inner recording has its own calls, the outer one all; no count is lost."""
    x = torch.randn(2, 4)

    def many() -> None:
        for _ in range(200):
            torch.softmax(x, -1)

    with record(tmp_path / "outer.jsonl"):
        torch.softmax(x, -1)
        with record(tmp_path / "inner.jsonl"):
            threads = [threading.Thread(target=many) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        torch.softmax(x, -1)
    assert list(_weights(tmp_path / "inner.jsonl").values()) == [800]
    assert list(_weights(tmp_path / "outer.jsonl").values()) == [802]


def test_calls_under_autocast_have_its_dtype(tmp_path: Path) -> None:
    """A product of fp32 tensors is computed in bfloat16."""
    with record(tmp_path / "calls.jsonl"), torch.autocast("cpu", torch.bfloat16):
        functional.linear(torch.randn(4, 8), torch.randn(3, 8))
    assert list(_weights(tmp_path / "calls.jsonl")) == [
        "matmul_forward-m4-n3-k8-bfloat16-b_transposed"
    ]


def test_compiled_graphs_are_said_to_be_unseen(tmp_path: Path) -> None:
    """torch.compile runs as without a recording, which says that it can't see within a graph."""
    norm = torch.compile(nn.LayerNorm(8), backend="eager", fullgraph=True)
    x = torch.randn(2, 8)
    with record(tmp_path / "calls.jsonl") as recording:
        result = norm(x)
    assert torch.equal(result, functional.layer_norm(x, (8,), torch.ones(8), torch.zeros(8)))
    assert any("torch.compile has compiled" in sentence for sentence in recording.unseen)
    assert any("torch.compile" in str(line.get("skipped")) for line in _lines(recording.path))


def test_values_are_those_before_the_call(tmp_path: Path) -> None:
    """They judge a kernel, forward and backward; a bound of bytes leaves them out."""
    x = torch.randn(4, 16, requires_grad=True)
    weight = torch.rand(16, requires_grad=True)
    for most, count in ((2**20, 2), (0, 0)):
        path = tmp_path / f"calls{most}.jsonl"
        with record(path, ops=["rms_norm"], values=True, most_bytes=most):
            y = functional.rms_norm(x, (16,), weight, 1e-6)
            y.sum().backward()
        samples = list(recorded_values(path)) if count else []
        assert len(samples) == count
        for sample in samples:
            assert torch.equal(sample.arguments["x"], x)
            if sample.op.name == "rms_norm_forward":
                assert_matches(y, sample.op, **sample.arguments)
    with pytest.raises(ValuesError, match="record with values=True"):
        list(recorded_values(path))


def test_damaged_values_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """A file that is cut short, or is another one."""
    path = tmp_path / "calls.jsonl"
    with record(path, values=True):
        torch.softmax(torch.randn(2, 4), -1)
    whole = path.with_suffix(".safetensors").read_bytes()
    for data in (b"", whole[:40], whole[:-4], b"x" * 100):
        path.with_suffix(".safetensors").write_bytes(data)
        with pytest.raises(ValuesError, match="damaged"):
            list(recorded_values(path))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"path": "no/such/calls.jsonl"}, "its folder is missing"),
        ({"ops": "layer_norm"}, "give a list of names"),
        ({"ops": ["layernorm"]}, "no function is recorded for the op 'layernorm'"),
        ({"functions": {"torch": "rms_norm_forward"}}, "write it as module:function"),
        ({"functions": {"torch:nothing": "rms_norm_forward"}}, "torch has no nothing"),
        ({"functions": {"no_such_module:f": "rms_norm_forward"}}, "can't be imported"),
        ({"functions": {"torch:softmax": "rms_norm_forwards"}}, "there is no op"),
        ({"values": -1}, "must be 0 or more"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(
    tmp_path: Path, arguments: dict[str, object], sentence: str
) -> None:
    """Before anything is replaced."""
    words: dict[str, object] = {"path": tmp_path / "calls.jsonl"} | arguments
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        record(**words)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"kind": "run"}\n', "import torch\n", "\x80", "[1]\n"])
def test_file_that_is_no_recording_is_not_overwritten(tmp_path: Path, text: str) -> None:
    """A run's record, a program or a model's weights; a recording, even one of no call, is."""
    file = tmp_path / "calls.jsonl"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(RecordingError, match="isn't a recording, so it isn't overwritten"):
        record(file)
    assert file.read_text(encoding="latin-1") == text
    weights = tmp_path / "model.safetensors"
    weights.write_text(text, encoding="latin-1")
    with pytest.raises(RecordingError, match="it is no recording's, so it isn't overwritten"):
        record(tmp_path / "model.jsonl", values=True)
    file.write_text("")
    for ops in (["layer_norm"], ["softmax"], ["softmax"]):
        with record(file, ops=ops, values=True):
            torch.softmax(torch.randn(3, 8), -1)
    assert file.read_text().startswith('{"op": "softmax_forward"')


def test_program_is_recorded_and_ends_as_it_would(tmp_path: Path) -> None:
    """With its own status, arguments and functions, and with what it did before its end."""
    (tmp_path / "mine.py").write_text("def norm(x, weight, eps=1e-6):\n    return x * weight\n")
    (tmp_path / "train.py").write_text(
        "import sys, torch\nfrom mine import norm\nprint(sys.argv[1:])\n"
        "norm(torch.randn(3, 8), torch.ones(8))\nsys.exit(7)\n"
    )
    words = ("--function", "mine:norm=rms_norm_forward", "--", sys.executable, "train.py", "--a")
    done = _ran("-m", "kernel_workbench", "record", *words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (7, "['--a']\n"), done.stderr
    assert "calls.jsonl: 1 call of 1 case of 1 op\n" in done.stderr
    weights = _weights(tmp_path / "calls.jsonl")
    assert weights == {"rms_norm_forward-m3-n8-float32-contiguous": 1}


def test_python_without_torch_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program's Python is often another than the command's; exit status 3."""
    monkeypatch.setattr(sys, "argv", ["inside.py", "{}", "train.py"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "kernel_workbench.recording", None)
    with pytest.raises(SystemExit) as ended:
        inside.main()
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith(f"the program's Python, {sys.executable}, can't")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no program to run"),
        (["--", "bash", "train.sh"], "it can't be recorded"),
        (["--", "python3", "-c", "1"], "it can't be recorded"),
        (["--", "python3", "nothing.py"], "there is no such file"),
        (["--function", "mine:norm", "--", "python3", "x.py"], "no op is in it"),
    ],
)
def test_command_refuses_what_it_cannot_record(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    """In a sentence that says what to write, with exit status 2."""
    done = _ran("-m", "kernel_workbench", "record", *words, folder=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize("block", _BLOCKS)
def test_programs_of_the_page_run(tmp_path: Path, block: str) -> None:
    """As they stand there."""
    done = _ran("-c", block, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.jsonl"))


def test_room_exports_what_the_package_does() -> None:
    """`from kernel_workbench import record` is the room's function."""
    from kernel_workbench import record as exported  # noqa: PLC0415  (what is tested)

    assert exported is room.record
