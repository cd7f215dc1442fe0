"""Start a process whose ancestors reveal nothing of the suites, and end all of its children.

    python - LINE SOURCE OUTPUT < this text

The judge doesn't import this module: its text is the program of a process
(`judge_side/detached.py`) with only the standard library. The process forks a child, the keeper,
which prints its process id; the process itself ends, so that init becomes the keeper's parent. The
keeper starts Python on the text in SOURCE, with LINE as descriptor 3. It adopts the processes that
Python leaves behind, and kills all of them once the judge has closed its end of LINE or is gone.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SCRIPTS_LINE = 3
_FIRST_TO_GO = "1000"  # of Linux's out-of-memory scores
_PAUSE_S = 0.005


def _become_script(line: int, source: int) -> None:
    """Replace the child by Python on the text. Never returns."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(source, 0)
        os.dup2(line, _SCRIPTS_LINE)
        os.set_inheritable(_SCRIPTS_LINE, True)  # noqa: FBT003  (the descriptor may already have this number)
        os.closerange(_SCRIPTS_LINE + 1, os.sysconf("SC_OPEN_MAX"))
        os.execv(sys.executable, [sys.executable, "-"])  # noqa: S606  (needs no shell)
    finally:
        os._exit(1)


def _children() -> list[int]:
    own, children = str(os.getpid()), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == own and fields[0] != "Z":
                children.append(int(entry.name))
    return children


def _end_children() -> None:
    """Kill the children, and the orphans that this process adopts, until none is left."""
    while children := _children():
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_PAUSE_S)


def main() -> None:
    """Keep the process until it ends or the judge hangs up."""
    line, source, output = map(int, sys.argv[1:])
    if os.fork():
        os._exit(0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.write(1, b"%d\n" % os.getpid())
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Linux reaps ended children
    child = os.fork()
    if child == 0:
        _become_script(line, source)
    ended = select.poll()
    ended.register(os.pidfd_open(child), select.POLLIN)
    ended.register(line, select.POLLRDHUP)
    ended.poll()
    _end_children()
    os._exit(0)


if __name__ == "__main__":
    main()
