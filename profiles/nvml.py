"""NVML, read by read: a read returns a value or a `Missing` with the reason, and never raises.

A GPU is found by UUID or PCI address, never by index, because NVML ignores CUDA_VISIBLE_DEVICES.
`nvmlDeviceGetFieldValues` succeeds as a whole and leaves each field's own status in `nvmlReturn`;
`valueType` says which member of the union holds the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

from kernel_workbench.profiles.traces import ENERGY, POWER, Missing

_FIELD_IDS = {
    POWER: 186,  # averaged over about 25 ms, where PowerUsage averages over a second
    "memory_temperature_c": 82,
    "sw_power_cap_ns": 74,
    "sync_boost_ns": 76,
    "sw_thermal_ns": 269,
    "hw_thermal_ns": 270,
    "power_brake_ns": 271,
}
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
# The board's draw as a whole: where several users share the board, it belongs to none of them.
_OF_BOARD = frozenset({POWER, "power_average_mw", ENERGY})

_WHY = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: ("no library", "NVML isn't installed here"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: ("no driver", "NVIDIA's driver isn't loaded"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "no driver",
        "NVML and the driver are of two versions; a restart of the host loads the new one",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: ("no permission", "this user may not read it"),
    pynvml.NVML_ERROR_NOT_SUPPORTED: ("not supported", "this GPU doesn't report it"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: ("not supported", "this driver doesn't know it"),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: ("not supported", "this driver doesn't know it"),
    pynvml.NVML_ERROR_GPU_IS_LOST: ("gpu lost", "the GPU fell off the bus"),
    pynvml.NVML_ERROR_RESET_REQUIRED: ("gpu lost", "the GPU has to be reset"),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: ("gpu lost", "the GPU is gone"),
    pynvml.NVML_ERROR_NOT_FOUND: ("gpu not found", "NVML knows no GPU of this UUID"),
    pynvml.NVML_ERROR_NO_DATA: ("no data", "there was no value at the time"),
    pynvml.NVML_ERROR_NOT_READY: ("no data", "there was no value at the time"),
    pynvml.NVML_ERROR_TIMEOUT: ("no data", "the driver didn't answer in time"),
}
_VIRTUALISATION = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE: "none",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "passthrough",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "vGPU",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "host of vGPUs",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "host of vSGA",
}
_MIG = Missing("mig", "the board's power is shared by its MIG instances, so it is no one's own")
_VGPU = Missing("vgpu", "the host doesn't report the board's power to a vGPU")

Reading = int | Missing


class Meter(Protocol):
    """A source of samples: a GPU, or in tests a recorded trace."""

    def read(self, names: Sequence[str]) -> dict[str, Reading]:
        """Read fields; return by name a value, or the reason why there is none."""

    def close(self) -> None:
        """Release the source."""


def why(error: Any) -> Missing:  # noqa: ANN401  (pynvml is untyped)
    """Return the reason that an NVMLError stands for."""
    return why_status(error.value)


def why_status(status: int) -> Missing:
    """Return the reason that an NVML status stands for."""
    if status in _WHY:
        return Missing(*_WHY[status])
    return Missing("error", f"NVML says: {pynvml.NVMLError(status)}")


@dataclass(slots=True)
class NvmlGpu:
    """A GPU that NVML knows. `close` releases the library.

    mig      True if the board is divided; `handle` is then the whole board's
    """

    uuid: str
    handle: Any
    mig: bool = False
    virtualisation: str | None = None

    def read(self, names: Sequence[str]) -> dict[str, Reading]:
        """Read fields; return by name a value, or the reason why there is none."""
        wanted = [name for name in names if name in _FIELD_IDS]
        read = self._field_values(wanted) if wanted else {}
        for name in names:
            if name not in read:
                read[name] = self._called(name)
        return {name: self._own(name, read[name]) for name in names}

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401  (untyped)
        """Call a pynvml function with the handle; return its result, or a Missing."""
        try:
            return getattr(pynvml, function)(self.handle, *arguments)
        except pynvml.NVMLError as error:
            return why(error)
        except AttributeError:
            return Missing("not supported", f"the nvidia-ml-py installed here has no {function}")
        except UnicodeDecodeError:
            return Missing("error", "NVML's text can't be read")

    def compute_processes(self) -> tuple[int, ...] | Missing:
        """Return the host's ids of processes that compute on the GPU; a container may see none."""
        if self.mig:
            return Missing("mig", "the board lists the processes of all its MIG instances")
        users = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return users if isinstance(users, Missing) else tuple(int(user.pid) for user in users)

    def close(self) -> None:
        """Release NVML."""
        _release()

    def _called(self, name: str) -> Reading:
        value = self.ask(*_CALLS[name])
        if name == "reasons" and isinstance(value, Missing) and value.code == "not supported":
            value = self.ask(_OLD_REASONS)
        return value if isinstance(value, Missing) else int(value)

    def _own(self, name: str, value: Reading) -> Reading:
        if name not in _OF_BOARD:
            return value
        if self.mig:
            return _MIG
        hidden = isinstance(value, Missing) and value.code in {"not supported", "no permission"}
        return _VGPU if hidden and self.virtualisation == "vGPU" else value

    def _field_values(self, names: Sequence[str]) -> dict[str, Reading]:
        ids = [_FIELD_IDS[name] for name in names]
        answers = self.ask("nvmlDeviceGetFieldValues", ids)
        if isinstance(answers, Missing):
            return dict.fromkeys(names, answers)
        return {name: _member(answer) for name, answer in zip(names, answers, strict=True)}


def _member(answer: Any) -> Reading:  # noqa: ANN401  (a structure of pynvml's)
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        return why_status(answer.nvmlReturn)
    member = _MEMBERS.get(answer.valueType)
    if member is None:
        return Missing("error", f"NVML gave a value of unknown type {answer.valueType}")
    return int(getattr(answer.value, member))


# Functions are named, so that one which pynvml lacks becomes a reason like any other.
_CALLS: dict[str, tuple[str, *tuple[int, ...]]] = {
    "power_average_mw": ("nvmlDeviceGetPowerUsage",),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
    "temperature_c": ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
    "reasons": ("nvmlDeviceGetCurrentClocksEventReasons",),
    ENERGY: ("nvmlDeviceGetTotalEnergyConsumption",),
}
_OLD_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"  # their name before driver 535


def open_gpu(uuid: str, pci_bus_id: str | None = None) -> NvmlGpu | Missing:
    """Return the GPU of this UUID, with or without its `GPU-`, else the one at this PCI address."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return why(error)
    handle, mig = _find(uuid, pci_bus_id)
    if isinstance(handle, Missing):
        _release()
        return handle
    gpu = NvmlGpu(full_uuid(uuid), handle, mig)
    true_uuid = gpu.ask("nvmlDeviceGetUUID")
    if isinstance(true_uuid, str):
        gpu.uuid = true_uuid
    mode = gpu.ask("nvmlDeviceGetMigMode")
    gpu.mig = mig or (not isinstance(mode, Missing) and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    kind = gpu.ask("nvmlDeviceGetVirtualizationMode")
    gpu.virtualisation = None if isinstance(kind, Missing) else _VIRTUALISATION.get(int(kind))
    return gpu


def full_uuid(uuid: str) -> str:
    """Return the UUID with the `GPU-` that NVML writes and torch leaves out.

    >>> full_uuid("3f2a"), full_uuid("MIG-3f2a")
    ('GPU-3f2a', 'MIG-3f2a')
    """
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def driver() -> str | Missing:
    """Return the driver's version; a GPU must be open."""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return why(error)


def _find(uuid: str, pci_bus_id: str | None) -> tuple[Any, bool]:
    """Return a board's handle or a Missing, and True if the UUID names a part of the board."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    reason = Missing("gpu not found", f"NVML knows no GPU of UUID {uuid}")
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}"), False
    except pynvml.NVMLError as error:
        if error.value not in {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
            reason = why(error)
    try:
        part = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
        return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part), True
    except pynvml.NVMLError:
        pass
    if pci_bus_id is None:
        return reason, False
    try:
        return pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id), False
    except pynvml.NVMLError:
        return reason, False


def _release() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return  # the GPU, or the library, is gone already
