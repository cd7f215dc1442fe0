"""What runs on a node: the process that a single machine runs, whose record is told as it grows.

Nothing here knows how what it tells reaches the driver.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from kernel_workbench.suites import ROOT
from kernel_workbench.suites.fleet.engine import Beat, Ended, Event, Order, Pair, Started, Text
from kernel_workbench.suites.run.attempt import PAIR_NOTE

_PREFIX = "kernel-workbench-fleet-"
_DEAD_S = 3600.0  # of a run that beats each second
_POLL_S = 0.1
_CHUNK_BYTES = 2**15  # of what Ray hands over without a copy in its store
_TOLD_LINES = 30
_GPUS = "CUDA_VISIBLE_DEVICES"  # a run uses the first of them


def run(order: Order) -> Generator[Event, None, None]:
    """Run the suite and tell of it; what is left of it ends where nobody listens any more."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        results, beat, output = folder / "results", folder / "beat", folder / "output"
        process = _start(order, folder, results, beat, output)
        yield Started(socket.gethostname())
        taken = beats = 0
        try:
            while True:
                ended = process.poll() is not None  # asked first: all that it wrote is read then
                for chunk in _written(results, taken):
                    taken += len(chunk)
                    yield Text(chunk)
                if ended:
                    break
                if beat.is_file() and beat.stat().st_size > beats:
                    beats = beat.stat().st_size
                    yield Beat()
                time.sleep(_POLL_S)
            yield Ended(process.returncode, _last_lines(output), _pair(folder / "pair"))
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _sweep() -> None:
    """Remove the files of runs whose worker was killed: an engine kills the guard with it."""
    for beat in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/beat"):
        with suppress(OSError):
            if time.time() - beat.stat().st_mtime > _DEAD_S:
                shutil.rmtree(beat.parent, ignore_errors=True)


def _start(
    order: Order, folder: Path, results: Path, beat: Path, output: Path
) -> subprocess.Popen[bytes]:
    """Start the suite, as noxfile.py does, in the care of a guard."""
    known: list[dict[str, object]] = [
        {"kernel": kernel, "case": case} for kernel, case in order.done
    ]
    known += [{"kernel": kernel, "case": case, "crashed": True} for kernel, case in order.crashed]
    (folder / "done").write_text("".join(f"{json.dumps(each)}\n" for each in known))
    command = [sys.executable, "-m", "kernel_workbench.suites.fleet.guard", str(beat)]
    command += [sys.executable, "-m", "kernel_workbench.suites.run", order.suite, *order.arguments]
    command += [f"--results={results}"] + [f"--done={folder / 'done'}"] * bool(known)
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=_variables(os.environ) | order.variables | {PAIR_NOTE: str(folder / "pair")},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _variables(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a single machine's run, of the one that an engine gives."""
    # Ray sets it to its own idea of a task; a single machine's run has none.
    own = {name: value for name, value in given.items() if name != "OMP_NUM_THREADS"}
    if _GPUS in own:
        # Ray gives them in another order each time, and a run that is tried again on a node is to
        # have the board that it had.
        own[_GPUS] = ",".join(sorted(own[_GPUS].split(","), key=lambda each: (len(each), each)))
    return own


def _written(results: Path, start: int) -> Iterator[bytes]:
    """What the record has got since its first `start` bytes, in pieces."""
    for record in sorted(results.glob("*.jsonl"))[:1]:
        with record.open("rb") as file:
            file.seek(start)
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def _last_lines(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-_TOLD_LINES:])


def _pair(note: Path) -> Pair | None:
    """What was tried when the process ended; None: nothing, or it isn't known."""
    try:
        kernel, case = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return str(kernel), str(case)


def lacks(packages: Sequence[str]) -> tuple[str, ...]:
    """Which of the packages this node's Python hasn't got."""
    missing = []
    for each in packages:
        try:
            metadata.version(each)
        except metadata.PackageNotFoundError:
            missing.append(each)
    return tuple(missing)
