"""In a worker: launches are taken down and compiled, for one generation.

The process never touches a GPU: kernels are called as if it had one (stand_in.py), and nothing that
is launched is computed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from kernel_workbench.kernels import expectation
from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.suites import ROOT
from kernel_workbench.suites.compile.capture import CaptureError, Launch, NoteTaker
from kernel_workbench.suites.compile.compiler import Compiler, Measured
from kernel_workbench.suites.compile.expectations import offender
from kernel_workbench.suites.compile.stand_in import install
from kernel_workbench.suites.sandbox.wire import Message, case_of

_Kernels = Mapping[tuple[str, str], Kernel]
_LOST = "taken down again, its launch isn't what it was: the host code isn't repeatable"


def run_task(kernels: _Kernels, settings: Message) -> Message:
    """What `settings["do"]` says, of the calls that it names.

    take     the launches of a call: a list of what `workers.Noted` holds, or a sentence
    compile  launches, each known by its key and a call that makes it: what `Measured` holds of each
    locate   an instruction that breaks a claim: its text with the source's line, or None

    scratch: a folder for what Triton keeps of each kernel, which nobody reads again.
    """
    here = _generation(settings["sm"], settings["scratch"])
    answer: object
    if settings["do"] == "take":
        answer = here.take(kernels, settings["call"])
    elif settings["do"] == "compile":
        answer = here.compile(kernels, settings["wanted"])
    else:
        launch = here.launch(kernels, settings["key"], settings["call"])
        kind, values = settings["claim"]
        code = () if launch is None else here.compiler.lines(launch)
        found = offender(getattr(expectation, kind)(**values), code)
        answer = None if found is None else str(found).replace(f"{ROOT}/", "")
    return {"answer": answer}


class _Generation:
    """What the process holds between tasks."""

    def __init__(self, sm: int, scratch: str) -> None:
        from triton import knobs  # noqa: PLC0415  (not where tasks are only asked for)

        knobs.cache.dir = tempfile.mkdtemp(dir=scratch)
        install(sm)
        self._notes = NoteTaker()
        self.compiler = Compiler(self._notes.compile, sm)
        self._launches: dict[str, Launch] = {}

    def take(self, kernels: _Kernels, call: Message) -> list[dict[str, Any]] | str:
        """The launches of a call, as `workers.Noted` has them."""
        try:
            launches = self._notes.of_call(
                kernels[call["op"], call["kernel"]], case_of(call["case"])
            )
        except CaptureError as error:
            return str(error)
        for each in launches:
            self._launches.setdefault(each.key, each)
        return [
            {
                "key": each.key,
                "function": each.function,
                "tile": each.tile(),
                "fp_fusion": each.options.get("enable_fp_fusion"),
            }
            for each in launches
        ]

    def launch(self, kernels: _Kernels, key: str, call: Message) -> Launch | None:
        """The launch of that key, taken down again where another process did."""
        if key not in self._launches:
            self.take(kernels, call)
        return self._launches.get(key)

    def compile(self, kernels: _Kernels, wanted: list[tuple[str, Message]]) -> list[object]:
        """What is measured of each."""
        launches = [self.launch(kernels, *each) for each in wanted]
        found = self.compiler.measured([each for each in launches if each is not None])
        lost = Measured(0.0, problem=_LOST)
        return [asdict(lost if each is None else next(found)) for each in launches]


_generation = cache(_Generation)
