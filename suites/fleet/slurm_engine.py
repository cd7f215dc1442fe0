"""Place runs by Slurm, one job a run, by submitit. Nodes share a file system with the driver.

A job appends its events to a file, one line of JSON an event. The driver increments a count in
another file; a job ends its run if that count stands still.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import submitit

from kernel_workbench.suites.fleet import node
from kernel_workbench.suites.fleet.engine import (
    Beat,
    Ended,
    Event,
    FleetError,
    Lost,
    NoNodeError,
    Order,
    Started,
    Text,
)

_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Started, Text, Beat, Ended, Lost)
}
_MINUTES = 1440  # a job's limit without --slurm time=M
_ORPHAN_S = 60.0  # a driver without a beat for so long is dead: shared file systems may be late
_POLL_S = 0.2
_LOST_AFTER_S = 5.0  # the last lines of a job may arrive later than its end
# States of a job that runs or will run.
_GOES_ON = frozenset(("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "UNKNOWN"))


def run_job(order: Order, events: Path, alive: Path) -> None:
    """Run the suite on this node, and append its events to the file `events`."""
    seen, changed = b"", time.monotonic()
    with events.open("ab", buffering=0) as file:
        for event in node.run(order):
            file.write(_written(event))
            now = alive.read_bytes() if alive.is_file() else b""
            if now != seen:
                seen, changed = now, time.monotonic()
            elif time.monotonic() - changed > _ORPHAN_S:
                return


def _written(event: Event) -> bytes:
    fields = asdict(event)
    if isinstance(event, Text):
        fields["data"] = event.data.decode("latin-1")
    return json.dumps({"kind": type(event).__name__} | fields).encode() + b"\n"


def _event(line: bytes) -> Event:
    fields: dict[str, Any] = json.loads(line)
    kind = _KINDS[fields.pop("kind")]
    if kind is Text:
        fields["data"] = fields["data"].encode("latin-1")
    if fields.get("pair") is not None:
        fields["pair"] = tuple(fields["pair"])
    return kind(**fields)


@dataclass(slots=True)
class _Job:
    """A job, the file of its events, and the number of bytes read."""

    job: submitit.Job[None]
    events: Path
    host: str = ""
    read: int = 0
    ended: float | None = None  # when Slurm first reported its end

    def new_events(self) -> Iterator[Event]:
        """Yield the events of whole lines that arrived since the last call."""
        if not self.events.is_file():
            return
        with self.events.open("rb") as file:
            file.seek(self.read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.read += len(line)
                event = _event(line)
                if isinstance(event, Started):
                    self.host = event.host
                yield event


class SlurmEngine:
    """Jobs in `folder`, which the nodes share. The cluster "local" runs them on this machine."""

    def __init__(
        self, folder: Path, parameters: Mapping[str, str], *, cluster: str = "slurm"
    ) -> None:
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise FleetError(
                "--engine slurm: there is no sbatch here; run this on a machine that submits jobs"
            )
        self.folder, self.parameters, self.cluster = folder.resolve(), parameters, cluster
        self._jobs: dict[int, _Job] = {}
        self._hosts: dict[str, str] = {}
        self._numbers = self._beats = 0

    def preflight(self, kinds: Sequence[str]) -> None:
        """Check that Slurm knows each gres: a job for an unknown one may wait for ever."""
        if self.cluster != "slurm":
            return
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%G"],  # noqa: S607 (wherever Slurm is)
            capture_output=True,
            text=True,
            check=False,
        )
        offered = set(re.findall(r"gpu:([^:(,\s]+)(?=:\d)", done.stdout))
        missing = [kind for kind in kinds if kind not in offered]
        if offered and missing:
            raise FleetError(
                f"--on {missing[0]}: no partition has this gres; there is "
                f"{', '.join(sorted(offered))}"
            )

    def executor(self, kind: str, avoided: Collection[str]) -> submitit.AutoExecutor:
        """Return the executor that submits a job for this gres, with its node to itself."""
        executor = submitit.AutoExecutor(self.folder / "jobs", cluster=self.cluster)
        hosts = sorted(self._hosts[name] for name in avoided if name in self._hosts)
        parameters: dict[str, Any] = {
            "slurm_exclusive": True,
            "slurm_gres": f"gpu:{kind}:1",
            "slurm_time": _MINUTES,
            # The driver counts attempts: one that Slurm starts itself would be another stream.
            "slurm_additional_parameters": {"no-requeue": True},
            "name": f"fleet-{kind}",
        }
        if hosts:
            parameters["slurm_exclude"] = ",".join(hosts)
        own = {f"slurm_{name}": value for name, value in self.parameters.items()}
        executor.update_parameters(timeout_min=_MINUTES, **(parameters | own))
        return executor

    def start(self, kind: str, order: Order, avoided: Collection[str]) -> tuple[int, str]:
        """Submit a job that avoids lost nodes."""
        if self.cluster == "local" and avoided:
            raise NoNodeError(f"there is no other node that has {kind}")
        self._numbers += 1
        events = self.folder / f"events-{os.getpid()}-{self._numbers}"
        self._beat()
        job = self.executor(kind, avoided).submit(run_job, order, events, self._alive)
        self._jobs[self._numbers] = _Job(job, events)
        return self._numbers, f"job {job.job_id}"

    @property
    def _alive(self) -> Path:
        return self.folder / f"driver-{os.getpid()}"

    def _beat(self) -> None:
        self._beats += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        self._alive.write_text(str(self._beats))

    def events(self, timeout_s: float) -> Iterable[tuple[int, Event]]:
        """Yield the events of jobs; a job that ended without an event for it is `Lost`."""
        self._beat()
        time.sleep(min(timeout_s, _POLL_S))
        for number, running in list(self._jobs.items()):
            for event in running.new_events():
                if isinstance(event, Started):
                    self._hosts[f"job {running.job.job_id}"] = event.host
                running.ended = None
                if isinstance(event, Ended | Lost):
                    self._jobs.pop(number, None)  # first, since the driver then cancels the job
                yield number, event
            if number in self._jobs and str(running.job.state).split(" ")[0] not in _GOES_ON:
                running.ended = running.ended or time.monotonic()
                if time.monotonic() - running.ended > _LOST_AFTER_S:
                    self._jobs.pop(number, None)
                    yield number, Lost(f"its job ended, {running.job.state}, and didn't report how")

    def cancel(self, number: int) -> None:
        """Cancel the job; the suite's processes end with it."""
        job = self._jobs.pop(number, None)
        if job is not None:
            job.job.cancel()

    def close(self) -> None:
        """Cancel all jobs, and leave no files but the jobs' own output."""
        for number in list(self._jobs):
            self.cancel(number)
        for path in (*self.folder.glob(f"events-{os.getpid()}-*"), self._alive):
            path.unlink(missing_ok=True)
