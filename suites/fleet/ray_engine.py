"""Place runs by Ray: a run is one task, which takes all of its node.

Ray's own retries are off: Ray would append a retried generator to the first one's stream. A task
is pinned to the node chosen here, so that it never runs on a lost node again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernel_workbench.suites import ROOT
from kernel_workbench.suites.fleet import node
from kernel_workbench.suites.fleet.checkout import LEFT_OUT
from kernel_workbench.suites.fleet.driver import tell
from kernel_workbench.suites.fleet.engine import Ended, Event, FleetError, Lost, NoNodeError, Order

_PREFIX = "accelerator_type:"
_REACH_S = 5.0
_PROBE_S = 10.0
_MORE_PROBES = 3  # of a node whose task didn't start
_BETWEEN_PROBES_S = 1.0  # two nodes of one host replace each other's files while they unpack
_MOST_AT_ONCE = 1000  # events of one attempt, before the next attempt's turn
# `ray job submit` sets this variable: the working directory has been shipped already.
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"

# By node: the packages that it lacks, or why no task ran there; None if it hasn't answered.
_Answers = dict[str, tuple[str, ...] | str | None]


class RayEngine:
    """The nodes of a Ray cluster. Raises FleetError if it is absent or of another version."""

    def __init__(self, address: str) -> None:
        if address.startswith("ray://"):
            raise FleetError(
                f"--address {address}: rows can't be streamed over ray://; start the driver in the "
                "cluster: ray job submit --address http://HEAD:8265 --working-dir . -- python -m "
                "kernel_workbench.suites.fleet --on TYPE -- bench"
            )
        shipped = {"working_dir": str(ROOT), "excludes": [f"/{folder}" for folder in LEFT_OUT]}
        try:
            _reach(address)
            ray.init(
                address,
                runtime_env={} if _JOB in os.environ else shipped,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise FleetError(_why_not(address, error)) from error
        self._running: dict[int, Any] = {}
        self._ended: set[int] = set()
        self._bad: set[str] = set()
        self._numbers = 0

    def preflight(self, kinds: Sequence[str], packages: Sequence[str]) -> None:
        """Check that each type has a node that can run the suite; other nodes are never used.

        Raises FleetError.
        """
        problems = [self._absent(kind) for kind in kinds if not self._nodes(kind)]
        if problems:
            raise FleetError("\n".join(problems))
        nodes = {item["NodeID"]: item for kind in kinds for item in self._nodes(kind)}
        answers = _probed(list(nodes), packages)
        # Probe failed nodes again: a start that failed by chance isn't the node's fault.
        for _ in range(_MORE_PROBES):
            failed = [name for name, answer in answers.items() if isinstance(answer, str)]
            if failed:
                time.sleep(_BETWEEN_PROBES_S)
                answers |= _probed(failed, packages)
        for name, answer in answers.items():
            if answer is None:
                tell(_name(nodes[name]), f"it didn't answer in {_PROBE_S:.0f} s; going on")
                continue
            if not answer:
                continue
            self._bad.add(name)
            if isinstance(answer, str):
                problem = f"no task can be run there ({answer})"
            else:
                problem = f"its Python lacks {', '.join(answer)}; install them there"
            tell(_name(nodes[name]), problem)
        lost = [kind for kind in kinds if not self._nodes(kind)]
        if lost:
            raise FleetError(f"{', '.join(lost)}: no node can run the suite; see above")

    def _absent(self, kind: str) -> str:
        there = sorted(
            {
                name.removeprefix(_PREFIX)
                for item in _known_nodes()
                if item["Alive"]
                for name in item["Resources"]
                if name.startswith(_PREFIX)
            }
        )
        return f"--on {kind}: no node of this cluster has it; there " + (
            f"is {', '.join(there)}" if there else "is no accelerator at all"
        )

    def _nodes(self, kind: str, avoided: Collection[str] = ()) -> list[dict[str, Any]]:
        """Return the live nodes of a type that aren't bad or avoided."""
        return [
            item
            for item in _known_nodes()
            if item["Alive"]
            and f"{_PREFIX}{kind}" in item["Resources"]
            and item["NodeID"] not in self._bad | set(avoided)
        ]

    def start(self, kind: str, order: Order, avoided: Collection[str]) -> tuple[int, str]:
        """Place the order on an idle node if there is one, else on a busy one."""
        nodes = self._nodes(kind, avoided)
        if not nodes:
            raise NoNodeError(f"there is no {'other ' * bool(avoided)}node that has {kind}")
        # Ray has no public name for this function.
        free = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]  # noqa: SLF001
        chosen = max(nodes, key=lambda item: free.get(item["NodeID"], {}).get("CPU", 0.0))
        whole = chosen["Resources"]
        if free.get(chosen["NodeID"], {}).get("CPU", 0.0) < whole.get("CPU", 0.0):
            tell(kind, f"{_name(chosen)} has other work; the run waits until it has none")
        task = ray.remote(num_returns="streaming", max_retries=0)(node.run).options(
            num_cpus=whole.get("CPU", 0),
            num_gpus=whole.get("GPU", 0),
            resources={f"{_PREFIX}{kind}": whole[f"{_PREFIX}{kind}"]},
            scheduling_strategy=_on(chosen["NodeID"]),
        )
        self._numbers += 1
        self._running[self._numbers] = task.remote(order)
        return self._numbers, chosen["NodeID"]

    def events(self, timeout_s: float) -> Iterable[tuple[int, Event]]:
        """Yield the events of tasks; a task that failed in Ray is `Lost`."""
        if not self._running:
            time.sleep(timeout_s)
            return
        streams = {stream: number for number, stream in self._running.items()}
        ready, _ = ray.wait(list(streams), num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready:
            ready, _ = ray.wait(
                list(streams), num_returns=len(streams), timeout=0, fetch_local=False
            )
        for stream in ready:
            number = streams[stream]
            for event in self._events_of(stream):
                if isinstance(event, Ended):  # first, since the driver then cancels the attempt
                    self._running.pop(number, None)
                yield number, event
                if number not in self._running:
                    break

    def _events_of(self, stream: Any) -> Iterator[Event]:  # noqa: ANN401  (Ray's generator)
        try:
            for _ in range(_MOST_AT_ONCE):
                yield ray.get(next(stream), timeout=_PROBE_S)
                if not ray.wait([stream], timeout=0, fetch_local=False)[0]:
                    return
        except StopIteration:
            yield Lost("its task ended and didn't report how")
        except (RayError, GetTimeoutError) as error:
            yield Lost(_reason(error))

    def cancel(self, number: int) -> None:
        """Kill the task's worker; the suite's processes end with it."""
        stream = self._running.pop(number, None)
        if stream is not None:
            with suppress(RayError, ValueError, TypeError):
                ray.cancel(stream, force=True)

    def close(self) -> None:
        """Cancel all attempts and leave the cluster."""
        for number in list(self._running):
            self.cancel(number)
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise OSError or ValueError if no cluster answers: Ray itself would try for minutes."""
    reached = canonicalize_bootstrap_address(address)
    if reached is None:
        raise ValueError("this names no cluster")
    host, _, port = reached.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()


def _probed(names: Sequence[str], packages: Sequence[str]) -> _Answers:
    """Ask the nodes for missing packages, and return their answers."""
    probe = ray.remote(num_cpus=0, max_retries=0)(node.lacks)
    probes = {
        probe.options(scheduling_strategy=_on(name)).remote(list(packages)): name for name in names
    }
    answers: _Answers = dict.fromkeys(names)
    if not probes:
        return answers
    ready, _ = ray.wait(list(probes), num_returns=len(probes), timeout=_PROBE_S)
    for ref in ready:
        try:
            answers[probes[ref]] = ray.get(ref)
        except RayError as error:
            answers[probes[ref]] = _reason(error)
    return answers


def _known_nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _on(name: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(name, soft=False)


def _name(described: dict[str, Any]) -> str:
    return f"node {described['NodeManagerHostname']} ({described['NodeID'][:8]})"


def _reason(error: BaseException) -> str:
    """Return one line of Ray's message: the last one of a traceback, else the first sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayTaskError) or not lines:
        return lines[-1] if lines else type(error).__name__
    return f"{type(error).__name__}: {lines[0].partition('. ')[0]}"


def _why_not(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "Version mismatch" in text or "version" in text.lower():
        return f"--address {address}: this Python isn't the cluster's: {text}"
    return (
        f"--address {address}: there is no Ray cluster ({text.split('. ')[0]}); start one with "
        "ray start --head, or give its address"
    )
