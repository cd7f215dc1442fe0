"""Who else was there while a row was timed: on its GPU, and on the cores of its host.

Ray and Slurm admit what is asked for and keep nothing out, so a time may be of a machine that had
other work. The judge looks right before a row's samples are taken and right after, never between.

- On the GPU: the processes that NVML says compute there, less this run's own. One that came and
  went between the two looks isn't seen.
- On the host: processor time that others took between the looks, as a share of all cores. A row has
  the code for it from a tenth of the cores on.
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
_LEAST_TICKS = 5  # of others: less is the error of two ways to count them, and told as none

_UNNUMBERED = Missing(
    "no data",
    "NVML lists none of this run's own processes, as in a container, so others' can't be told",
)


@dataclass(frozen=True, slots=True)
class Look:
    """What there is at one time. on_gpu: ids of processes; None: a CPU is timed."""

    host: HostTime | None
    own: TreeTime
    on_gpu: tuple[int, ...] | Missing | None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Looks around for the rows of a run. gpu: that is timed, as NVML has it; None: a CPU is."""

    gpu: NvmlGpu | Missing | None = None
    host: Callable[[], HostTime | None] = host_time
    tree: Callable[[int], TreeTime] = tree_time

    @classmethod
    def of(cls, device: torch.device) -> Neighbours:
        """Those of a device of this process."""
        if device.type != "cuda":
            return cls()
        properties = torch.cuda.get_device_properties(device)
        return cls(open_gpu(str(properties.uuid), pci_bus_id(properties)))

    def look(self) -> Look:
        """What there is now."""
        on_gpu = self.gpu.compute_processes() if isinstance(self.gpu, NvmlGpu) else self.gpu
        return Look(self.host(), self.tree(os.getpid()), on_gpu)

    def since(self, before: Look) -> dict[str, Any]:
        """The fields of a row that tell what there was besides, from a look on until now."""
        now = self.look()
        others, load = _others(before, now), _load(before, now)
        codes = (
            *([SHARED_GPU] if isinstance(others, int) and others else []),
            *([BUSY_HOST] if load is not None and load >= MOST_LOAD else []),
        )
        known = not isinstance(others, Missing)
        return {
            "codes": codes,
            "host_load": load,
            "gpu_processes": others if known else None,
            "gpu_processes_reason": None if known else str(others),
        }


def _others(before: Look, now: Look) -> int | Missing | None:
    """Processes on the GPU that aren't this run's; None: there is no GPU."""
    earlier, later = before.on_gpu, now.on_gpu
    if not isinstance(earlier, tuple):
        return earlier
    if not isinstance(later, tuple):
        return later
    listed = {*earlier, *later}
    own = before.own.processes | now.own.processes
    if listed & own:
        return len(listed - own)
    # Ids of another namespace: how many there are of this run isn't known, but that more came is.
    return max(0, len(later) - len(earlier)) or _UNNUMBERED


def _load(before: Look, now: Look) -> float | None:
    """The share of the host's cores that others took; None where it can't be known."""
    if before.host is None or now.host is None or now.host.whole <= before.host.whole:
        return None
    others = now.host.busy - before.host.busy - (now.own.ticks - before.own.ticks)
    whole = now.host.whole - before.host.whole
    return min(1.0, others / whole) if others >= _LEAST_TICKS else 0.0
