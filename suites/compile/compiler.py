"""Compiles launches ahead of time and reads what came out, with the tools that Triton brings.

Registers and stack are the cubin's own (`cuobjdump -res-usage`), bytes spilled are what ptxas tells
while it compiles, shared memory is Triton's, and all else is counted in the machine code. The
disassembler takes 0.3 s to start, so the code of several kernels goes through it at one time, as
raw bytes; with lines of the source it is asked for one kernel, where somebody wants to see them.

What can't be read is None, with a sentence; the rest stands.
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

from kernel_workbench.suites.compile.capture import Launch
from kernel_workbench.suites.compile.sass import Instruction, code_sections, mix_of, parsed

KNOWN_TRITON = ("3.6", "3.7")
# Raised when what is measured changes its meaning: what was kept of an earlier one isn't read.
ANALYSIS = 1
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_RELEASE = re.compile(r"release [\d.]+, V([\d.]+)")
_TIME_LIMIT_S = 120.0


@dataclass(slots=True)
class Measured:
    """What is known of one compiled kernel; None: it couldn't be read, and `unread` says why.

    problem     one sentence where it doesn't compile at all
    mix         of its machine code, as the record's `CodeMix` has it, in JSON
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
    """Where the tools are that Triton brings: ptxas for `sm`, cuobjdump, nvdisasm; those it has."""
    from triton import knobs  # noqa: PLC0415  (the process decides first how it is imported)

    tools = {"cuobjdump": "cuobjdump", "nvdisasm": "nvdisasm"}
    tools["ptxas"] = "ptxas_blackwell" if sm >= 100 else "ptxas"
    found = {}
    for name, knob in tools.items():
        with contextlib.suppress(Exception):  # a version without it, or with nothing at its path
            found[name] = str(getattr(knobs.nvidia, knob).path)
    return found


def tool_versions(sm: int) -> dict[str, str]:
    """The versions of triton and of the ptxas for `sm`."""
    import triton  # noqa: PLC0415  (as above)

    versions = {"triton": triton.__version__}
    path = tool_paths(sm).get("ptxas")
    if path is not None:
        told = _RELEASE.search(_output([path, "--version"]))
        name = "ptxas-blackwell" if sm >= 100 else "ptxas"
        versions[name] = told[1] if told else "unknown"
    return versions


def unknown_version(version: str) -> str | None:
    """A sentence where this isn't a version of Triton that the suite was tried with."""
    if version.split(".")[:2] in [each.split(".") for each in KNOWN_TRITON]:
        return None
    return (
        f"triton {version} isn't a version that this suite was tried with "
        f"({' and '.join(KNOWN_TRITON)}): what it can't read is listed"
    )


class Compiler:
    """Compiles for one generation; `compile` is Triton's own, from before it was replaced."""

    def __init__(self, compile_: Callable[..., Any], sm: int) -> None:
        from triton import knobs  # noqa: PLC0415  (as above)

        self._compile, self._sm, self._tools = compile_, sm, tool_paths(sm)
        # Compiled anew, though Triton has kept it: what ptxas tells is told only then.
        knobs.compilation.always_compile = True
        with contextlib.suppress(AttributeError):  # a version without the knob: spills are unread
            knobs.nvidia.dump_ptxas_log = True

    def measured(self, launches: Sequence[Launch]) -> Iterator[Measured]:
        """What each launch's kernel is, in their order."""
        made = [self._built(each) for each in launches]
        texts = self._disassembled([cubin for _, cubin in made])
        for (found, cubin), code in zip(made, texts, strict=True):
            if cubin is not None and code is None:
                found.unread.append("its machine code: nvdisasm isn't there, or can't read it")
            if code is not None:
                found.mix = mix_of(code).model_dump()
            yield found

    def lines(self, launch: Launch) -> tuple[Instruction, ...]:
        """The instructions of a launch's kernel with the lines of the source they come from."""
        found, cubin = self._built(launch)
        path = self._tools.get("nvdisasm")
        if found.problem is not None or cubin is None or path is None:
            return ()
        with _file(cubin) as name:
            return tuple(parsed(_output([path, "-g", "-c", "-ndf", name])))

    def _built(self, launch: Launch) -> tuple[Measured, bytes | None]:
        """What is known of a kernel before its machine code is read, and the cubin."""
        told = io.StringIO()
        started = time.perf_counter()
        try:
            with contextlib.redirect_stdout(told):
                kernel = self._compile(launch.source, target=launch.target, options=launch.options)
        except Exception as error:  # noqa: BLE001  (whatever a compiler raises is its answer)
            seconds = time.perf_counter() - started
            return Measured(seconds, problem=_problem(error)), None
        found = Measured(time.perf_counter() - started)
        metadata = kernel.metadata
        found.warps = int(getattr(metadata, "num_warps", launch.warps))
        found.tensor_columns = int(getattr(metadata, "tmem_size", 0) or 0)
        shared = getattr(metadata, "shared", None)
        if shared is None:
            found.unread.append("shared memory: the compiled kernel's metadata don't tell it")
        else:
            found.shared_bytes = int(shared)
        cubin = kernel.asm.get("cubin")
        self._usage(found, told.getvalue(), cubin)
        return found, cubin

    def _usage(self, found: Measured, log: str, cubin: bytes | None) -> None:
        if spills := _SPILLS.search(log):
            found.spill_store_bytes, found.spill_load_bytes = int(spills[1]), int(spills[2])
        else:
            found.unread.append("bytes spilled: ptxas told nothing of them")
        usage = None
        if cubin is not None and "cuobjdump" in self._tools:
            with _file(cubin) as name:
                usage = _USAGE.search(_output([self._tools["cuobjdump"], "-res-usage", name]))
        if usage is not None:
            found.registers, found.stack_bytes = int(usage[1]), int(usage[2]) + int(usage[3])
        elif used := _USED.search(log):
            found.registers = int(used[1])
            found.unread.append("the stack: cuobjdump isn't there, or can't read the cubin")
        else:
            found.unread.append("registers: neither cuobjdump nor ptxas told them")
        if cubin is None:
            found.unread.append("machine code: the compiled kernel holds no cubin")
            return
        try:
            found.code_bytes = len(code_sections(cubin))
        except ValueError as error:
            found.unread.append(f"the size of the code: {error}")

    def _disassembled(self, cubins: Sequence[bytes | None]) -> list[tuple[Instruction, ...] | None]:
        """The instructions of each cubin, all read at one time; None where they can't be."""
        codes: list[bytes | None] = []
        for cubin in cubins:
            try:
                codes.append(None if cubin is None else code_sections(cubin))
            except ValueError:
                codes.append(None)
        whole = b"".join(code for code in codes if code is not None)
        path = self._tools.get("nvdisasm")
        if path is None or not whole:
            return [None] * len(codes)
        suffix = "a" if self._sm >= 90 else ""
        with _file(whole) as name:
            text = _output([path, "-b", f"SM{self._sm}{suffix}", name])
        code = list(parsed(text))
        found: list[tuple[Instruction, ...] | None] = []
        start = 0
        for each in codes:
            end = start + (0 if each is None else len(each))
            part = tuple(one for one in code if start <= one.address < end)
            found.append(part or None)
            start = end
        return found


def _problem(error: Exception) -> str:
    """The first line of what a compiler says, and its last, which has the cause."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if len(lines) > 1 and lines[-1] != lines[0]:
        text += f" ... {lines[-1]}"
    return f"it doesn't compile: {type(error).__name__}: {text}"[:600]


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code"
        path.write_bytes(data)
        yield str(path)


def _output(command: Sequence[str]) -> str:
    """What a tool prints; nothing where it can't be run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
