"""Peaks of GPU models, and the limits of one SM by compute capability.

Peaks are dense, with fp32 accumulation, at boost clock: a vendor's figures with sparsity are
halved. Two models of one name differ in SMs or in power limit, so name, SMs and power limit select
a model together. `tests/profiles/test_peaks.py` checks the rows against one another:
fp32 = 2 x lanes x SMs x clock.

Limits of an SM come from NVIDIA's CCCL (cuda/__device/arch_traits.h), whose source is the table
"Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide; fp32 lanes are
from its table of arithmetic throughput. Registers are given out to warps in units of 256, and
shared memory to blocks in units of 128 bytes (of 256 before sm 80): the occupancy calculator of
CUDA's toolkit.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One GPU model at its default power limit.

    name             the GPU's name or a prefix of it, for example "NVIDIA H200"
    sm               compute capability, 10 * major + minor
    multiprocessors  SMs
    power_w          default limit of the board
    half_tflops      fp16 on tensor cores, and bf16 from sm 80 on
    tf32_tflops      on tensor cores; None before sm 80
    fp32_tflops      outside of tensor cores
    memory_gb_s      bandwidth of the memory's interface
    l2_mb            in MB as the vendor counts
    source           the vendor's document
    """

    name: str
    sm: int
    multiprocessors: int
    power_w: int
    half_tflops: float
    tf32_tflops: float | None
    fp32_tflops: float
    memory_gb_s: float
    l2_mb: float
    source: str

    @property
    def clock_mhz(self) -> float:
        """The boost clock in MHz that the fp32 peak assumes: an FMA is two flops."""
        lanes = LIMITS[self.sm].fp32_lanes * self.multiprocessors
        return self.fp32_tflops * 1e6 / (2 * lanes)


# Newest last in each generation; the first row of an sm represents that sm.
PEAKS: tuple[Peak, ...] = (
    Peak(
        name="Tesla V100-SXM2", sm=70, multiprocessors=80, power_w=300,
        half_tflops=125.0, tf32_tflops=None, fp32_tflops=15.7, memory_gb_s=900, l2_mb=6,
        source="NVIDIA V100 datasheet, January 2020; Volta architecture whitepaper (L2, SMs)",
    ),
    Peak(
        name="Tesla T4", sm=75, multiprocessors=40, power_w=70,
        half_tflops=65.0, tf32_tflops=None, fp32_tflops=8.1, memory_gb_s=320, l2_mb=4,
        source="NVIDIA T4 datasheet; Turing architecture whitepaper (L2, SMs)",
    ),
    Peak(
        name="NVIDIA A100-SXM4-80GB", sm=80, multiprocessors=108, power_w=400,
        half_tflops=312.0, tf32_tflops=156.0, fp32_tflops=19.5, memory_gb_s=2039, l2_mb=40,
        source="NVIDIA A100 datasheet 1758950-r4; Ampere architecture whitepaper (L2, SMs)",
    ),
    Peak(
        name="NVIDIA A100-SXM4-40GB", sm=80, multiprocessors=108, power_w=400,
        half_tflops=312.0, tf32_tflops=156.0, fp32_tflops=19.5, memory_gb_s=1555, l2_mb=40,
        source="NVIDIA A100 datasheet 1758950-r4; Ampere architecture whitepaper (L2, SMs)",
    ),
    Peak(
        name="NVIDIA A10", sm=86, multiprocessors=72, power_w=150,
        half_tflops=125.0, tf32_tflops=62.5, fp32_tflops=31.2, memory_gb_s=600, l2_mb=6,
        source="NVIDIA A10 datasheet, March 2021; GA102 architecture whitepaper (L2, SMs)",
    ),
    Peak(
        name="NVIDIA L40S", sm=89, multiprocessors=142, power_w=350,
        half_tflops=362.05, tf32_tflops=183.0, fp32_tflops=91.6, memory_gb_s=864, l2_mb=96,
        source="NVIDIA L40S datasheet, 2023; Ada architecture whitepaper (L2, SMs)",
    ),
    Peak(
        name="NVIDIA L4", sm=89, multiprocessors=58, power_w=72,
        half_tflops=121.0, tf32_tflops=60.0, fp32_tflops=30.3, memory_gb_s=300, l2_mb=48,
        source="NVIDIA L4 datasheet, 2023; Ada architecture whitepaper (L2, SMs)",
    ),
    Peak(
        name="NVIDIA GeForce RTX 4090", sm=89, multiprocessors=128, power_w=450,
        half_tflops=165.2, tf32_tflops=82.6, fp32_tflops=82.6, memory_gb_s=1008, l2_mb=72,
        source="NVIDIA Ada GPU architecture whitepaper, appendix A",
    ),
    Peak(
        name="NVIDIA H200", sm=90, multiprocessors=132, power_w=700,
        half_tflops=989.5, tf32_tflops=494.7, fp32_tflops=66.9, memory_gb_s=4800, l2_mb=50,
        source="NVIDIA H200 datasheet, 2024; Hopper architecture whitepaper (L2, SMs, digits)",
    ),
    Peak(
        name="NVIDIA H100 80GB HBM3", sm=90, multiprocessors=132, power_w=700,
        half_tflops=989.5, tf32_tflops=494.7, fp32_tflops=66.9, memory_gb_s=3350, l2_mb=50,
        source="NVIDIA H100 datasheet, 2023; Hopper architecture whitepaper (L2, SMs, digits)",
    ),
    Peak(
        name="NVIDIA H100 PCIe", sm=90, multiprocessors=114, power_w=350,
        half_tflops=756.0, tf32_tflops=378.0, fp32_tflops=51.2, memory_gb_s=2000, l2_mb=50,
        source="NVIDIA H100 PCIe product brief PB-11133-001; Hopper architecture whitepaper",
    ),
    Peak(
        name="NVIDIA H100 NVL", sm=90, multiprocessors=132, power_w=400,
        half_tflops=835.5, tf32_tflops=417.5, fp32_tflops=60.0, memory_gb_s=3900, l2_mb=50,
        source="NVIDIA H100 datasheet, 2024 (H100 NVL); Hopper architecture whitepaper (L2)",
    ),
    Peak(
        name="NVIDIA B200", sm=100, multiprocessors=148, power_w=1000,
        half_tflops=2250.0, tf32_tflops=1125.0, fp32_tflops=75.0, memory_gb_s=7700, l2_mb=126,
        source="NVIDIA Blackwell datasheet, 2025 (HGX B200); SMs and L2 as the driver reports",
    ),
    Peak(
        name="NVIDIA GeForce RTX 5090", sm=120, multiprocessors=170, power_w=575,
        half_tflops=209.5, tf32_tflops=104.8, fp32_tflops=104.8, memory_gb_s=1792, l2_mb=96,
        source="NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SmLimits:
    """The resources of one SM of a compute capability, and the most that one block may use.

    shared_bytes           shared memory of an SM, for all its blocks
    shared_block_bytes     the most that a block may ask for
    shared_reserved_bytes  taken by the driver from each block's share
    shared_unit_bytes      shared memory is allocated in multiples of this size
    warps, blocks          the most that are resident at one time
    fp32_lanes             FMA units
    """

    shared_bytes: int
    shared_block_bytes: int
    shared_reserved_bytes: int
    shared_unit_bytes: int
    warps: int
    blocks: int
    fp32_lanes: int
    registers: int = 65_536
    registers_a_thread: int = 255
    register_unit: int = 256  # warps get registers in multiples of this
    schedulers: int = 4  # each issues one warp instruction a cycle
    special_lanes: int = 16  # exp2, rsqrt and their like


def _limits(
    shared_kib: int, warps: int, blocks: int, lanes: int, *, reserved: int = KIB, unit: int = 128
) -> SmLimits:
    """Return limits; before sm 80 the driver keeps nothing, and the unit is 256 bytes."""
    return SmLimits(
        shared_bytes=shared_kib * KIB,
        shared_block_bytes=shared_kib * KIB - reserved,
        shared_reserved_bytes=reserved,
        shared_unit_bytes=unit,
        warps=warps,
        blocks=blocks,
        fp32_lanes=lanes,
    )


LIMITS: dict[int, SmLimits] = {
    70: _limits(96, warps=64, blocks=32, lanes=64, reserved=0, unit=256),
    75: _limits(64, warps=32, blocks=16, lanes=64, reserved=0, unit=256),
    80: _limits(164, warps=64, blocks=32, lanes=64),
    86: _limits(100, warps=48, blocks=16, lanes=128),
    87: _limits(164, warps=48, blocks=16, lanes=128),
    89: _limits(100, warps=48, blocks=24, lanes=128),
    90: _limits(228, warps=64, blocks=32, lanes=128),
    100: _limits(228, warps=64, blocks=32, lanes=128),
    103: _limits(228, warps=64, blocks=32, lanes=128),
    120: _limits(100, warps=48, blocks=24, lanes=128),
    121: _limits(100, warps=48, blocks=24, lanes=128),
}


def peak_of(name: str, multiprocessors: int, power_w: float) -> Peak | None:
    """Return the row of the GPU that reports this name, number of SMs and power limit in watts.

    The power limit may differ by 5%. None means that no row fits: a card that is capped, or divided
    (MIG), has other peaks than the whole card.
    """
    fitting = [
        peak
        for peak in PEAKS
        if (name == peak.name or name.startswith((f"{peak.name} ", f"{peak.name}-")))
        and peak.multiprocessors == multiprocessors
        and abs(power_w - peak.power_w) <= 0.05 * peak.power_w
    ]
    return max(fitting, key=lambda peak: len(peak.name), default=None)


def peaks_of_sm(sm: int) -> tuple[Peak, ...]:
    """Return the models of a compute capability, its representative first.

    >>> [peak.sm for peak in peaks_of_sm(90)][:1]
    [90]
    """
    return tuple(peak for peak in PEAKS if peak.sm == sm)
