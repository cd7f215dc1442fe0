"""A server of the Model Context Protocol: the workbench as tools of a program that writes kernels.

    kernel-workbench mcp

It speaks over stdin and stdout, and needs the package `mcp` (`pip install kernel-workbench[mcp]`).
Each tool runs a suite in processes of its own, with limits of time and memory: the program's
kernels never run in the server. A result has values of calls that were made, and none of calls to
come: each run draws its secret values anew.
"""

from __future__ import annotations

import functools
import importlib
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from kernel_workbench import api
from kernel_workbench.reports.arguments import CommandLine
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import OutputError
from kernel_workbench.reports.run_report import Failure, Report

_MOST_FAILURES = 20  # that a result has: the plainest
_CALL_S = 60  # that one call of a kernel may take
_MOST_SAID = 4_000  # characters of a command's report
_INSTRUCTIONS = (
    "Judge and time GPU kernels. Write a Python file that registers a kernel (describe_op shows "
    "how), call accuracy with quick=true while you edit, read failures, and call accuracy without "
    "quick for the verdict. Time with bench only what passed."
)
_RULES = {
    "deterministic bound": "an element is further from the truth than all roundings at their worst "
    "allow: the kernel computes something else, or in too coarse a dtype",
    "probabilistic bound": "an element is further from the truth than independent roundings go "
    "with probability 1 - 1e-6: a cast or an order of operations that loses digits",
    "emulation": "a block's errors are larger than those of an ideal kernel with the declared "
    "arithmetic: declare the casts that the kernel makes, or leave them out",
    "non-finite values": "NaN or an infinity where the truth is finite, or the reverse: a mask, an "
    "overflow or a division by zero",
    "unwritten output": "an element was never written: a tile or a remainder is left out",
    "wrote out of bounds": "memory beside the outputs was changed: a mask of a store is missing",
    "illegal access": "a load or a store is outside of its tensor: a mask or a stride is wrong",
    "changed input": "an argument that isn't the kernel's to change was written to",
    "not repeatable": "two calls on the same values differ: a race, or atomics that the kernel "
    "declares by Numerics(bitwise_repeatable=False)",
    "wrong outputs": "number, shape or dtype of the outputs isn't the op's",
    "raised": "the kernel raised an exception",
    "process ended": "the kernel ended its process",
    "time limit": "the call didn't return in time",
}


class OpSummary(BaseModel):
    """An op in one line."""

    name: str
    arguments: list[str]
    outputs: list[str]


class OpDescription(OpSummary):
    """An op as a kernel of it is written."""

    options: dict[str, str] = Field(description="the optional features, a sentence each")
    sizes: list[str] = Field(description="names of the sizes of a case")
    example_case: str = Field(description="id of a small case")
    shapes: dict[str, str] = Field(description="shape and dtype of each tensor of that case")
    template: str = Field(description="a file that registers a kernel of the op, less its body")


class Explanation(BaseModel):
    """Why a kernel fails a case."""

    passed: bool
    error: str | None = Field(description="where there is no verdict: why")
    failure: Failure | None
    meaning: str | None = Field(description="what the rule that is broken says")
    case: dict[str, str] = Field(description="the case, field by field")
    outputs: list[OutputError] = Field(description="the errors, output by output")
    printed: list[str] = Field(description="the first lines that the kernel printed")
    notes: list[str] = Field(description="what more calls showed")


class CompileResult(BaseModel):
    """The result of compiling the kernels of a file."""

    passed: bool
    exit_status: int
    report: str = Field(description="the report's end: registers, spills, broken expectations")


def list_ops() -> list[OpSummary]:
    """List the ops that kernels can be judged for."""
    return [
        OpSummary(name=op.name, arguments=list(op.arguments), outputs=list(op.outputs))
        for op in _ops().values()
    ]


def describe_op(name: str) -> OpDescription:
    """Describe an op: arguments, outputs, options, shapes, and a file to begin a kernel with."""
    import torch  # noqa: PLC0415

    ops = _ops()
    if name not in ops:
        raise ValueError(f"there is no op {name!r}; list_ops names {', '.join(ops)}")
    op = ops[name]
    plain = [case for case in op.cases() if case.tier == "ci" and not case.options]
    case = next((case for case in plain if op.flops(case)), plain[0])
    drawn = op.inputs(case, torch.device("cpu"))
    tensors = {key: value for key, value in drawn.items() if isinstance(value, torch.Tensor)}
    shapes = {key: f"{list(value.shape)} {value.dtype}" for key, value in tensors.items()}
    forms = op.forms(case).items()
    shapes |= {key: f"{list(form.shape)} {form.dtype} (output)" for key, form in forms}
    return OpDescription(
        name=op.name,
        arguments=list(op.arguments),
        outputs=list(op.outputs),
        options=dict(op.options),
        sizes=[size for size, _ in case.sizes],
        example_case=case.id(),
        shapes=shapes,
        template=_template(name, op.arguments, op.outputs),
    )


def accuracy(
    file: str,
    device: Literal["cpu", "cuda"] | None = None,
    quick: bool = False,  # noqa: FBT001, FBT002  (a tool's arguments have names)
    cases: list[str] | None = None,
    max_seconds: float = 600.0,
) -> Report:
    """Judge the kernels of a Python file against float64. quick: a dozen cases, while editing."""
    options = [f"--time-limit={_CALL_S}"]
    report = api.accuracy(
        file, device=device, quick=quick, cases=cases, max_seconds=max_seconds, options=options
    )
    return _finite(report)


def search(
    file: str,
    minutes: float = 1.0,
    device: Literal["cpu", "cuda"] | None = None,
) -> Report:
    """Draw cases until one breaks a kernel of the file, and shrink it to a plain one."""
    options = [f"--time-limit={_CALL_S}"]
    return _finite(api.search(file, minutes=minutes, finds=3, device=device, options=options))


def bench(
    file: str,
    device: Literal["cpu", "cuda"] | None = None,
    quick: bool = True,  # noqa: FBT001, FBT002  (likewise)
) -> Report:
    """Time the kernels of a file beside their peers; the record that it names has the times."""
    return _finite(api.bench(file, device=device, quick=quick))


def compile_kernels(file: str, sm: list[int] | None = None) -> CompileResult:
    """Compile the kernels of a file for GPU generations (sm 80, 90, 100 ...), without a GPU."""
    words = [f"--kernels={Path(file).expanduser().absolute()}"]
    words += [word for number in sm or () for word in ("--sm", str(number))]
    done = subprocess.run(  # noqa: S603  (this Python, and a file as a user would name it)
        [sys.executable, "-m", "kernel_workbench", "compile", *words],
        env=api.command_variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    text = (done.stdout + done.stderr).strip()[-_MOST_SAID:]
    status = done.returncode if done.returncode >= 0 else int(ExitStatus.INCOMPLETE)
    return CompileResult(passed=status == ExitStatus.RIGHT, exit_status=status, report=text)


def explain_failure(
    file: str, case: str, device: Literal["cpu", "cuda"] | None = None
) -> Explanation:
    """Try one case again and say which rule it breaks, what that means, and where it shows."""
    options = [f"--time-limit={_CALL_S}"]
    report = _finite(api.accuracy(file, device=device, cases=[case], options=options))
    failure = report.failures[0] if report.failures else None
    rows = report.read_record().rows if report.record is not None else ()
    row = next((row for row in rows if row.status == "failed"), next(iter(rows), None))
    return Explanation(
        passed=report.passed,
        error=report.error,
        failure=failure,
        meaning=None if failure is None else _RULES.get(failure.rule),
        case={} if row is None else {key: str(value) for key, value in row.case if value},
        outputs=[] if row is None else [output for output in row.outputs if _is_finite(output)],
        printed=[] if row is None else list(row.printed),
        notes=[] if row is None else list(row.notes),
    )


TOOLS: dict[str, Callable[..., Any]] = {
    "list_ops": list_ops,
    "describe_op": describe_op,
    "accuracy": accuracy,
    "search": search,
    "bench": bench,
    "compile": compile_kernels,
    "explain_failure": explain_failure,
}


def server() -> Any:  # noqa: ANN401  (of a package that may be absent)
    """Return the server with all tools. Raises ImportError where `mcp` isn't installed."""
    mcp_server = importlib.import_module("mcp.server.mcpserver").MCPServer(
        "kernel-workbench", instructions=_INSTRUCTIONS
    )
    for name, tool in TOOLS.items():
        mcp_server.tool(name=name, structured_output=True)(_with_sentence(tool))
    return mcp_server


def _with_sentence(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return the tool with errors of its arguments as the client reads them.

    The server says no more than the tool's name where another exception is raised.
    """
    tool_error = importlib.import_module("mcp.server.mcpserver.exceptions").ToolError

    @functools.wraps(tool)
    def called(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401  (as the tool has them)
        try:
            return tool(*arguments, **keywords)
        except (ValueError, TypeError) as error:
            raise tool_error(str(error)) from error

    return called


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve over stdin and stdout until the client hangs up."""
    CommandLine(
        prog="kernel-workbench mcp",
        description="Serve the workbench's tools to a program that writes kernels, by the Model "
        "Context Protocol over stdin and stdout, until that program hangs up.",
    ).read(arguments)
    try:
        mcp_server = server()
    except ImportError:
        sys.stderr.write("the package mcp isn't installed; pip install 'mcp>=2'\n")
        return ExitStatus.SUITE_FAILED
    mcp_server.run("stdio")
    return ExitStatus.RIGHT


def _ops() -> dict[str, Any]:
    return importlib.import_module("kernel_workbench.oracles").OPS  # type: ignore[no-any-return]


def _template(name: str, arguments: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    returned = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    return (
        "import torch\nimport triton\nimport triton.language as tl\n"
        f"from kernel_workbench import {name.upper()}, Domain, kernel\n\n\n"
        f"@kernel({name.upper()}, Domain(dtypes=(torch.float32,), "
        'strides="contiguous"))\n'
        f"def mine({', '.join(arguments)}):\n    ...  # returns {returned}\n"
    )


def _is_finite(output: OutputError) -> bool:
    values = (output.got, output.expected, output.bound, output.worst_deterministic)
    return all(math.isfinite(value) for value in values)


def _finite(report: Report) -> Report:
    """Return a report of numbers alone, with few failures: JSON has no NaN, and a reader no day."""
    plainest = sorted(report.failures, key=lambda failure: (len(failure.case), failure.case))
    failures = []
    for failure in plainest[:_MOST_FAILURES]:
        values = {name: getattr(failure, name) for name in ("got", "expected", "bound", "ratio")}
        unwritten = [name for name, value in values.items() if value and not math.isfinite(value)]
        failures.append(failure.model_copy(update=dict.fromkeys(unwritten)))
    return report.model_copy(update={"failures": tuple(failures)})


if __name__ == "__main__":
    sys.exit(main())
