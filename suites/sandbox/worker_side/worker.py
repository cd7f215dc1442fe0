"""The worker: a process in which candidates run one after the other, until one of them ends it.

The worker imports files, tells the judge which kernels they register, and calls the kernels that
the judge names. It never has the truth: a candidate can only find its own inputs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from kernel_workbench import use_overlay
from kernel_workbench.kernels.builds import BuildError, built, is_built
from kernel_workbench.kernels.causes import is_fatal
from kernel_workbench.kernels.device import create_context
from kernel_workbench.kernels.registry import FileRaisedError, Kernel, KernelError
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.sandbox.call import Call, Declared, How, declared, told_of
from kernel_workbench.suites.sandbox.parcels import Arena, ArenaError, Unpacked, lay_out, open_arena
from kernel_workbench.suites.sandbox.shared_sets import OpenedSets
from kernel_workbench.suites.sandbox.wire import Channel, ClosedError, Message, case_of
from kernel_workbench.suites.sandbox.worker_side import fingerprint, process_state, watch
from kernel_workbench.suites.sandbox.worker_side.candidate import (
    call_again,
    call_candidate,
    replay_candidate,
)
from kernel_workbench.suites.sandbox.worker_side.rehearsal import rehearse

# Bound before a candidate is imported, which may replace the original.
_synchronize: Callable[[torch.device], None] = torch.cuda.synchronize
_MOST_KEPT = 2**28
_REPLACED: Literal["replaced code"] = "replaced code"


class _LeftChangeError(Exception):
    """Code that an earlier call left has changed this process, which can't be undone."""


class _Worker:
    def __init__(self, device: torch.device, line: Channel) -> None:
        self.device, self.line = device, line
        self.number = 0  # of the present message
        self.arenas: dict[str, Arena] = {}  # by the device's type; "sets": shared sets
        self.kernels: dict[tuple[str, str], Kernel] = {}
        self.last: Unpacked | None = None
        self.state: process_state.State = {}  # of the process between calls
        self.tasks: dict[str, Callable[..., Any]] = {}  # each module's `run_task`
        self.fingerprint = fingerprint.NONE
        self.replaced: dict[str, str] = {}  # sentences by a file's path

    def open(self, spec: Message, descriptors: tuple[int, ...]) -> str | None:
        """Open the judge's memory; return a sentence if it can't be opened, else None."""
        name = str(spec.get("name", spec["device"]))
        earlier = self.arenas.pop(name, None)
        if earlier is not None:
            earlier.close()
        try:
            self.arenas[name] = open_arena(spec, descriptors)
        except ArenaError as error:
            return str(error)
        return None

    def get_ready(self, tasks: Sequence[str], *, watched: bool) -> None:
        """Take the `run_task` of each module; watched: guard the suites' code from here on."""
        self.tasks = {module: sys.modules[module].run_task for module in tasks}
        if watched:
            watch.watch_oracles()
            self.fingerprint = fingerprint.take({"the worker's tasks": self.tasks})

    def load(self, message: Message) -> Message:
        """Import the kernels of the checkout, or of a changed copy of it, and a user's files."""
        if message["overlay"]:
            use_overlay(message["overlay"])
        registry = importlib.import_module("kernel_workbench.kernels.registry")
        own = {(kernel.op.name, kernel.name) for kernel in registry.all_kernels()}
        if message["overlay"] or self.fingerprint is fingerprint.NONE:
            self.get_ready(message["tasks"], watched=message["watched"])
        left_out: dict[str, str] = {}
        try:
            for file in message["files"]:
                try:
                    self._import(Path(file))
                except FileRaisedError as error:
                    left_out[file] = str(error)
        except KernelError as error:
            return {"error": str(error)}
        if len(left_out) == len(message["files"]) > 0:
            return {"error": "; ".join(left_out.values())}
        self.kernels = {(kernel.op.name, kernel.name): kernel for kernel in registry.all_kernels()}
        for key in set(self.kernels) - own:  # a user's kernel can't claim another origin
            self.kernels[key] = replace(self.kernels[key], origin="user")
        descriptions = [
            self._answered(kernel, partial(_described, kernel, message["sm"], self.device))
            for key, kernel in self.kernels.items()
            if message["overlay"] or key not in own
        ]
        self.state = process_state.read()
        return {"kernels": descriptions, "left_out": left_out}

    def _import(self, file: Path) -> None:
        """Import a user's file, and restore code of ours that the import replaced.

        Calls of the file's kernels then fail with a sentence. Raises KernelError if the file is
        refused or something can't be restored.
        """
        changed, set_back = self.fingerprint.changed, self.fingerprint.set_back
        process_state.load_kept(file)
        replaced = changed()
        if replaced is None:
            return
        self.replaced[str(file)] = f"while its file was imported, {replaced}"
        if not set_back():
            raise KernelError(f"--kernels {file}: while it was imported, {replaced}")

    def blamed(self, message: Message, reason: str, reply: Message) -> Message:
        """Return the reply to a message during which code of the suites was replaced."""
        if message["do"] == "ask":
            problem = Declared(problem=f"asked about the case, {reason}", rule=_REPLACED)
            return {"answers": [asdict(problem)] * len(message["cases"])}
        if message["do"] == "build":
            return reply  # the judge ends this worker
        if message["is_baseline"]:
            return reply | {"spent": True}
        if message["do"] == "call":
            return asdict(Call({}, 0.0, _REPLACED, reason, spent=True))
        return {"raised": reason, "rule": _REPLACED, "spent": True}

    def settle(self) -> None:
        """Undo changes since the last call, made for example by a finaliser of its inputs.

        Raises _LeftChangeError if code was replaced or a setting can't be restored: another worker
        has to make this call.
        """
        if self.fingerprint.changed() is not None:
            raise _LeftChangeError
        if process_state.set_back(self.state, process_state.read()):
            raise _LeftChangeError

    def ask(self, message: Message) -> Message:
        """Return the answers of a kernel about cases: a refusal, or the variant and the memory."""
        kernel, sm = self.kernels[message["op"], message["kernel"]], message["sm"]
        self.settle()

        def answer(case: Case) -> Message:
            refusal = kernel.domain.reject(case, sm, self.device.type)
            return asdict(
                declared(kernel, case, sm) if refusal is None else Declared(refusal=refusal)
            )

        def answers() -> Message:
            return {"answers": [answer(case_of(case)) for case in message["cases"]]}

        return self._answered(kernel, answers)

    def build(self, message: Message) -> Message:
        """Say if a kernel's build is in the cache; build it if the message has a time to wait."""
        build = self.kernels[message["op"], message["kernel"]].build
        if build is None:
            return {"built": True}
        try:
            if message["wait_s"] is not None:
                built(build, message["wait_s"])
            return {"built": is_built(build)}
        except BuildError as error:
            return {"built": False, "problem": str(error)}

    def _answered(self, kernel: Kernel, answer: Callable[[], Message]) -> Message:
        """Return the answer of a user's function, and restore the settings that it changes."""
        changes = process_state.StateChanges()
        with process_state.kept(kernel.path, changes):
            answers = answer()
        if changes.spent:  # the judge reads the message, and starts another worker
            raise RuntimeError(f"a change by {kernel.name} can't be restored: {changes.broken}")
        return answers

    def call(self, message: Message) -> Message:
        """Call a kernel, and copy its outputs into the arena, from `outputs_at` on."""
        kernel = self.kernels[message["op"], message["kernel"]]
        if kernel.path in self.replaced:
            return asdict(Call({}, 0.0, _REPLACED, self.replaced[kernel.path]))
        kernel = replace(kernel, configuration=message["configuration"])
        case = case_of(message["case"])
        # Kept until the next inputs exist, which must have other addresses.
        arena = self.arenas[message["through"]]
        first, *later = message["inputs"]
        unpacked = Unpacked(arena, first, kernel.op.updates, self.device)
        self.last = unpacked
        self.settle()
        unpacked.followed = bool(later)
        how = How(**message["how"])
        call = call_candidate(kernel, case, unpacked, message["fill"], replace(how, then=None))
        for inputs in later if call.rule is None else ():
            other = Unpacked(arena, inputs, kernel.op.updates, self.device)
            if how.then == "replay":
                call = replay_candidate(kernel, case, unpacked, other)
            else:
                call = call_again(kernel, case, unpacked, other, message["fill"])
        if not call.fatal:
            if not later:  # else the buffers hold the later values
                unpacked.send_back()
            lay_out(call.outputs, arena, message["outputs_at"])
            if self.device.type == "cuda":
                _synchronize(self.device)
                self._give_back(unpacked)
        return asdict(replace(call, outputs={})) | {"outputs": list(call.outputs)}

    def task(self, message: Message) -> Message:
        """Call a module's `run_task` with a kernel, for example to time it.

        The module was imported before any candidate, and uses the objects that it bound then,
        whatever a candidate has replaced since.
        """
        kernel = self.kernels[message["op"], message["kernel"]]
        if kernel.path in self.replaced:
            return {"raised": self.replaced[kernel.path], "rule": _REPLACED}
        arena = self.arenas[message["through"]]
        self.last = None
        self.settle()
        kernel.op.tell_signs(message["signs"])
        unpacked = [
            Unpacked(arena, inputs_message, kernel.op.updates, self.device)
            for inputs_message in message["inputs"]
        ]
        inputs = [item.arguments for item in unpacked]
        run_task, case = self.tasks[message["module"]], case_of(message["case"])
        changes = process_state.StateChanges()
        try:
            with (
                watch.libraries_refused(kernel, self.device),
                process_state.kept(kernel.path, changes),
            ):
                result, outputs = run_task(kernel, case, inputs, self.device, message["settings"])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  (whatever a candidate raises)
            reply = {"raised": told_of(error, kernel), "fatal": is_fatal(str(error))}
            return reply | {"spent": changes.spent}
        if changes.broken is not None and kernel.origin != "baseline":
            reply = {"raised": changes.broken, "rule": "changed process state"}
            return reply | {"spent": changes.spent}
        lay_out(outputs, arena, message["outputs_at"])
        if self.device.type == "cuda":
            _synchronize(self.device)
            for item in unpacked:
                self._give_back(item)
        return {"result": result, "outputs": list(outputs), "spent": changes.spent}

    def passes(self, message: Message) -> Message:
        """Call a module's `run_passes` with a kernel and sets that the judge fills repeatedly.

        `run_passes` gets the next order of calls from a function that sends a reply and waits for
        the judge's next message.
        """
        kernel, arena = self.kernels[message["op"], message["kernel"]], self.arenas.pop("sets")
        if kernel.path in self.replaced:
            return {"raised": self.replaced[kernel.path], "rule": _REPLACED}
        self.last = None
        self.settle()
        sets = OpenedSets.of(arena, message["sets"])
        run_passes = sys.modules[message["module"]].run_passes
        changes = process_state.StateChanges()
        try:
            with (
                watch.libraries_refused(kernel, self.device),
                process_state.kept(kernel.path, changes),
            ):
                run_passes(kernel, sets, self.device, message["settings"], self._next)
        except (KeyboardInterrupt, ClosedError):
            raise
        except BaseException as error:  # noqa: BLE001  (whatever a candidate raises)
            reply = {"raised": told_of(error, kernel), "fatal": is_fatal(str(error))}
            return reply | {"spent": changes.spent}
        finally:
            del sets
            arena.close()
        if changes.broken is not None and kernel.origin != "baseline":
            reply = {"raised": changes.broken, "rule": "changed process state"}
            return reply | {"spent": changes.spent}
        return {"spent": changes.spent}

    def _next(self, reply: Message) -> Message:
        """Send a reply, and return the judge's next message about the same passes."""
        self.line.send({"id": self.number} | reply)
        message = self.line.receive()
        self.number = message["id"]
        return message

    def _give_back(self, unpacked: Unpacked) -> None:
        """Free gigabytes of GPU memory, which the judge needs for the truth."""
        if unpacked.nbytes > _MOST_KEPT:
            self.last = None
            unpacked.release()
            torch.cuda.empty_cache()


def _described(kernel: Kernel, sm: int, device: torch.device) -> Message:
    """Return a registered kernel in JSON."""
    try:
        variants = () if kernel.variants is None else tuple(kernel.variants(sm))
        problem = None
    except Exception as error:  # noqa: BLE001  (a user's function, whatever it raises)
        raised = f"{type(error).__name__}: {' '.join(str(error).split())}"
        variants, problem = (), f"its variants for sm {sm} raised {raised}"
    return {
        "op": kernel.op.name,
        "name": kernel.name,
        "returns": kernel.op.outputs,
        "origin": kernel.origin,
        "path": kernel.path,
        "priority": kernel.priority,
        "numerics": asdict(kernel.numerics),
        "wraps": kernel.wraps,
        "variants": variants,
        # On another device, which may lack the compiler, its cases are refused.
        "build": kernel.build is not None and device.type in kernel.domain.devices,
        "problem": problem,
    }


def prepared(line: Channel, device: torch.device, tasks: Sequence[str]) -> _Worker:
    """Return a worker that is ready to import files before the judge has named any.

    On a GPU it has a context of CUDA, and has loaded the operations that calls need.
    """
    create_context(device)
    if device.type == "cuda":
        rehearse(device)
    watch.keep_refusing()
    worker = _Worker(device, line)
    worker.get_ready(tasks, watched=True)
    return worker


def serve(
    line: Channel, message: Message, device: torch.device, ready: _Worker | None = None
) -> None:
    """Answer the judge until it hangs up; `message` says what to load, `ready` is `prepared`'s."""
    torch.set_num_threads(1)
    if message["watched"] and ready is None:  # what only compiles draws inputs through oracles
        watch.keep_refusing()
    of = ready or _Worker(device, line)
    answer: dict[str, Callable[[Message], Message]] = {
        "ask": of.ask,
        "build": of.build,
        "call": of.call,
        "task": of.task,
        "passes": of.passes,
        "work": lambda message: of.tasks[message["module"]](of.kernels, message["settings"]),
    }
    # Bound before a candidate is imported.
    printed, libc, blamed = sys.stdout, ctypes.CDLL(None), of.blamed
    reply = of.load(message)
    changed = of.fingerprint.changed
    replaced = changed()
    if replaced is not None:
        reply = {"error": f"asked about its variants, a kernel's file replaced code: {replaced}"}
    line.send({"id": 0} | reply)
    gc.freeze()  # a collection between calls then takes no time
    while True:
        try:
            message, descriptors = line.receive_with_descriptors(None, 1)
        except ClosedError:
            return
        of.number = message["id"]
        try:
            problem = of.open(message["arena"], descriptors) if "arena" in message else None
            reply = answer[message["do"]](message) if problem is None else {"no_arena": problem}
        except ClosedError:  # the judge hung up during passes
            return
        except _LeftChangeError:
            line.send({"id": of.number, "stale": True})
            return
        except torch.OutOfMemoryError as error:  # the suite's own error; a kernel's was caught
            reply = {"no_memory": " ".join(str(error).split())}
        replaced = changed()
        if replaced is not None:
            reply = blamed(message, replaced, reply)
        # GPU output goes through C, which buffers it for a file.
        with suppress(OSError, ValueError):
            printed.flush()
        libc.fflush(None)
        line.send({"id": of.number} | reply)
        if replaced is not None:
            return
