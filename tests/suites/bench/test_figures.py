"""Figures: medians, rates, shares, and what is past belief."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Case, Numerics
from kernel_workbench.profiles.peaks import PEAKS
from kernel_workbench.reports.record import Roof
from kernel_workbench.suites.bench.figures import Roofs, SampleStatistics, past_belief, rates

MIB = 2**20
H200 = next(each for each in PEAKS if each.name == "NVIDIA H200")
_ADD = Roof(name="add", value=4_390, unit="GB/s", measured=True, source="a test")
_MATMUL = Roof(name="matmul bfloat16", value=679, unit="TFLOP/s", measured=True, source="a test")
ROOFS = Roofs("cuda", 60 * MIB, H200, (_ADD, _MATMUL))


def _kernel(op: str) -> Kernel:
    return next(each for each in all_kernels() if each.op.name == op and each.name == "torch_eager")


def _layer_norm(m: int, n: int) -> Case:
    return layer_norm_case(m, n, (torch.bfloat16, torch.bfloat16), "full")


def test_median_lies_in_its_interval_and_between_its_quartiles() -> None:
    """A hundred samples, one of them far out, have the same statistics every time."""
    values = [100.0 + (number * 37 % 100) / 100 for number in range(99)] + [900.0]
    spread = SampleStatistics.of(values)
    assert 100.3 < spread.low <= spread.median <= spread.high < 100.7
    assert spread.first_quartile < spread.low
    assert spread.high < spread.third_quartile
    assert SampleStatistics.of(values) == spread
    assert SampleStatistics.of([5.0] * 12) == SampleStatistics(5.0, 5.0, 5.0, 5.0, 5.0)


def test_interval_is_as_wide_as_places_in_memory_make_it() -> None:
    """Ten places, half of them 5 % slower: forty samples of each don't make the median known."""
    values = [100.0 + 5 * (number // 40 % 2) + (number * 37 % 40) / 100 for number in range(400)]
    by_sample, by_place = SampleStatistics.of(values), SampleStatistics.of(values, [40] * 10)
    assert by_place.median == by_sample.median
    assert by_place.low < 101
    assert by_place.high > 104
    alike = [100.0 + (number * 37 % 40) / 100 for number in range(400)]
    assert (
        SampleStatistics.of(alike, [40] * 10).high - SampleStatistics.of(alike, [40] * 10).low < 0.1
    )
    assert SampleStatistics.of([1.0, 2.0, 3.0], [3]) == SampleStatistics.of([1.0, 2.0, 3.0])


def test_attentions_flops_are_those_that_peers_count() -> None:
    """4 b h s s d forward, half of it causal but for the diagonal, 2.5 times that backward."""
    sizes = (4, 16, 16, 1024, 1024, 128, 128)
    whole = 4 * 4 * 16 * 1024 * 1024 * 128
    for op, times in (("attention_forward", 1.0), ("attention_backward", 2.5)):
        kernel = _kernel(op)
        case = attention_case(op, sizes, torch.bfloat16, "full")
        assert kernel.op.flops(case) == times * whole
        causal = dataclasses.replace(case, options=frozenset({"causal"}))
        assert kernel.op.flops(causal) == pytest.approx(times * whole / 2, rel=1e-3)


def test_shares_are_of_the_roof_that_the_case_is_under() -> None:
    """Layer norm is under the memory's, long attention under the tensor cores'."""
    kernel, case = _kernel("layer_norm_backward"), _layer_norm(8192, 8192)
    made = rates(kernel, case, 100.0, 1700.0, ROOFS)
    assert made.limit == "memory"
    assert made.share_of_peak == pytest.approx(made.gb_s / 4800)
    assert made.share_of_ceiling == pytest.approx(made.gb_s / 4390)
    assert made.share_of_clocked_peak is None  # memory doesn't run at the SMs' clock
    forward = _kernel("attention_forward")
    long = attention_case(
        "attention_forward", (4, 16, 16, 4096, 4096, 128, 128), torch.bfloat16, "full"
    )
    made = rates(forward, long, 1000.0, 1500.0, ROOFS)
    assert made.limit == "matrix"
    assert made.share_of_peak == pytest.approx(made.tflops / 989.5)
    assert made.share_of_ceiling == pytest.approx(made.tflops / 679)
    assert made.share_of_clocked_peak is not None
    assert made.share_of_clocked_peak == pytest.approx(
        made.tflops / (989.5 * 1500 / H200.clock_mhz)
    )


def test_unknown_gpu_has_no_share_of_a_datasheet() -> None:
    """Measured rates stand in where something has to."""
    unknown = dataclasses.replace(ROOFS, peak=None)
    made = rates(_kernel("layer_norm_backward"), _layer_norm(8192, 8192), 100.0, 1700.0, unknown)
    assert made.share_of_peak is None
    assert made.share_of_ceiling == pytest.approx(made.gb_s / 4390)


def test_outputs_may_stay_in_the_cache_and_cold_inputs_may_not() -> None:
    """Two of three tensors of 32 MiB are read from memory, and the third may never leave L2."""
    kernel, case = _kernel("layer_norm_backward"), _layer_norm(4096, 4096)
    read_us = 64 * MIB / 4800e9 * 1e6
    assert past_belief(kernel, case, 1.05 * read_us, "cold", ROOFS) is None
    told = past_belief(kernel, case, 0.95 * read_us, "cold", ROOFS)
    assert told is not None
    assert "past the datasheet's 4,800 GB/s" in told


def test_warm_call_may_find_a_cache_full_of_what_it_reads() -> None:
    """96 MiB, of which 60 may be there; and nothing of a small call needs memory."""
    kernel, case = _kernel("layer_norm_backward"), _layer_norm(4096, 4096)
    rest_us = (96 - 60) * MIB / 4800e9 * 1e6
    assert past_belief(kernel, case, 1.1 * rest_us, "warm", ROOFS) is None
    assert past_belief(kernel, case, 0.9 * rest_us, "warm", ROOFS) is not None
    assert past_belief(kernel, _layer_norm(64, 64), 1e-3, "warm", ROOFS) is None


def test_arithmetic_past_the_tensor_cores_is_not_believed() -> None:
    """Halves are limited by their cores, float32 by tf32's, which may be used three times over."""
    forward = _kernel("attention_forward")
    for dtype, tflops in ((torch.bfloat16, 989.5), (torch.float32, 494.7)):
        case = attention_case("attention_forward", (4, 16, 16, 4096, 4096, 128, 128), dtype, "full")
        least_us = forward.op.flops(case) / tflops * 1e-6
        assert past_belief(forward, case, 1.01 * least_us, "cold", ROOFS) is None
        told = past_belief(forward, case, 0.99 * least_us, "cold", ROOFS)
        assert told is not None
        assert "TFLOP/s" in told


def test_kernel_of_tf32_is_beside_the_roof_of_tf32() -> None:
    """A kernel's declaration says which unit it uses."""
    forward = _kernel("attention_forward")
    fast = dataclasses.replace(forward, numerics=Numerics(tf32_operands=True))
    case = attention_case(
        "attention_forward", (4, 16, 16, 4096, 4096, 128, 128), torch.float32, "full"
    )
    plain, tf32 = (rates(each, case, 5000.0, None, ROOFS) for each in (forward, fast))
    assert (plain.limit, tf32.limit) == ("arithmetic", "matrix")
    assert plain.share_of_peak == pytest.approx(plain.tflops / 66.9)
    assert tf32.share_of_peak == pytest.approx(tf32.tflops / 494.7)


def test_part_of_an_op_isnt_credited_with_what_it_leaves_out() -> None:
    """Only its own bytes are known of dx alone; a forward's out takes every flop and every read."""
    kernel, case = _kernel("layer_norm_backward"), _layer_norm(8192, 8192)
    part = dataclasses.replace(kernel, op=kernel.op.part(("dx",)))
    written_us = (2 * 8192 * 8192 - ROOFS.cache_bytes) / H200.memory_gb_s * 1e-3
    assert past_belief(part, case, 1.05 * written_us, "cold", ROOFS) is None
    assert past_belief(kernel, case, 1.05 * written_us, "cold", ROOFS) is not None
    assert past_belief(part, case, 0.95 * written_us, "cold", ROOFS) is not None
    whole = _kernel("attention_forward")
    out = dataclasses.replace(whole, op=whole.op.part(("out",)))
    sizes = (4, 16, 16, 1024, 1024, 128, 128)
    case = attention_case("attention_forward", sizes, torch.bfloat16, "full")
    ours, theirs = (rates(each, case, 1000.0, None, ROOFS) for each in (out, whole))
    assert ours.tflops == theirs.tflops
    assert theirs.bytes - ours.bytes == 4 * 4 * 16 * 1024
