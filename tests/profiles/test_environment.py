"""The machine as a record describes it: each figure of the GPU, or why there is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from kernel_workbench.profiles import environment
from kernel_workbench.profiles.environment import Gpu, container, gpu, hashed
from kernel_workbench.profiles.traces import Missing
from kernel_workbench.suites.run.descriptions import describe_machine
from tests.builders.fake_nvml import Board, install

UUID = "GPU-11111111-1111-1111-1111-111111111111"
CUDA = torch.device("cuda")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch saw one GPU, of this UUID."""
    properties = SimpleNamespace(
        name="NVIDIA H200",
        uuid=UUID.removeprefix("GPU-"),
        multi_processor_count=132,
        total_memory=149_000_000_000,
        L2_cache_size=62_914_560,
        pci_domain_id=0,
        pci_bus_id=0x3B,
        pci_device_id=0,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_healthy_gpu_is_described_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field has its value, and nothing is missing."""
    install(monkeypatch, Board(UUID))
    told = gpu(UUID)
    assert told == Gpu(
        uuid=UUID,
        driver="580.95.05",
        memory_bytes=150_000_000_000,
        vbios="96.00.A5.00.01",
        pci_bus_id="00000000:3B:00.0",
        power_limit_w=650.0,
        default_power_limit_w=700.0,
        default_sm_clock_mhz=1980,
        max_sm_clock_mhz=1980,
        max_memory_clock_mhz=1980,
        ecc=True,
        persistence=True,
        mig=False,
        virtualisation="none",
        missing={},
    )


@pytest.mark.usefixtures("on_gpu")
def test_field_that_cannot_be_read_is_none_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is refused costs itself alone; the record has why."""
    statuses: dict[int | str, int] = {
        "nvmlDeviceGetVbiosVersion": pynvml.NVML_ERROR_NO_PERMISSION,
        "nvmlDeviceGetEccMode": pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
    install(monkeypatch, Board(UUID, statuses=statuses))
    told = describe_machine(CUDA, 90, strict=None)
    assert (told.vbios, told.ecc) == (None, None)
    assert told.missing.keys() == {"vbios", "ecc"}
    assert told.missing["vbios"].startswith("no permission: ")
    assert told.missing["ecc"].startswith("not supported: ")
    assert (told.power_limit_w, told.persistence) == (650.0, True)


@pytest.mark.usefixtures("on_gpu")
def test_machine_without_nvml_is_described_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields that torch knows are there, the UUID too, and each other field has the reason."""

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    told = describe_machine(CUDA, 90, strict=None)
    assert (told.device_name, told.multiprocessors, told.l2_bytes) == (
        "NVIDIA H200",
        132,
        62_914_560,
    )
    assert told.memory_bytes == 149_000_000_000
    assert told.gpu_uuid == UUID
    assert "gpu_uuid" not in told.missing
    for name in ("driver", "vbios", "pci_bus_id", "power_limit_w", "mig", "virtualisation"):
        assert getattr(told, name) is None
        assert told.missing[name].startswith("no library: ")
    hidden = describe_machine(CUDA, 90, strict=None, hash_uuid=True)
    assert hidden.gpu_uuid == hashed(UUID)


@pytest.mark.usefixtures("on_gpu")
def test_uuid_is_kept_as_a_hash_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the same GPU, and the UUID is nowhere in the record."""
    install(monkeypatch, Board(UUID))
    plain, hidden = (
        describe_machine(CUDA, 90, strict=None, hash_uuid=each) for each in (False, True)
    )
    assert plain.gpu_uuid == UUID
    assert hidden.gpu_uuid == hashed(UUID)
    assert "11111111" not in hidden.model_dump_json()
    assert hashed(UUID) != hashed(UUID.replace("1", "2"))


@pytest.mark.usefixtures("on_gpu")
def test_part_of_a_divided_gpu_keeps_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under MIG the board's memory isn't the instance's."""
    install(monkeypatch, Board(UUID, answers={"nvmlDeviceGetMigMode": [1, 1]}))
    told = describe_machine(CUDA, 90, strict=None)
    assert told.mig is True
    assert told.memory_bytes == 149_000_000_000


def test_gpu_that_nvml_does_not_know_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no exception."""
    install(monkeypatch, Board(UUID))
    told = gpu("GPU-other")
    assert isinstance(told, Missing)
    assert told.code == "gpu not found"


@pytest.mark.parametrize(
    ("files", "variables", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": "engine=podman"}, {"container": "podman"}, "podman"),
        ({"proc/1/cgroup": "0::/docker/4f"}, {}, "docker"),
        ({"proc/1/cgroup": "12:pids:/kubepods/burstable/x"}, {}, "kubernetes"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes, docker"),
        (
            {"proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"},
            {},
            "gvisor",
        ),
        ({"sys/class/dmi/id/sys_vendor": "Firecracker\n"}, {}, "firecracker"),
        ({"proc/version": "Linux version 6.8.0-45-generic"}, {}, None),
        ({}, {"container": "lxc"}, "lxc"),
    ],
)
def test_container_is_told_by_its_marks(
    files: dict[str, str], variables: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    """Each by the marks that it leaves; none where there is no mark."""
    for name, content in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert container(tmp_path, variables) == expected


def test_every_record_says_whether_triton_fuses_and_what_it_ran_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU too."""
    monkeypatch.setattr(environment, "container", lambda: "docker")
    told = describe_machine(torch.device("cpu"), 90, strict=True)
    assert told.fp_fusion in {True, False}
    assert told.container == "docker"
    assert told.missing == {}
