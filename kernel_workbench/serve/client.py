"""The command's side of the warm judge: hand a run over where a judge waits, and wait for its end.

Only the standard library is imported here: the command that finds a judge imports no torch.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_workbench.root import ROOT

SOCKET_VARIABLE = "WORKBENCH_SERVE_SOCKET"
ROOMS = ("kernel_workbench", "kernels", "oracles", "profiles", "reports", "suites")
LARGEST_MESSAGE = 2**17  # bytes: words, and a process's variables
_CREDENTIALS = struct.Struct("3i")
# Options of a run that a warm judge can't serve: a terminal of the judge's own process, and an sm
# that processes which are there already weren't told.
_COLD = ("--in-process", "--pdb", "-s", "--sm", "--shard", "-h", "--help")
# Variables that differ from shell to shell and decide nothing that a waiting process has read.
_VOLATILE = frozenset(
    (
        *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "COLORTERM", "NO_COLOR"),
        *("WORKBENCH_RECORD_NOTE", "WORKBENCH_NOX", "WORKBENCH_FOLDER", "PYTEST_ADDOPTS"),
        *("PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED", "WORKBENCH_PAIR_NOTE", "FORCE_COLOR"),
        *("OPENBLAS_NUM_THREADS", "TRITON_INTERPRET", "WORKBENCH_SIMULATED_SM"),
        *("WORKBENCH_PROGRAM", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTHONSAFEPATH"),
    )
)


def socket_path() -> Path:
    """Return where the judge listens: in a folder that this user alone may enter."""
    named = os.environ.get(SOCKET_VARIABLE)
    if named:
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "kernel-workbench" / "judge.sock"
    return Path(tempfile.gettempdir()) / f"kernel-workbench-{os.getuid()}" / "judge.sock"


def wrong_place(path: Path) -> str | None:
    """Return why another user could answer at the socket, in a sentence; None where none could."""
    try:
        folder = path.parent.lstat()
    except OSError as error:
        return f"{path.parent}: {error.strerror}"
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid():
        return f"{path.parent} isn't a folder of this user's; name another by {SOCKET_VARIABLE}"
    if folder.st_mode & 0o077:
        return f"{path.parent}: other users may enter it; run chmod 700 on it"
    return None


def peer_is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end is of this user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.getuid())


def stamp() -> list[int]:
    """Return the number of the package's files and their latest change: a judge may be older."""
    count = latest = 0
    for room in ROOMS:
        for folder, _, names in os.walk(ROOT / room):
            for name in names:
                if name.endswith(".py"):
                    count += 1
                    latest = max(latest, (Path(folder) / name).stat().st_mtime_ns)
    return [count, latest]


def lasting(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process must have been started with.

    In PYTHONPATH the package's own folder counts for nothing: the package is imported already.
    """
    kept = {name: value for name, value in variables.items() if name not in _VOLATILE}
    own = str(Path(__file__).resolve().parents[2])
    paths = [path for path in kept.pop("PYTHONPATH", "").split(os.pathsep) if path not in {"", own}]
    return kept | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})


def run_warm(suite: str, words: Sequence[str]) -> int | None:
    """Let a waiting judge make a run, with this process's streams.

    Args:
        suite: the suite's name; a judge serves accuracy alone.
        words: what the user typed after it.

    Returns:
        The run's exit status; None where no judge waits that can make it.
    """
    path = socket_path()
    if suite != "accuracy" or not path.exists() or wrong_place(path) is not None:
        return None
    if any(word.partition("=")[0] in _COLD for word in words):
        return None
    request: dict[str, Any] = {
        "suite": suite,
        "words": list(words),
        "folder": str(Path.cwd()),
        "variables": dict(os.environ),
        "python": sys.executable,
        "stamp": stamp(),
    }
    data = json.dumps(request).encode()
    if len(data) > LARGEST_MESSAGE:
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(str(path))
            if not peer_is_own(connection):
                return None
            socket.send_fds(connection, [data], [0, 1, 2])
            reply = _reply(connection)
        except OSError:
            return None  # none has begun the run
        if "refused" in reply:
            sys.stderr.write(f"the run goes without the warm judge: {reply['refused']}\n")
            return None
        return int(reply["status"])


def _reply(connection: socket.socket) -> dict[str, Any]:
    """Wait for the reply; at Ctrl-C the judge is told, and closes the record."""
    while True:
        try:
            data = connection.recv(2**16)
            break
        except KeyboardInterrupt:
            connection.shutdown(socket.SHUT_WR)
    if not data:
        sys.stderr.write("the warm judge ended before the run did; run it again\n")
        return {"status": 4}
    reply = json.loads(data)
    return reply if isinstance(reply, dict) else {"status": 3}
