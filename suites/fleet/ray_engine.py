"""Runs placed by Ray: a task for each, which takes all of its node.

Ray's own retries are off: a second try of a generator is stitched to the first one's stream. A task
stands on the node that was chosen here, since a node that was lost isn't to be taken again.
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
_MOST_AT_ONCE = 1000  # events of one attempt, before another one's are looked at
# Set in what `ray job submit` starts: its working directory has been shipped already.
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"

# By node: the packages that it lacks, or why no task ran there; None: it hasn't answered.
_Told = dict[str, tuple[str, ...] | str | None]


class RayEngine:
    """The nodes of a Ray cluster. Raises FleetError where there is none, or of another version."""

    def __init__(self, address: str) -> None:
        if address.startswith("ray://"):
            raise FleetError(
                f"--address {address}: rows can't be streamed over ray://; start the driver in the "
                "cluster: ray job submit --address http://HEAD:8265 --working-dir . -- python -m "
                "kernel_workbench.suites.fleet --on TYPE -- bench"
            )
        shipped = {"working_dir": str(ROOT), "excludes": [f"/{each}" for each in LEFT_OUT]}
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
        """See that each type has a node that can run the suite; others aren't taken.

        Raises FleetError.
        """
        problems = [self._absent(each) for each in kinds if not self._nodes(each)]
        if problems:
            raise FleetError("\n".join(problems))
        nodes = {each["NodeID"]: each for kind in kinds for each in self._nodes(kind)}
        told = _probed(list(nodes), packages)
        # Asked again: what comes of a start that failed by chance is no fault of the node's.
        for _ in range(_MORE_PROBES):
            failed = [name for name, each in told.items() if isinstance(each, str)]
            told |= _probed(failed, packages)
        for name, each in told.items():
            if each is None:
                tell(_name(nodes[name]), f"it hasn't answered in {_PROBE_S:.0f} s; going on")
                continue
            if not each:
                continue
            self._bad.add(name)
            if isinstance(each, str):
                problem = f"no task can be run there ({each})"
            else:
                problem = f"its Python lacks {', '.join(each)}; install them there"
            tell(_name(nodes[name]), problem)
        lost = [each for each in kinds if not self._nodes(each)]
        if lost:
            raise FleetError(f"{', '.join(lost)}: no node can run the suite; see above")

    def _absent(self, kind: str) -> str:
        there = sorted(
            {
                name.removeprefix(_PREFIX)
                for each in _known_nodes()
                if each["Alive"]
                for name in each["Resources"]
                if name.startswith(_PREFIX)
            }
        )
        return f"--on {kind}: no node of this cluster has it; there " + (
            f"is {', '.join(there)}" if there else "is no accelerator at all"
        )

    def _nodes(self, kind: str, avoided: Collection[str] = ()) -> list[dict[str, Any]]:
        """Nodes of a type that live and can be taken."""
        return [
            each
            for each in _known_nodes()
            if each["Alive"]
            and f"{_PREFIX}{kind}" in each["Resources"]
            and each["NodeID"] not in self._bad | set(avoided)
        ]

    def start(self, kind: str, order: Order, avoided: Collection[str]) -> tuple[int, str]:
        """Place it on a node that nothing runs on, where there is one, else on a busy one."""
        nodes = self._nodes(kind, avoided)
        if not nodes:
            raise NoNodeError(f"there is no {'other ' * bool(avoided)}node that has {kind}")
        # Ray has no public name for it.
        free = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]  # noqa: SLF001
        chosen = max(nodes, key=lambda each: free.get(each["NodeID"], {}).get("CPU", 0.0))
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
        """What tasks have told; what Ray says of a task that failed is that it was lost."""
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
            for event in self._told(stream):
                if isinstance(event, Ended):  # first: who hears of it cancels what is left
                    self._running.pop(number, None)
                yield number, event
                if number not in self._running:
                    break

    def _told(self, stream: Any) -> Iterator[Event]:  # noqa: ANN401  (Ray's generator)
        try:
            for _ in range(_MOST_AT_ONCE):
                yield ray.get(next(stream), timeout=_PROBE_S)
                if not ray.wait([stream], timeout=0, fetch_local=False)[0]:
                    return
        except StopIteration:
            yield Lost("its task ended and hadn't told how")
        except (RayError, GetTimeoutError) as error:
            yield Lost(_reason(error))

    def cancel(self, number: int) -> None:
        """Kill the task's worker, with which the suite's processes end."""
        stream = self._running.pop(number, None)
        if stream is not None:
            with suppress(RayError, ValueError, TypeError):
                ray.cancel(stream, force=True)

    def close(self) -> None:
        """Cancel what runs and leave the cluster."""
        for number in list(self._running):
            self.cancel(number)
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise OSError or ValueError where nobody listens: Ray itself would try for minutes."""
    found = canonicalize_bootstrap_address(address)
    if found is None:
        raise ValueError("this names none")
    host, _, port = found.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()


def _probed(
    names: Sequence[str], packages: Sequence[str]
) -> dict[str, tuple[str, ...] | str | None]:
    """The packages that each node lacks; why no task ran there; None: it hasn't answered."""
    probe = ray.remote(num_cpus=0, max_retries=0)(node.lacks)
    asked = {
        probe.options(scheduling_strategy=_on(name)).remote(list(packages)): name for name in names
    }
    told: _Told = dict.fromkeys(names)
    if not asked:
        return told
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_PROBE_S)
    for each in ready:
        try:
            told[asked[each]] = ray.get(each)
        except RayError as error:
            told[asked[each]] = _reason(error)
    return told


def _known_nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _on(name: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(name, soft=False)


def _name(described: dict[str, Any]) -> str:
    return f"node {described['NodeManagerHostname']} ({described['NodeID'][:8]})"


def _reason(error: BaseException) -> str:
    """One line of Ray's several: the last one of a traceback, else the first sentence."""
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
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
