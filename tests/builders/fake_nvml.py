"""An NVML library in Python, whose boards answer, refuse or fail field by field on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

_TYPES = {
    "dVal": pynvml.NVML_VALUE_TYPE_DOUBLE,
    "uiVal": pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
    "ullVal": pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    "siVal": pynvml.NVML_VALUE_TYPE_SIGNED_INT,
}


@dataclass(slots=True)
class Board:
    """A GPU. fields: the union's member and the value by id; statuses: by id or function.

    A status other than success is an error; a function without a status answers.
    """

    uuid: str
    pci: str = "00000000:3B:00.0"
    fields: dict[int, tuple[str, float]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    statuses: dict[int | str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()  # UUIDs of its MIG instances
    asked: list[int | str] = field(default_factory=list)


_ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_000_000_000),
    "nvmlDeviceGetVbiosVersion": "96.00.A5.00.01",
    "nvmlDeviceGetEnforcedPowerLimit": 650_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetDefaultApplicationsClock": 1980,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetVirtualizationMode": pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE,
    "nvmlDeviceGetPowerUsage": 101_000,
    "nvmlDeviceGetClockInfo": 1965,
    "nvmlDeviceGetTemperature": 41,
    "nvmlDeviceGetCurrentClocksEventReasons": 4,
    "nvmlDeviceGetTotalEnergyConsumption": 987_654_321,
    "nvmlDeviceGetComputeRunningProcesses": (),
}


_Handle = tuple[Board, bool]  # True for a part of the board


@dataclass(slots=True)
class _Library:
    boards: tuple[Board, ...]

    def by_uuid(self, uuid: str) -> _Handle:
        for board in self.boards:
            if uuid == board.uuid or uuid in board.parts:
                return board, uuid in board.parts
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def by_pci(self, address: str) -> _Handle:
        for board in self.boards:
            if board.pci == address:
                return board, False
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def by_index(self, _: int) -> None:
        pytest.fail("NVML's indices take no notice of CUDA_VISIBLE_DEVICES")

    def field_values(self, handle: _Handle, ids: list[int]) -> list[Any]:
        board = handle[0]
        board.asked += ids
        if "nvmlDeviceGetFieldValues" in board.statuses:
            raise pynvml.NVMLError(board.statuses["nvmlDeviceGetFieldValues"])
        return [_field_value(board, each) for each in ids]


def _field_value(board: Board, number: int) -> Any:  # noqa: ANN401  (a structure of pynvml's)
    made = pynvml.c_nvmlFieldValue_t()
    made.fieldId = number
    made.nvmlReturn = board.statuses.get(number, pynvml.NVML_SUCCESS)
    if number in board.fields:
        member, value = board.fields[number]
        made.valueType = _TYPES[member]
        setattr(made.value, member, value)
    elif made.nvmlReturn == pynvml.NVML_SUCCESS:
        made.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
    return made


def _answered(name: str, handle: _Handle, *_: int) -> Any:  # noqa: ANN401  (whatever NVML answers)
    board = handle[0]
    board.asked.append(name)
    if name in board.statuses:
        raise pynvml.NVMLError(board.statuses[name])
    return board.answers.get(name, _ANSWERS[name])


def install(monkeypatch: pytest.MonkeyPatch, *boards: Board) -> None:
    """Replace pynvml's boards by these; a question by index fails."""
    library = _Library(boards)
    replaced: dict[str, Callable[..., Any]] = {name: partial(_answered, name) for name in _ANSWERS}
    replaced |= {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetHandleByUUID": library.by_uuid,
        "nvmlDeviceGetHandleByPciBusId": library.by_pci,
        "nvmlDeviceGetHandleByIndex": library.by_index,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda handle: (handle[0], False),
        "nvmlDeviceGetFieldValues": library.field_values,
        "nvmlDeviceGetUUID": lambda handle: handle[0].uuid,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=handle[0].pci),
    }
    for name, function in replaced.items():
        monkeypatch.setattr(pynvml, name, function)
