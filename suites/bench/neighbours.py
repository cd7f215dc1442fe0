"""Detect other work on the GPU and the host while a row was timed.

Ray and Slurm admit requests and isolate nothing, so a time may come from a machine with other work.
The judge looks just before the samples of a row and just after them, never in between.

- On the GPU it counts the processes that NVML lists, without this run's own. A process that came
  and went between the two looks isn't seen.
- On the host it computes the share of all cores' time that other processes took between the looks.
  A row has a code for it from a tenth of the cores on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernel_workbench.profiles.nvml import NvmlGpu, open_gpu
from kernel_workbench.profiles.processor_time import HostTime, TreeTime, host_time, tree_time
from kernel_workbench.profiles.traces import Missing
from kernel_workbench.reports.record import BUSY_HOST, SHARED_GPU
from kernel_workbench.suites.run.descriptions import pci_bus_id

MOST_LOAD = 0.1
_LEAST_TICKS = 5  # less is the error between two ways of counting, and reported as 0

_UNNUMBERED = Missing(
    "no data",
    "NVML lists none of this run's own processes, as in a container, so it can't tell others apart",
)


@dataclass(frozen=True, slots=True)
class Look:
    """The state at one time. on_gpu: process ids; None: a CPU is timed."""

    host: HostTime | None
    own: TreeTime
    on_gpu: tuple[int, ...] | Missing | None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Looks for other work beside the rows of a run. gpu: the timed GPU; None: a CPU is timed."""

    gpu: NvmlGpu | Missing | None = None
    host: Callable[[], HostTime | None] = host_time
    tree: Callable[[int], TreeTime] = tree_time

    @classmethod
    def of(cls, device: torch.device) -> Neighbours:
        """Return the neighbours of a device of this process."""
        if device.type != "cuda":
            return cls()
        properties = torch.cuda.get_device_properties(device)
        return cls(open_gpu(str(properties.uuid), pci_bus_id(properties)))

    def look(self) -> Look:
        """Return the present state."""
        on_gpu = self.gpu.compute_processes() if isinstance(self.gpu, NvmlGpu) else self.gpu
        return Look(self.host(), self.tree(os.getpid()), on_gpu)

    def since(self, before: Look) -> dict[str, Any]:
        """Return the fields of a row about other work between a look and now."""
        now = self.look()
        processes, load = _other_processes(before, now), _load(before, now)
        codes = (
            *([SHARED_GPU] if isinstance(processes, int) and processes else []),
            *([BUSY_HOST] if load is not None and load >= MOST_LOAD else []),
        )
        is_counted = not isinstance(processes, Missing)
        return {
            "codes": codes,
            "host_load": load,
            "gpu_processes": processes if is_counted else None,
            "gpu_processes_reason": None if is_counted else str(processes),
        }


def _other_processes(before: Look, now: Look) -> int | Missing | None:
    """Return the number of processes on the GPU that aren't this run's; None: there is no GPU."""
    earlier, later = before.on_gpu, now.on_gpu
    if not isinstance(earlier, tuple):
        return earlier
    if not isinstance(later, tuple):
        return later
    listed = {*earlier, *later}
    own = before.own.processes | now.own.processes
    if listed & own:
        return len(listed - own)
    # Ids of another namespace: only an increase in their number is certain.
    return max(0, len(later) - len(earlier)) or _UNNUMBERED


def _load(before: Look, now: Look) -> float | None:
    """Return the share of the host's cores that other processes took; None: unknown."""
    if before.host is None or now.host is None or now.host.whole <= before.host.whole:
        return None
    ticks = now.host.busy - before.host.busy - (now.own.ticks - before.own.ticks)
    whole = now.host.whole - before.host.whole
    return min(1.0, ticks / whole) if ticks >= _LEAST_TICKS else 0.0
