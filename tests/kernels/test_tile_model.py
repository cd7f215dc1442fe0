"""The model of attention's tiles: what it says of an SM, and of what is compiled for one."""

from __future__ import annotations

import math
import os
from itertools import pairwise, product
from pathlib import Path

import pytest

from kernel_workbench.kernels.attention.registration import SM
from kernel_workbench.kernels.attention.tile_model import (
    GENERATIONS,
    Generation,
    KernelTile,
    Pass,
    cycles,
    fits,
    generation_of,
    needs,
    programs_an_sm,
    ranked,
)
from kernel_workbench.kernels.attention.variants import MEASURED, all_variants
from kernel_workbench.profiles.peaks import LIMITS, PEAKS
from kernel_workbench.reports.record import read
from tests.builders.commands import run_python

pytestmark = pytest.mark.long_run

_GENERATIONS = pytest.mark.parametrize(
    "generation", GENERATIONS, ids=lambda each: f"sm{each.sm[0]}"
)


@_GENERATIONS
def test_generation_is_the_least_of_its_members(generation: Generation) -> None:
    """An SM holds and multiplies as much as profiles/peaks.py has from NVIDIA's documents."""
    members = [each for sm, each in LIMITS.items() if generation.sm[0] <= sm <= generation.sm[1]]
    assert generation.shared_kib * 1024 == min(each.shared_bytes for each in members)
    assert generation.shared_bytes == min(each.shared_block_bytes for each in members)
    assert generation.warps == min(each.warps for each in members)
    assert {each.fp32_lanes for each in members} == {generation.lanes}
    cards = [each for each in PEAKS if generation.sm[0] <= each.sm <= generation.sm[1]]
    assert generation.multiprocessors in {each.multiprocessors for each in cards}
    if generation.unit == "fma":
        return
    for card in cards:
        half = card.half_tflops * 1e6 / (2 * card.multiprocessors * card.clock_mhz)
        if "GeForce" not in card.name or generation.sm[0] == 120:  # half the rate of its sm's
            assert 2 ** round(math.log2(half)) == generation.half, card.name


def test_each_sm_is_of_one_generation() -> None:
    """They follow one another, over all that kernels serve."""
    assert (GENERATIONS[0].sm[0], GENERATIONS[-1].sm[1]) == SM
    assert all(one.sm[1] + 1 == other.sm[0] for one, other in pairwise(GENERATIONS))
    assert generation_of(87) is generation_of(86)
    with pytest.raises(LookupError, match="no generation has sm 70"):
        generation_of(70)


@_GENERATIONS
def test_what_is_ranked_fits_and_spills_nothing_that_is_foreseen(generation: Generation) -> None:
    """Every pass, dtype and head is ranked; where no tile fits an sm, a wider head's serves."""
    for dtype, heads in MEASURED.items():
        if generation.unit == "fma" and dtype in {"bf16", "tf32"}:  # which it hasn't
            continue
        for (kind, d), plain in product(heads, (True, False)):
            order = ranked(kind, dtype, d, generation, plain=plain)
            times = [cycles(kind, dtype, d, each, generation, plain=plain) for each in order]
            assert times == sorted(times)
            assert all(time < math.inf for time in times)
            for each in order:
                need = needs(kind, dtype, d, each, generation, plain=plain)
                assert fits(kind, dtype, d, each, generation, plain=plain)
                assert need.registers <= 255
                assert programs_an_sm(need, each, generation) >= 1
            assert order or (kind, dtype, d) == ("dkdv", "f32", 256)


def test_tile_that_cannot_be_had_is_not_ranked() -> None:
    """Shared memory, registers and tensor memory each refuse one."""
    hopper, blackwell = generation_of(90), generation_of(100)
    refused: tuple[tuple[Pass, KernelTile, Generation], ...] = (
        ("fwd", KernelTile(128, 128, 8, 4), hopper),  # 288 KiB
        ("fwd", KernelTile(128, 128, 4, 2), hopper),  # 128 sums and 128 scores a thread
        ("dkdv", KernelTile(128, 128, 8, 1), blackwell),  # 576 columns of 512
    )
    for kind, tile, generation in refused:
        assert cycles(kind, "f16", 128, tile, generation) == math.inf
        assert tile not in ranked(kind, "f16", 128, generation)


def test_measured_tiles_are_what_sm_90_takes() -> None:
    """Data wins over the model there, and nowhere else is there data."""
    kinds: tuple[Pass, ...] = ("fwd", "dq", "dkdv", "dk", "dv", "split16", "split64")
    for kind in kinds:
        for each in all_variants(kind):
            generation = generation_of(each.sm[0])
            measured = MEASURED[each.dtype][kind, each.max_d]
            chosen = ranked(kind, each.dtype, each.max_d, generation, plain=each.is_plain)
            assert each.tile == (measured if each.sm[0] == 90 else chosen[0])


def test_compiled_shared_memory_is_what_the_model_says_or_less(tmp_path: Path) -> None:
    """Forwards compile for one sm with mma and one with tcgen05; plain ones spill under 1 KiB."""
    hidden = {"TRITON_INTERPRET", "TRITON_DEFAULT_FP_FUSION"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    places = ("--results", str(tmp_path), "--cache", str(tmp_path / "cache"), "--jobs", "1")
    asked = ("--kernel", "flash", "--sm", "86", "--sm", "100")
    done = run_python(
        "-m", "kernel_workbench.suites.compile", *asked, *places, variables=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    named = {each.name: each for each in all_variants("fwd")}
    ratios = []
    for row in read(path).compiled:
        variant = named.get(row.variant or "")
        if variant is None or row.shared_bytes is None:
            continue
        need = needs(
            variant.kind, variant.dtype, variant.max_d, variant.tile, generation_of(row.sm),
            plain=variant.is_plain,
        )  # fmt: skip
        assert row.shared_bytes <= need.shared_bytes
        if variant.is_plain and variant.accumulator == "rf":
            assert row.spill_store_bytes is not None and row.spill_store_bytes < 1024
            ratios.append(need.shared_bytes / row.shared_bytes)
    assert len(ratios) >= 6
    assert max(ratios) <= 1.25
    assert sum(ratio == 1 for ratio in ratios) >= len(ratios) // 2
