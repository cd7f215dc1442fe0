"""Capture and compile launches in a worker, for one generation.

The process never touches a GPU: it calls kernels as if it had one (stand_in.py), and no launch
runs.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from kernel_workbench.kernels import expectation
from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.suites import ROOT
from kernel_workbench.suites.compile.capture import CapturedLaunch, CaptureError, NoteTaker
from kernel_workbench.suites.compile.compiler import Compiler, Measured
from kernel_workbench.suites.compile.expectations import offender
from kernel_workbench.suites.compile.stand_in import install, tuned_anew
from kernel_workbench.suites.sandbox.wire import Message, case_of

_Kernels = Mapping[tuple[str, str], Kernel]
_PYTORCHS_OWN = ("aten.", "prim.", "prims.")
_LOST = "a second call made another launch than the first: the host code isn't repeatable"


def run_task(kernels: _Kernels, settings: Message) -> Message:
    """Do the task that `settings["do"]` names, and return its answer.

    take     return the launches of a call, as a list of `workers.Noted`, or a sentence
    compile  compile launches, named by key and call, and return a `Measured` for each
    locate   return the text and source line of an instruction that breaks a claim, or None
    hash     return a hash of what a call runs on the GPU, or None where that can't be told

    `settings["scratch"]` is a folder for Triton's cache, which no later run reads.
    """
    here = _generation(settings["sm"], settings["scratch"])
    answer: object
    if settings["do"] == "take":
        answer = here.take(kernels, settings["call"])
    elif settings["do"] == "compile":
        answer = here.compile(kernels, settings["wanted"])
    elif settings["do"] == "hash":
        answer = here.hash_of(kernels, settings["call"])
    else:
        launch = here.launch(kernels, settings["key"], settings["call"])
        kind, values = settings["claim"]
        code = () if launch is None else here.compiler.lines(launch)
        instruction = offender(getattr(expectation, kind)(**values), code)
        answer = None if instruction is None else str(instruction).replace(f"{ROOT}/", "")
    return {"answer": answer}


class _Generation:
    """The state that the process keeps between tasks."""

    def __init__(self, sm: int, scratch: str) -> None:
        from triton import knobs  # noqa: PLC0415  (not where tasks are only asked for)

        knobs.cache.dir = tempfile.mkdtemp(dir=scratch)
        install(sm)
        self._notes = NoteTaker()
        self.compiler = Compiler(self._notes.compile, sm)
        self._launches: dict[str, CapturedLaunch] = {}
        self._codes: dict[str, str | None] = {}

    def take(self, kernels: _Kernels, call: Message) -> list[dict[str, Any]] | str:
        """Return the launches of a call, as `workers.Noted` has them, or a sentence."""
        try:
            launches = self._notes.of_call(
                kernels[call["op"], call["kernel"]], case_of(call["case"])
            )
        except CaptureError as error:
            return str(error)
        for launch in launches:
            self._launches.setdefault(launch.key, launch)
        return [
            {
                "key": launch.key,
                "function": launch.function,
                "tile": launch.tile(),
                "fp_fusion": launch.options.get("enable_fp_fusion"),
            }
            for launch in launches
        ]

    def hash_of(self, kernels: _Kernels, call: Message) -> str | None:
        """Return a hash of what a call runs on the GPU, or None where that can't be told.

        It can't be told for a call that launches nothing by Triton, or that calls an operation
        which isn't PyTorch's own.
        """
        kernel = kernels.get((call["op"], call["kernel"]))
        if kernel is None:
            return None
        try:
            with tuned_anew():
                steps = self._notes.steps(kernel, case_of(call["case"]))
        except CaptureError:
            return None
        codes = [
            step.name if step.launch is None else self._code_hash(step.launch) for step in steps
        ]
        operations = [step.name for step in steps if step.launch is None]
        only_pytorch = all(name.startswith(_PYTORCHS_OWN) for name in operations)
        if None in codes or len(operations) == len(steps) or not only_pytorch:
            return None
        described = [(code, step.arguments) for code, step in zip(codes, steps, strict=True)]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def _code_hash(self, launch: CapturedLaunch) -> str | None:
        if launch.key not in self._codes:
            self._codes[launch.key] = self.compiler.code_hash(launch)
        return self._codes[launch.key]

    def launch(self, kernels: _Kernels, key: str, call: Message) -> CapturedLaunch | None:
        """Return the launch of a key; capture it again if another process captured it."""
        if key not in self._launches:
            self.take(kernels, call)
        return self._launches.get(key)

    def compile(self, kernels: _Kernels, wanted: list[tuple[str, Message]]) -> list[object]:
        """Compile the launches, and return a `Measured` for each, in JSON."""
        launches = [self.launch(kernels, *pair) for pair in wanted]
        measured = self.compiler.measured([launch for launch in launches if launch is not None])
        lost = Measured(0.0, problem=_LOST)
        return [asdict(lost if launch is None else next(measured)) for launch in launches]


_generation = cache(_Generation)
