"""Compare kernels compiled without a GPU with the kernels of the driver on a machine with one.

The check calls each variant with real tensors on the GPU, and compares the driver's figures of each
kernel (registers, local memory, shared memory) with the figures measured without a GPU. A kernel is
looked up by all that it was compiled from: source, types, divisibility, constants, options. So the
lookup of a wrongly captured launch fails, and the table shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton.compiler
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernel_workbench.reports.record import CompileRow
from kernel_workbench.reports.views.compile_figures import short_label
from kernel_workbench.suites.compile.capture import CapturedLaunch, Source
from kernel_workbench.suites.compile.plan import Planned
from kernel_workbench.suites.compile.workers import NamedCall

_WORD = 4  # bytes of a register, in which Triton counts spills


def _listen() -> dict[str, Any]:
    """Return a dictionary that gets each kernel that Triton compiles from now on, by its key."""
    compile_: Callable[..., object] = triton.compiler.compile
    kernels: dict[str, Any] = {}

    def listening(
        src: Source,
        target: object = None,
        options: dict[str, object] | None = None,
        **more: object,
    ) -> object:
        kernel = compile_(src, target=target, options=options, **more)
        kernels[CapturedLaunch(src, target, dict(options or {}), src.fn.__name__).key] = kernel
        return kernel

    triton.compiler.compile = listening
    return kernels


def differences(launches: Sequence[Planned], rows: Sequence[CompileRow], console: Console) -> int:
    """Make the calls, print what differs, and return the exit status."""
    kernels = _listen()
    refused = _call_all(launches)
    by_place = {(row.op, row.kernel, row.label, row.function): row for row in rows}
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("variant", "what", "without a GPU", "by the driver"):
        table.add_column(title, overflow="fold")
    equal = differing = unfit = 0
    for launch in launches:
        place = launch.kernel.op.name, launch.kernel.name, launch.label, launch.function
        row, kernel = by_place[place], kernels.get(launch.noted.key)
        # Triton reads the driver's figures when it loads a kernel to launch it.
        is_loaded = getattr(kernel, "n_regs", None) is not None
        if not is_loaded and row.blocks_per_sm == 0 and launch.call in refused:
            unfit += 1
            continue
        if kernel is None or not is_loaded:
            why = refused.get(launch.call, "it was never compiled: its launch was another one")
            figures = [("launch", "captured", why)]
        else:
            figures = [
                ("registers", str(row.registers), str(kernel.n_regs)),
                ("local memory", str(row.stack_bytes), str(_WORD * kernel.n_spills)),
                ("shared memory", str(row.shared_bytes), str(kernel.metadata.shared)),
            ]
        wrong = [(what, without, by) for what, without, by in figures if without != by]
        equal += not wrong
        differing += bool(wrong)
        name = f"{launch.kernel.name}, {short_label(launch.label, launch.function)}"
        for what, without, by in wrong:
            table.add_row(Text(name), what, without, Text(by))
    if table.row_count:
        console.print(table)
    versions = f"triton {triton.__version__}, {torch.cuda.get_device_name()}"
    console.print(
        f"{equal:,} kernels equal the driver's, {differing:,} differ, {unfit:,} don't fit and were "
        f"refused ({versions})"
    )
    return int(differing > 0 or not equal)


def _call_all(launches: Sequence[Planned]) -> dict[NamedCall, str]:
    """Make each call once, and return the errors of calls that raised one."""
    refused = {}
    for call, launch in {launch.call: launch for launch in launches}.items():
        inputs = launch.kernel.op.inputs(call.case, torch.device("cuda"))
        try:
            launch.kernel.function(**inputs)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001  (whatever a launch raises is shown)
            refused[call] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return refused
