"""The MCP server by a client of the same package: each tool is listed and called."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_workbench.mcp import accuracy, main
from kernel_workbench.reports.exit_status import ExitStatus
from tests import ROOT

pytestmark = pytest.mark.long_run

_CASE = "softmax_forward-m3-n64-float32-contiguous"
_WRONG = """
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

@kernel(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,)))
def mine(x):
    powers = torch.exp(x)
    return powers / powers.sum(0, keepdim=True)
"""


@pytest.fixture(scope="module")
def mcp_package() -> Any:  # noqa: ANN401  (a package without types of ours)
    """The package, where it is installed."""
    pytest.importorskip("mcp.server.mcpserver")
    return pytest.importorskip("mcp")


def _called(mcp_package: Any, *calls: tuple[str, dict[str, object]]) -> tuple[list[str], list[Any]]:  # noqa: ANN401
    """Return the names of the tools, and what each call returned, in JSON."""
    from kernel_workbench.mcp import server  # noqa: PLC0415

    async def run() -> tuple[list[str], list[Any]]:
        async with mcp_package.Client(server()) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            results = [await client.call_tool(name, words) for name, words in calls]
            return listed, [result.structured_content for result in results]

    return asyncio.run(run())


def test_tools_are_listed_and_answer_with_typed_results(mcp_package: Any, tmp_path: Path) -> None:  # noqa: ANN401
    """A wrong kernel's failure has the element that shows it, and its explanation the meaning."""
    file = tmp_path / "mine.py"
    file.write_text(_WRONG)
    words: dict[str, object] = {"file": str(file), "device": "cpu"}
    names, results = _called(
        mcp_package,
        ("list_ops", {}),
        ("describe_op", {"name": "softmax_forward"}),
        ("accuracy", words | {"cases": [_CASE]}),
        ("explain_failure", words | {"case": _CASE}),
        ("search", words | {"minutes": 0.01}),
        ("bench", words),
        ("compile", {"file": str(tmp_path / "absent.py")}),
    )
    assert names == [
        *("list_ops", "describe_op", "accuracy", "search", "bench", "compile"),
        "explain_failure",
    ]
    ops, described, verdict, explained, searched, timed, compiled = results
    assert "softmax_forward" in [op["name"] for op in ops["result"]]
    assert described["arguments"] == ["x"]
    assert "@kernel(SOFTMAX_FORWARD, " in described["template"]
    (failure,) = verdict["failures"]
    assert (verdict["verdict"], failure["case"]) == ("failed", _CASE)
    assert failure["ratio"] > 1
    assert explained["failure"]["sentence"].startswith("y[")
    assert explained["meaning"].startswith("an element is further from the truth")
    assert explained["case"]["id"] == _CASE
    assert searched["suite"] == "search"
    assert timed["suite"] == "bench"
    assert (compiled["passed"], compiled["exit_status"]) == (False, 2)
    assert "there is no such file" in compiled["report"]


def test_server_answers_a_client_over_stdin_and_stdout(mcp_package: Any) -> None:  # noqa: ANN401
    """The command serves as a client's configuration starts it, and ends when the client does."""
    command = mcp_package.StdioServerParameters(
        command=sys.executable, args=["-m", "kernel_workbench", "mcp"], cwd=ROOT
    )

    async def run() -> tuple[list[str], list[Any]]:
        async with mcp_package.Client(command) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            described = await client.call_tool("describe_op", {"name": "softmax_forward"})
            absent = await client.call_tool("describe_op", {"name": "fft"})
            return listed, [described.structured_content, absent]

    names, (described, absent) = asyncio.run(run())
    assert "explain_failure" in names
    assert described["arguments"] == ["x"]
    assert absent.is_error
    assert "there is no op 'fft'" in absent.content[0].text


def test_command_without_the_package_ends_as_the_dispatcher_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing package is no mistake in the command line: exit status 3, and one sentence."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main([]) == ExitStatus.SUITE_FAILED
    assert capsys.readouterr().err.startswith("the package mcp isn't installed; ")


@pytest.mark.parametrize("word", ["mine.py", "--kernels=mine.py"])
def test_command_takes_no_words(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that would be ignored is a mistake: exit status 2, and one sentence that names it."""
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == ExitStatus.USAGE
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(word.partition("=")[0])


def test_call_that_hangs_ends_in_the_time_of_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool's time limit holds for each call, and the answer is a failure."""
    monkeypatch.setattr("kernel_workbench.mcp._CALL_S", 2)
    (tmp_path / "mine.py").write_text(_WRONG.replace("powers =", "__import__('time').sleep(99) #"))
    report = accuracy(str(tmp_path / "mine.py"), device="cpu", cases=[_CASE])
    assert [failure.rule for failure in report.failures] == ["time limit"]


def test_the_loop_of_the_page_mends_a_planted_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's program edits a file by what failures say, until it passes."""
    page = (ROOT / "docs" / "how-to" / "agents.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(# loop.py\n.*?)```", page, re.DOTALL)
    assert program is not None
    (tmp_path / "mine.py").write_text(_WRONG)
    monkeypatch.chdir(tmp_path)
    sentences: list[str] = []

    def write(text: str, failure: Any) -> str:  # noqa: ANN401
        """Stand for the program that writes kernels: go by output, index and values alone."""
        sentences.append(failure.sentence)
        if failure.rule == "non-finite values":
            return text.replace("torch.exp(x)", "torch.exp(x - x.amax(-1, keepdim=True))")
        return text.replace("powers.sum(0,", "powers.sum(-1,")

    namespace: dict[str, Any] = {"write": write}
    # The verdict on all cases takes minutes of an interpreter.
    text = program[1].replace('"cpu")  # the verdict', '"cpu", quick=True)  # the verdict')
    assert text != program[1]
    exec(compile(text, "loop.py", "exec"), namespace)  # noqa: S102
    assert namespace["report"].passed
    assert 1 <= len(sentences) <= 4
    assert "powers.sum(-1," in (tmp_path / "mine.py").read_text()
