"""Compile launches ahead of time and inspect the code, with the tools that Triton installs.

Registers and stack come from the cubin (`cuobjdump -res-usage`), spilled bytes from the log of
ptxas, shared memory from Triton's metadata, and all else from the machine code. The disassembler
takes 0.3 s to start, so one run reads the code of several kernels as raw bytes; source lines are
read for one kernel at a time, on request.

A figure that can't be read is None and has a sentence that says why.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_workbench.suites.compile.capture import CapturedLaunch
from kernel_workbench.suites.compile.sass import (
    Instruction,
    code_hash,
    code_sections,
    mix_of,
    parsed,
)

KNOWN_TRITON = ("3.6", "3.7")
# Raised when a measured figure changes its meaning: the cache ignores entries of other numbers.
ANALYSIS = 1
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_RELEASE = re.compile(r"release [\d.]+, V([\d.]+)")
_TIME_LIMIT_S = 120.0


@dataclass(slots=True)
class Measured:
    """The figures of one compiled kernel; an unreadable one is None, and `unread` says why.

    problem     a sentence if the kernel doesn't compile, else None
    mix         the record's `CodeMix` of the machine code, in JSON
    """

    compile_s: float
    problem: str | None = None
    warps: int | None = None
    registers: int | None = None
    stack_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    shared_bytes: int | None = None
    tensor_columns: int = 0
    code_bytes: int | None = None
    mix: dict[str, Any] | None = None
    unread: list[str] = field(default_factory=list)


def tool_paths(sm: int) -> dict[str, str]:
    """Return the paths of Triton's tools that exist: ptxas for `sm`, cuobjdump and nvdisasm."""
    from triton import knobs  # noqa: PLC0415  (the process decides first how it is imported)
    from triton.backends.nvidia import compiler  # noqa: PLC0415  (as above)

    tools: dict[str, Callable[[], Any]] = {
        "cuobjdump": lambda: knobs.nvidia.cuobjdump,
        "nvdisasm": lambda: knobs.nvidia.nvdisasm,
        "ptxas": lambda: compiler.get_ptxas(
            sm
        ),  # from sm 100 on another one; in Triton 3.9 from sm 90 on
    }
    paths = {}
    for name, tool in tools.items():
        with contextlib.suppress(Exception):  # a version without it, or with nothing at its path
            paths[name] = str(tool().path)
    return paths


def tool_versions(sm: int) -> dict[str, str]:
    """Return the versions of triton and of the ptxas for `sm`, by name."""
    import triton  # noqa: PLC0415  (as above)

    versions = {"triton": triton.__version__}
    path = tool_paths(sm).get("ptxas")
    if path is not None:
        release = _RELEASE.search(_output([path, "--version"]))
        versions[Path(path).name] = release[1] if release else "unknown"
    return versions


def unknown_version(version: str) -> str | None:
    """Return a sentence if the suite wasn't tried with this version of Triton, else None."""
    if version.split(".")[:2] in [version_tried.split(".") for version_tried in KNOWN_TRITON]:
        return None
    return (
        f"triton {version} isn't a version that this suite was tried with "
        f"({' and '.join(KNOWN_TRITON)}): figures that it can't read are listed"
    )


class Compiler:
    """Compiles for one generation. `compile_` is Triton's own function, before its replacement."""

    def __init__(self, compile_: Callable[..., Any], sm: int) -> None:
        from triton import knobs  # noqa: PLC0415  (as above)

        self._compile, self._sm, self._tools = compile_, sm, tool_paths(sm)
        # Compile again even if Triton has a cached kernel: only then ptxas prints its log.
        knobs.compilation.always_compile = True
        with contextlib.suppress(AttributeError):  # a version without the knob: spills are unread
            knobs.nvidia.dump_ptxas_log = True

    def measured(self, launches: Sequence[CapturedLaunch]) -> Iterator[Measured]:
        """Compile the launches, and yield the figures of each, in order."""
        built = [self._built(launch) for launch in launches]
        texts = self._disassembled([cubin for _, cubin in built])
        for (measured, cubin), code in zip(built, texts, strict=True):
            if cubin is not None and code is None:
                measured.unread.append("its machine code: nvdisasm isn't there, or can't read it")
            if code is not None:
                measured.mix = mix_of(code).model_dump()
            yield measured

    def lines(self, launch: CapturedLaunch) -> tuple[Instruction, ...]:
        """Return the instructions of a launch's kernel with their source lines."""
        measured, cubin = self._built(launch)
        path = self._tools.get("nvdisasm")
        if measured.problem is not None or cubin is None or path is None:
            return ()
        with _file(cubin) as name:
            return tuple(parsed(_output([path, "-g", "-c", "-ndf", name])))

    def code_hash(self, launch: CapturedLaunch) -> str | None:
        """Return a hash of all that runs at a launch, besides its arguments; None if unread."""
        measured, cubin = self._built(launch)
        if measured.problem is not None or cubin is None:
            return None
        try:
            return f"{code_hash(cubin)} {measured.warps} {measured.shared_bytes}"
        except ValueError:
            return None

    def _built(self, launch: CapturedLaunch) -> tuple[Measured, bytes | None]:
        """Compile a launch; return the figures known before disassembly, and the cubin."""
        log = io.StringIO()
        started = time.perf_counter()
        try:
            with contextlib.redirect_stdout(log):
                kernel = self._compile(launch.source, target=launch.target, options=launch.options)
        except Exception as error:  # noqa: BLE001  (whatever a compiler raises is its answer)
            seconds = time.perf_counter() - started
            return Measured(seconds, problem=_problem(error)), None
        measured = Measured(time.perf_counter() - started)
        metadata = kernel.metadata
        measured.warps = int(metadata.num_warps)
        measured.tensor_columns = int(getattr(metadata, "tmem_size", 0) or 0)
        shared = getattr(metadata, "shared", None)
        if shared is None:
            measured.unread.append("shared memory: the compiled kernel's metadata lack it")
        else:
            measured.shared_bytes = int(shared)
        cubin = kernel.asm.get("cubin")
        self._usage(measured, log.getvalue(), cubin)
        return measured, cubin

    def _usage(self, measured: Measured, log: str, cubin: bytes | None) -> None:
        if spills := _SPILLS.search(log):
            measured.spill_store_bytes, measured.spill_load_bytes = int(spills[1]), int(spills[2])
        else:
            measured.unread.append("bytes spilled: the log of ptxas lacks them")
        usage = None
        if cubin is not None and "cuobjdump" in self._tools:
            with _file(cubin) as name:
                usage = _USAGE.search(_output([self._tools["cuobjdump"], "-res-usage", name]))
        if usage is not None:
            measured.registers, measured.stack_bytes = int(usage[1]), int(usage[2]) + int(usage[3])
        elif used := _USED.search(log):
            measured.registers = int(used[1])
            measured.unread.append("the stack: cuobjdump isn't there, or can't read the cubin")
        else:
            measured.unread.append("registers: neither cuobjdump nor ptxas reported them")
        if cubin is None:
            measured.unread.append("machine code: the compiled kernel holds no cubin")
            return
        try:
            measured.code_bytes = len(code_sections(cubin))
        except ValueError as error:
            measured.unread.append(f"the size of the code: {error}")

    def _disassembled(self, cubins: Sequence[bytes | None]) -> list[tuple[Instruction, ...] | None]:
        """Return the instructions of each cubin, or None, from one run of the disassembler."""
        codes = []
        for cubin in cubins:
            try:
                codes.append(code_sections(cubin or b""))
            except ValueError:
                codes.append(b"")
        whole = b"".join(codes)
        path = self._tools.get("nvdisasm")
        if path is None or not whole:
            return [None] * len(codes)
        suffix = "a" if self._sm >= 90 else ""
        with _file(whole) as name:
            text = _output([path, "-b", f"SM{self._sm}{suffix}", name])
        code = list(parsed(text))
        parts: list[tuple[Instruction, ...] | None] = []
        start = 0
        for length in map(len, codes):
            part = tuple(one for one in code if start <= one.address < start + length)
            parts.append(part or None)
            start += length
        return parts


def _problem(error: BaseException) -> str:
    """Return the first line of a compiler's message, the line of source, and the last line.

    The last line has the cause. For a fault in a function that the kernel calls, Triton raises an
    error at the call, without a cause in its text, from the error in the function.
    """
    from triton.compiler.errors import CompilationError  # noqa: PLC0415  (the process decides first how to import Triton)

    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if "^" in lines[2:]:
        text += f" `{lines[lines.index('^') - 1]}`"
    if len(lines) > 1 and lines[-1] not in (lines[0], "^"):
        text += f" ... {lines[-1]}"
    return f"it doesn't compile: {type(error).__name__}: {text}"[:600]


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code"
        path.write_bytes(data)
        yield str(path)


def _output(command: Sequence[str]) -> str:
    """Run a tool and return its output; "" if the tool can't run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
