"""On a machine with a GPU: is what was compiled without it what its driver has?

Each variant's call is made in earnest, with real tensors on the GPU, and what Triton's driver then
says of each kernel (registers, local memory, shared memory) is laid beside what was measured
without a GPU. A kernel is found by what it was compiled from: source, types, divisibility,
constants, options. So a launch that was taken down wrongly isn't found at all, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.compiler
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import CompileRow
from kernel_workbench.reports.views.compile_figures import short_label
from kernel_workbench.suites.compile.capture import Launch, Source
from kernel_workbench.suites.compile.plan import Planned

_WORD = 4  # bytes of a register


@dataclass(frozen=True, slots=True)
class Told:
    """What the driver says of a kernel. local_bytes: of a thread, spilled registers among them."""

    registers: int
    local_bytes: int
    shared_bytes: int


class Listener:
    """Hears of each kernel that Triton compiles in this process, from now on."""

    def __init__(self) -> None:
        self._compile: Callable[..., object] = triton.compiler.compile
        self._kernels: dict[str, Any] = {}
        triton.compiler.compile = self._listen

    def _listen(
        self,
        src: Source,
        target: object = None,
        options: dict[str, object] | None = None,
        **more: object,
    ) -> object:
        kernel = self._compile(src, target=target, options=options, **more)
        launch = Launch(src, target, dict(options or {}), src.fn.__name__)
        self._kernels[launch.key] = kernel
        return kernel

    def told(self, key: str) -> Told | None:
        """What the driver says of the kernel of a key; None where it has loaded none."""
        kernel = self._kernels.get(key)
        registers = getattr(kernel, "n_regs", None)
        if kernel is None or registers is None:
            return None
        return Told(registers, _WORD * kernel.n_spills, kernel.metadata.shared)


def differences(launches: Sequence[Planned], rows: Sequence[CompileRow], console: Console) -> int:
    """Make the calls, print what differs, and return the exit status."""
    listener = Listener()
    refused = _call_all(launches)
    by_place = {(row.op, row.kernel, row.label, row.function): row for row in rows}
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("variant", "what", "without a GPU", "by the driver"):
        table.add_column(title, overflow="fold")
    equal = differing = unfit = 0
    for each in launches:
        place = each.kernel.op.name, each.kernel.name, each.label, each.function
        row, told = by_place[place], listener.told(each.noted.key)
        name = f"{each.kernel.name}, {short_label(each.label, each.function)}"
        if told is None:
            why = refused.get(_call(each), "it was never compiled: its launch was another one")
            if row.blocks_per_sm == 0 and _call(each) in refused:
                unfit += 1
                continue
            differing += 1
            table.add_row(Text(name), "launch", "taken down", Text(why))
            continue
        wrong = [
            (what, without, by)
            for what, without, by in (
                ("registers", row.registers, told.registers),
                ("local memory", row.stack_bytes, told.local_bytes),
                ("shared memory", row.shared_bytes, told.shared_bytes),
            )
            if without != by
        ]
        equal += not wrong
        differing += bool(wrong)
        for what, without, by in wrong:
            table.add_row(Text(name), what, f"{without}", f"{by}")
    if table.row_count:
        console.print(table)
    versions = f"triton {triton.__version__}, {torch.cuda.get_device_name()}"
    console.print(
        f"{equal:,} kernels are as the driver has them, {differing:,} aren't, {unfit:,} don't fit "
        f"and were refused ({versions})"
    )
    return int(differing > 0 or not equal)


_Call = tuple[str, str, str]


def _call(each: Planned) -> _Call:
    return each.kernel.op.name, each.kernel.name, each.case.id()


def _call_all(launches: Sequence[Planned]) -> dict[_Call, str]:
    """Make each call once; what was raised by those that did."""
    calls: dict[_Call, tuple[Kernel, Case]] = {}
    for each in launches:
        calls.setdefault(_call(each), (each.kernel, each.case))
    refused = {}
    for name, (kernel, case) in calls.items():
        inputs = kernel.op.inputs(case, torch.device("cuda"))
        try:
            kernel.function(**inputs)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001  (whatever a launch raises is told)
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return refused
