"""Fork workers in 10 ms from a process that has loaded torch, triton and the kernels.

    python -m kernel_workbench.suites.sandbox.worker_side.fork_server DESCRIPTOR DEVICE \
        INTERPRETER [TASK ...]

INTERPRETER: strict, stock, or none (workers then compile and compute nothing).
TASK: a module with a `run_task`, which every worker has loaded before it imports a candidate.

The server runs no candidate and never touches a GPU, because CUDA doesn't survive a fork. Every
process that a worker leaves behind becomes the server's child, and the server ends it. The server
ends when the judge does.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import resource
import select
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch
import triton.runtime.cache

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.suites.sandbox.orphans import adopt_orphans, die_with_parent, end_children
from kernel_workbench.suites.sandbox.wire import Channel, ClosedError
from kernel_workbench.suites.sandbox.worker_side import fingerprint, worker
from kernel_workbench.suites.sandbox.worker_side.in_process import mend

_FIRST_TO_GO = "1000"  # of Linux's out-of-memory scores
_DESCRIPTORS = 2  # a worker's socket, and the file that it prints to


class _Server:
    def __init__(self, judge: Channel, device: torch.device) -> None:
        self.judge, self.device = judge, device
        self.workers: set[int] = set()

    def serve(self) -> None:
        """Fork a worker at each request, and report each worker that ended.

        Return when the judge is gone.
        """
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self.judge.socket.fileno(), woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if self.judge.socket.fileno() in ready:
                message, descriptors = self.judge.receive_with_descriptors(None, _DESCRIPTORS)
                self._fork(message, descriptors)

    def _fork(self, message: dict[str, object], descriptors: tuple[int, ...]) -> None:
        # The judge waits for the number before it kills: by then a worker has its own group.
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become_worker(self.judge, message, descriptors, self.device)
        for descriptor in descriptors:
            os.close(descriptor)
        self.workers.add(child)
        self.judge.send({"forked": child})

    def _reap(self) -> None:
        ended = []
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if child == 0:
                break
            if child in self.workers:
                self.workers.discard(child)
                ended.append((child, status))
        if ended:
            # The processes that the workers left are now children of this one.
            end_children(frozenset(self.workers))
        for child, status in ended:
            self.judge.send({"ended": child, "status": os.waitstatus_to_exitcode(status)})


def _become_worker(
    judge: Channel, message: dict[str, object], descriptors: tuple[int, ...], device: torch.device
) -> None:
    """Leave everything of the server behind in the child, and work. Never returns."""
    status = 1
    try:
        end, output = descriptors
        _stand_alone(judge, os.open(os.devnull, os.O_RDONLY), output)
        line = Channel(socket.socket(fileno=end))
        if isinstance(
            sys.stdout, io.TextIOWrapper
        ):  # the judge reads each call's part of this file
            sys.stdout.reconfigure(line_buffering=True)
        ready = None
        if "waits" in message:
            ready = worker.prepared(line, device, sys.argv[4:])
            message = line.receive(None)
        worker.serve(line, message, device, ready)
        status = 0
    except ClosedError:
        pass  # the judge has hung up and knows the reason
    except Exception:  # noqa: BLE001  (the judge quotes the last line that a worker prints)
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _stand_alone(judge: Channel, read: int, output: int) -> None:
    """Leave the server's group and descriptors; read from one descriptor and print to another."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the default of other processes
    die_with_parent()
    Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    judge.close()
    os.dup2(read, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in (read, output):
        os.close(descriptor)


def _hash_triton() -> None:
    """Let Triton hash its own files once for all workers; each compilation's key has this hash."""
    hashed = getattr(triton.runtime.cache, "triton_key", None)  # no part of Triton's API
    if hashed is not None:
        hashed()


def main() -> None:
    """Load everything, then serve the judge at the other end of the descriptor."""
    judge = Channel(socket.socket(fileno=int(sys.argv[1])))
    device = torch.device(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge handles Ctrl-C
    adopt_orphans()
    if sys.argv[3] != "none":
        mend(device, strictly=sys.argv[3] == "strict")
    all_kernels()
    for task in sys.argv[4:]:
        importlib.import_module(task)
    fingerprint.looked_up_names()
    if device.type == "cuda" or sys.argv[3] == "none":
        _hash_triton()
    gc.freeze()  # a worker's collections then leave the objects alone that it shares with others
    try:
        judge.send({"ready": True})
        _Server(judge, device).serve()
    except ClosedError:
        pass
    finally:
        end_children()
    os._exit(0)  # skip the interpreter's cleanup: the judge waits


if __name__ == "__main__":
    main()
