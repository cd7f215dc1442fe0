"""The peak table's rows agree with one another, and a GPU is found by more than its name."""

from __future__ import annotations

import pytest

from kernel_workbench.profiles.peaks import KIB, LIMITS, PEAKS, Peak, peak_of, peaks_of_sm
from kernel_workbench.suites.compile.cases import GENERATIONS

# Boost clocks as the vendor's data sheets give them, in MHz.
CLOCKS = {
    "Tesla V100-SXM2": 1530,
    "Tesla T4": 1590,
    "NVIDIA A100-SXM4-80GB": 1410,
    "NVIDIA A10": 1695,
    "NVIDIA L40S": 2520,
    "NVIDIA L4": 2040,
    "NVIDIA GeForce RTX 4090": 2520,
    "NVIDIA H200": 1980,
    "NVIDIA H100 PCIe": 1755,
    "NVIDIA GeForce RTX 5090": 2407,
}


def _row(name: str) -> Peak:
    return next(peak for peak in PEAKS if peak.name == name)


@pytest.mark.parametrize("name", CLOCKS)
def test_fp32_peak_is_lanes_times_clock(name: str) -> None:
    """2 flops x lanes x SMs x boost clock: the figure, the SMs and the lanes hold one another."""
    # Data sheets round peaks to two or three digits.
    assert _row(name).clock_mhz == pytest.approx(CLOCKS[name], rel=0.01)


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_peaks_of_one_row_keep_their_order(peak: Peak) -> None:
    """tf32 is half of the halves' rate, which a row with sparsity in it wouldn't be; dense all."""
    assert peak.source
    if peak.tf32_tflops is None:
        assert peak.sm < 80
    else:
        assert peak.half_tflops / peak.tf32_tflops == pytest.approx(2, rel=0.02)
    assert peak.half_tflops >= peak.fp32_tflops
    # A tensor core of Volta to Blackwell does 8 to 32 times what the FMA units beside it do.
    assert peak.half_tflops / peak.fp32_tflops < 33


def test_every_generation_has_a_model_and_limits() -> None:
    """Each generation that kernels are compiled for can be stood for, and its SM is known."""
    for sm in GENERATIONS:
        assert peaks_of_sm(sm)
        assert sm in LIMITS


@pytest.mark.parametrize("sm", LIMITS)
def test_limits_leave_a_block_what_the_driver_doesnt_keep(sm: int) -> None:
    """A block may have an SM's shared memory less what is kept, and 255 registers a thread."""
    limits = LIMITS[sm]
    kept = KIB if sm >= 80 else 0
    assert limits.shared_reserved_bytes == kept
    assert limits.shared_block_bytes == limits.shared_bytes - kept
    assert (limits.registers, limits.registers_a_thread) == (65_536, 255)


def test_a_gpu_is_found_by_name_and_multiprocessors_and_power() -> None:
    """The same name with fewer SMs (MIG), or a lower limit, isn't the whole card."""
    assert peak_of("NVIDIA H200", 132, 700) is _row("NVIDIA H200")
    assert peak_of("NVIDIA H200", 132, 690) is _row("NVIDIA H200")
    assert peak_of("NVIDIA H200", 16, 700) is None
    assert peak_of("NVIDIA H200", 132, 500) is None
    assert peak_of("NVIDIA H300", 132, 700) is None


def test_a_longer_name_finds_its_own_row() -> None:
    """A name may go on after a row's; of rows that fit the one with the longest name is meant."""
    assert peak_of("Tesla V100-SXM2-16GB", 80, 300) is _row("Tesla V100-SXM2")
    assert peak_of("NVIDIA L40S", 142, 350) is _row("NVIDIA L40S")
    assert peak_of("NVIDIA L4", 58, 72) is _row("NVIDIA L4")
    assert peak_of("NVIDIA H100 PCIe", 114, 350) is _row("NVIDIA H100 PCIe")
