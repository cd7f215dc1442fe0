"""NVML read by read: each value, or the reason why there is none, and of the right GPU."""

from __future__ import annotations

import pynvml
import pytest

from kernel_workbench.profiles.nvml import NvmlGpu, open_gpu
from kernel_workbench.profiles.traces import FIELDS, Missing
from tests.builders.fake_nvml import Board, install

UUID = "GPU-11111111-1111-1111-1111-111111111111"
OTHER = "GPU-22222222-2222-2222-2222-222222222222"
H200_FIELDS = {
    186: ("uiVal", 113_500),
    82: ("uiVal", 47),
    74: ("ullVal", 2**40 + 5),
    76: ("ullVal", 0),
    269: ("ullVal", 7),
    270: ("ullVal", 0),
    271: ("ullVal", 0),
}


def _open(board: Board, monkeypatch: pytest.MonkeyPatch) -> NvmlGpu:
    install(monkeypatch, board)
    gpu = open_gpu(board.uuid)
    assert isinstance(gpu, NvmlGpu)
    return gpu


def test_every_field_of_a_healthy_gpu_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The union's member is the one that the value's type names: a counter keeps its high bits."""
    gpu = _open(Board(UUID, fields=dict(H200_FIELDS)), monkeypatch)
    read = gpu.read(FIELDS)
    assert tuple(read) == FIELDS
    assert read["power_instant_mw"] == 113_500
    assert read["sw_power_cap_ns"] == 2**40 + 5
    assert read["energy_mj"] == 987_654_321
    assert not [name for name, value in read.items() if isinstance(value, Missing)]


@pytest.mark.parametrize(
    ("member", "number"), [("dVal", 250.0), ("siVal", -3), ("uiVal", 2**31), ("ullVal", 2**40)]
)
def test_field_is_read_by_the_type_that_it_comes_with(
    member: str, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver may give a field another type."""
    gpu = _open(Board(UUID, fields=H200_FIELDS | {186: (member, number)}), monkeypatch)
    assert gpu.read(("power_instant_mw",))["power_instant_mw"] == number


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "not supported"),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, "not supported"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "gpu lost"),
        (pynvml.NVML_ERROR_NO_DATA, "no data"),
        (pynvml.NVML_ERROR_UNKNOWN, "error"),
    ],
)
def test_field_that_fails_has_a_reason_and_its_neighbours_have_values(
    status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call succeeds as a whole: a failed field's zero must not pass for a value."""
    gpu = _open(Board(UUID, fields=dict(H200_FIELDS), statuses={186: status}), monkeypatch)
    read = gpu.read(FIELDS)
    failed = read["power_instant_mw"]
    assert isinstance(failed, Missing)
    assert failed.code == code
    assert failed.why
    assert read["memory_temperature_c"] == 47
    assert read["sw_power_cap_ns"] == 2**40 + 5


def test_call_that_fails_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Energy of a GPU before Volta, and fields of a driver that knows none."""
    statuses: dict[int | str, int] = {
        "nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    }
    read = _open(Board(UUID, statuses=statuses), monkeypatch).read(FIELDS)
    missing = {name: each.code for name, each in read.items() if isinstance(each, Missing)}
    assert set(missing.values()) == {"not supported"}
    assert {"energy_mj", "power_instant_mw", "sync_boost_ns"} <= set(missing)
    assert read["power_average_mw"] == 101_000


def test_reasons_are_read_of_an_old_driver_by_their_old_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before driver 535 they were called throttle reasons."""
    missing: dict[int | str, int] = {
        "nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    }
    gpu = _open(Board(UUID, statuses=missing), monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda _: 0x20)
    assert gpu.read(("reasons",)) == {"reasons": 0x20}


def test_gpu_is_found_by_uuid_whatever_cuda_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA_VISIBLE_DEVICES=1 torch's device 0 is NVML's second: no index is ever asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    first = Board(UUID, answers={"nvmlDeviceGetPowerUsage": 1})
    second = Board(OTHER, pci="00000000:5D:00.0", answers={"nvmlDeviceGetPowerUsage": 2})
    install(monkeypatch, first, second)
    gpu = open_gpu(OTHER.removeprefix("GPU-"))  # as torch spells it
    assert isinstance(gpu, NvmlGpu)
    assert gpu.uuid == OTHER
    assert gpu.read(("power_average_mw",)) == {"power_average_mw": 2}
    assert first.asked == []


def test_gpu_of_unknown_uuid_is_found_by_pci_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a container gives a GPU another UUID; without an address it isn't found."""
    install(monkeypatch, Board(UUID))
    gpu = open_gpu(OTHER, "00000000:3B:00.0")
    assert isinstance(gpu, NvmlGpu)
    assert gpu.uuid == UUID
    missing = open_gpu(OTHER)
    assert isinstance(missing, Missing)
    assert missing.code == "gpu not found"
    assert OTHER in missing.why


@pytest.mark.parametrize("uuid", [UUID, "MIG-33333333-3333-3333-3333-333333333333"])
def test_power_of_a_divided_board_is_no_ones(uuid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under MIG power and energy are the whole board's: they have a reason, clocks have values."""
    part = "MIG-33333333-3333-3333-3333-333333333333"
    answers = {"nvmlDeviceGetMigMode": [1, 1]}
    install(monkeypatch, Board(UUID, fields=dict(H200_FIELDS), answers=answers, parts=(part,)))
    gpu = open_gpu(uuid)
    assert isinstance(gpu, NvmlGpu)
    read = gpu.read(FIELDS)
    missing = {name: each.code for name, each in read.items() if isinstance(each, Missing)}
    assert missing == dict.fromkeys(("power_instant_mw", "power_average_mw", "energy_mj"), "mig")


def test_power_that_a_host_hides_from_a_vgpu_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reason is the vGPU, and not the GPU's model."""
    answers = {"nvmlDeviceGetVirtualizationMode": pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU}
    statuses: dict[int | str, int] = {
        "nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NOT_SUPPORTED
    }
    gpu = _open(Board(UUID, answers=answers, statuses=statuses), monkeypatch)
    energy = gpu.read(("energy_mj",))["energy_mj"]
    assert isinstance(energy, Missing)
    assert energy.code == "vgpu"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no driver"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "no driver"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
    ],
)
def test_library_that_cannot_be_had_is_a_reason(
    status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing raises where NVML isn't there."""

    def refuse() -> None:
        raise pynvml.NVMLError(status)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    missing = open_gpu(UUID)
    assert isinstance(missing, Missing)
    assert missing.code == code
