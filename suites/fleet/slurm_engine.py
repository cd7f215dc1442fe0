"""Runs placed by Slurm: a job for each, by submitit. The nodes share a file system with the driver.

A job tells by a file that it appends to, a line of JSON an event. The driver tells that it lives by
a file that it counts up; a job that sees it stand still ends its run.
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
    each.__name__: each for each in (Started, Text, Beat, Ended, Lost)
}
_MINUTES = 1440  # that a job may take, where --slurm time=M says nothing
_ORPHAN_S = 60.0  # of a driver that doesn't count up: a shared file system may be that late
_POLL_S = 0.2
_LOST_AFTER_S = 5.0  # of a job that has ended: its last lines may come later than its end
# States of a job that goes on, or will.
_GOES_ON = frozenset(("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "UNKNOWN"))


def run_job(order: Order, events: Path, alive: Path) -> None:
    """Run the suite on this node and append what it tells to `events`."""
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
    """A job, the file of its events, and how much of it was read."""

    job: submitit.Job[None]
    events: Path
    host: str = ""
    taken: int = 0
    ended: float | None = None  # since when Slurm calls it ended

    def told(self) -> Iterator[Event]:
        """Events of whole lines that have come since the last call."""
        if not self.events.is_file():
            return
        with self.events.open("rb") as file:
            file.seek(self.taken)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.taken += len(line)
                event = _event(line)
                if isinstance(event, Started):
                    self.host = event.host
                yield event


class SlurmEngine:
    """Jobs in `folder`, which the nodes see too. cluster: "local" runs them on this machine."""

    def __init__(
        self, folder: Path, parameters: Mapping[str, str], *, cluster: str = "slurm"
    ) -> None:
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise FleetError(
                "--engine slurm: there is no sbatch here; type on a machine that submits jobs"
            )
        self.folder, self.parameters, self.cluster = folder.resolve(), parameters, cluster
        self._jobs: dict[int, _Job] = {}
        self._hosts: dict[str, str] = {}
        self._numbers = self._beats = 0

    def preflight(self, kinds: Sequence[str]) -> None:
        """See that Slurm knows each gres: a job for one that it doesn't may wait for ever."""
        if self.cluster != "slurm":
            return
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%G"],  # noqa: S607 (wherever Slurm is)
            capture_output=True,
            text=True,
            check=False,
        )
        known = set(re.findall(r"gpu:([^:(,\s]+)(?=:\d)", done.stdout))
        missing = [each for each in kinds if each not in known]
        if known and missing:
            raise FleetError(
                f"--on {missing[0]}: no partition has this gres; there is "
                f"{', '.join(sorted(known))}"
            )

    def executor(self, kind: str, avoided: Collection[str]) -> submitit.AutoExecutor:
        """What submits a job for this gres, with its node to itself."""
        made = submitit.AutoExecutor(self.folder / "jobs", cluster=self.cluster)
        hosts = sorted(self._hosts[each] for each in avoided if each in self._hosts)
        asked: dict[str, Any] = {
            "slurm_exclusive": True,
            "slurm_gres": f"gpu:{kind}:1",
            "slurm_time": _MINUTES,
            # Attempts are counted here: one that Slurm makes by itself would be another stream.
            "slurm_additional_parameters": {"no-requeue": True},
            "name": f"fleet-{kind}",
        }
        if hosts:
            asked["slurm_exclude"] = ",".join(hosts)
        own = {f"slurm_{name}": value for name, value in self.parameters.items()}
        made.update_parameters(timeout_min=_MINUTES, **(asked | own))
        return made

    def start(self, kind: str, order: Order, avoided: Collection[str]) -> tuple[int, str]:
        """Submit a job; nodes that were lost are left out."""
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
        """What jobs have appended; a job that ended and hasn't told how is lost."""
        self._beat()
        time.sleep(min(timeout_s, _POLL_S))
        for number, each in list(self._jobs.items()):
            for event in each.told():
                if isinstance(event, Started):
                    self._hosts[f"job {each.job.job_id}"] = event.host
                each.ended = None
                if isinstance(event, Ended | Lost):
                    self._jobs.pop(number, None)  # first: who hears of it cancels what is left
                yield number, event
            if number in self._jobs and str(each.job.state).split(" ")[0] not in _GOES_ON:
                each.ended = each.ended or time.monotonic()
                if time.monotonic() - each.ended > _LOST_AFTER_S:
                    self._jobs.pop(number, None)
                    yield number, Lost(f"its job ended, {each.job.state}, and hadn't told how")

    def cancel(self, number: int) -> None:
        """Cancel the job, with which the suite's processes end."""
        job = self._jobs.pop(number, None)
        if job is not None:
            job.job.cancel()

    def close(self) -> None:
        """Cancel what runs, and leave no files but the jobs' own output."""
        for number in list(self._jobs):
            self.cancel(number)
        for each in (*self.folder.glob(f"events-{os.getpid()}-*"), self._alive):
            each.unlink(missing_ok=True)
