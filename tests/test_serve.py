"""A warm judge: the command uses it, and whatever a candidate does leaves it serving."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kernel_workbench.oracles.analysis import trace
from kernel_workbench.reports.run_report import Report
from kernel_workbench.serve import client
from tests import ROOT

pytestmark = pytest.mark.long_run

_CASE = "softmax_forward-m3-n64-float32-contiguous"
_HEAD = """
import os, signal, time, torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

@kernel(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,)))
def mine(x):
"""
_SOFTMAX = """
def _softmax(x):
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)
"""
_BODIES = {
    "right": "    return _softmax(x)\n",
    "wrong": "    return _softmax(x) * 1.01\n",
    "crashes": "    os.kill(os.getpid(), signal.SIGSEGV)\n",
    "hangs": "    time.sleep(1000)\n",
    "forks": "    if os.fork() == 0:\n        time.sleep(1000)\n    return _softmax(x)\n",
    "kills its parent": "    os.kill(os.getppid(), signal.SIGKILL)\n    return _softmax(x)\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A judge's socket; the judge serves while the tests of this file run."""
    path = tmp_path_factory.mktemp("judge") / "own" / "judge.sock"
    judge = subprocess.Popen(
        [sys.executable, "-m", "kernel_workbench.serve", "--device=cpu"],
        cwd=ROOT,
        env=os.environ | {client.SOCKET_VARIABLE: str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert judge.stdout is not None and judge.stderr is not None
    assert judge.stdout.readline().startswith(f"serving at {path} on cpu")
    yield path
    judge.send_signal(signal.SIGTERM)
    assert judge.wait(600) == 0
    assert judge.stderr.read() == "the warm judge ends: it was sent SIGTERM\n"
    judge.stdout.close()
    judge.stderr.close()
    assert not path.exists()


def _started(place: Path, folder: Path, body: str, *options: str) -> subprocess.Popen[str]:
    """Start the command on a kernel, in a user's folder."""
    (folder / "mine.py").write_text(_HEAD + _BODIES[body] + _SOFTMAX)
    variables = {client.SOCKET_VARIABLE: str(place), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", "-m", "kernel_workbench", "accuracy", "mine.py"]
    words = ["--device=cpu", f"--case={_CASE}", "--results=results", "--json", *options]
    return subprocess.Popen(
        [*command, *words],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _report(running: subprocess.Popen[str]) -> Report:
    """Wait for a command, which must have imported nothing itself, and return its report."""
    output, errors = running.communicate(timeout=600)
    assert "| torch" not in errors
    report = Report.from_json(output)
    assert report.exit_status == running.returncode
    return report


def test_a_warm_judge_gives_the_verdict_of_the_file_as_it_is(place: Path, tmp_path: Path) -> None:
    """A file that is edited between two runs is judged as edited, with a record in its folder."""
    assert _report(_started(place, tmp_path, "right")).passed
    wrong = _report(_started(place, tmp_path, "wrong"))
    assert [failure.case for failure in wrong.failures] == [_CASE]
    assert wrong.record is not None
    assert Path(wrong.record).parent == tmp_path / "results"
    assert len(list((tmp_path / "results").glob("*.jsonl"))) == 2


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("crashes", "process ended"),
        ("hangs", "time limit"),
        ("forks", None),  # its child is ended with the worker
        ("kills its parent", None),
    ],
)
def test_a_candidate_that_misbehaves_leaves_the_judge_serving(
    place: Path, tmp_path: Path, body: str, rule: str | None
) -> None:
    """It fails, or its run does; the next run passes."""
    report = _report(_started(place, tmp_path, body, "--time-limit=15"))
    if rule is not None:
        assert [failure.rule for failure in report.failures] == [rule]
    assert _report(_started(place, tmp_path, "right")).passed


def test_two_clients_at_once_each_get_their_verdict(place: Path, tmp_path: Path) -> None:
    """A run that waits for another one's judge isn't lost."""
    folders = [tmp_path / name for name in ("right", "wrong")]
    for folder in folders:
        folder.mkdir()
    running = [_started(place, folder, folder.name) for folder in folders]
    assert [_report(each).verdict for each in running] == ["passed", "failed"]


def test_server_traces_the_small_cases_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later judges have the graphs; a name that is no small case changes nothing."""
    from kernel_workbench.serve import server  # noqa: PLC0415  (its import takes seconds)

    monkeypatch.setattr(gc, "freeze", lambda: None)
    graphs: dict[object, object] = {}
    monkeypatch.setattr(trace, "_kept", graphs)
    large = "softmax_forward-m65536-n65536-float32-contiguous"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket() as listener, ours, theirs:
        judges = server.Server(tmp_path / "judge.sock", "cpu", 1, 60.0, listener)
        for names in (["nonsense", _CASE, 3, large], [_CASE]):
            theirs.send(json.dumps(names).encode())
            judges._learn(ours)
        assert judges.untraced == ["nonsense", _CASE, large]
        while judges.untraced:
            judges._trace_one()
        assert len(graphs) == 1
        theirs.send(b"[")
        judges._learn(ours)
        theirs.send(json.dumps([_CASE]).encode())
        judges._learn(ours)
        assert judges.untraced == []


def test_ctrl_c_at_the_client_ends_the_run(place: Path, tmp_path: Path) -> None:
    """The run is cut off and its record closed."""
    running = _started(place, tmp_path, "hangs")
    for _ in range(15_000):  # a spare takes a minute to get ready on a busy machine
        if list(tmp_path.glob("results/*.jsonl")) or running.poll() is not None:
            break
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    report = _report(running)
    assert (report.verdict, report.passed) == ("incomplete", False)


def test_the_socket_is_this_users_alone(place: Path) -> None:
    """Neither the folder nor the socket may be entered by others, and no other judge begins."""
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0
    second = subprocess.run(
        [sys.executable, "-m", "kernel_workbench.serve", "--device=cpu"],
        cwd=ROOT,
        env=os.environ | {client.SOCKET_VARIABLE: str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    assert second.stderr.startswith(f"a judge serves at {place} already")


@pytest.mark.parametrize(
    "request_text", [b"no JSON", b"{}", b"[1]", b'{"words": 3}', b"[" * 50_000, b""]
)
def test_a_request_that_is_none_is_refused(place: Path, request_text: bytes) -> None:
    """Whatever comes over the socket leaves the judge serving."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as connection:
        connection.connect(str(place))
        socket.send_fds(connection, [request_text], [0, 1, 2] if request_text else [])
        data = connection.recv(2**16)
    assert not data or "refused" in json.loads(data)


def test_a_client_of_other_variables_is_refused(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The processes that wait were started with the judge's variables: the client runs itself."""
    monkeypatch.setenv(client.SOCKET_VARIABLE, str(place))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELS_SWITCH", "on")
    assert client.run_warm("accuracy", ["--device=cpu"]) is None
    errors = capsys.readouterr().err
    assert errors.startswith("the run goes without the warm judge: environment variables differ")
    assert "KERNELS_SWITCH" in errors
    monkeypatch.delenv("KERNELS_SWITCH")
    assert client.run_warm("accuracy", ["--device=cuda"]) is None
    assert client.run_warm("accuracy", ["--in-process"]) is None
    assert client.run_warm("bench", []) is None


def test_a_folder_that_others_may_enter_isnt_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else could answer there."""
    tmp_path.chmod(0o777)
    (tmp_path / "judge.sock").touch()
    monkeypatch.setenv(client.SOCKET_VARIABLE, str(tmp_path / "judge.sock"))
    assert client.run_warm("accuracy", ["--device=cpu"]) is None
    assert client.wrong_place(tmp_path / "judge.sock") is not None
