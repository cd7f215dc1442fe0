"""A predicted time is the largest of its limits, and never above what a measured kernel took."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Case
from kernel_workbench.profiles.peaks import Peak, peaks_of_sm
from kernel_workbench.reports.record import LoopMix, PredictionRow
from kernel_workbench.suites.compile.cases import GENERATIONS
from kernel_workbench.suites.compile.ceiling import BenchCase, bench_cases, predictions
from tests.builders.compiled_records import case as row_case
from tests.builders.compiled_records import mix, row

H200: Peak = peaks_of_sm(90)[0]


def ours(op: str) -> dict[str, Kernel]:
    """Our kernels of an op, by name."""
    return {
        each.name: each for each in all_kernels() if each.op.name == op and each.origin == "ours"
    }


@pytest.fixture(scope="module")
def flash() -> Kernel:
    """Our forward in the halves."""
    return ours("attention_forward")["flash"]


@pytest.fixture(scope="module")
def long(flash: Kernel) -> Case:
    """16,384 keys, heads of 128: as `nox -s bench` times it."""
    (found,) = (
        bench.case
        for bench in bench_cases([flash], (90,))
        if dict(bench.case.sizes)["s_q"] == 16_384
        and bench.case.size("d") == 128
        and not bench.case.options
    )
    return found


def predicted(kernel: Kernel, case: Case, **changes: object) -> PredictionRow:
    """The prediction for an H200 from one compiled kernel of the variant that the case takes."""
    assert kernel.variant is not None
    compiled = row(variant=kernel.variant(case, 90), **changes)
    (found,) = predictions([BenchCase(case, ((H200, kernel),))], [compiled])
    return found


def loop(**changes: object) -> LoopMix:
    """A loop that keeps the matrix units busy, and nothing else."""
    known: dict[str, object] = {
        "instructions": 100, "matrix": 12, "matrix_flops": 524_288, "load_bytes": 4096, "special": 0
    }  # fmt: skip
    return LoopMix(**known | changes)  # type: ignore[arg-type]


def test_products_take_the_flops_over_the_peak(flash: Kernel, long: Case) -> None:
    """Where nothing else limits it, the least time is that of the matrix units."""
    found = predicted(flash, long, mix=mix(busy_loop=loop()))
    flops = OPS[long.op].flops(long)
    assert found.limit == "matrix"
    assert found.predicted_us == pytest.approx(flops / (H200.half_tflops * 1e12) * 1e6)
    assert found.from_code


def test_instructions_issued_limit_a_loop_that_has_too_many(flash: Kernel, long: Case) -> None:
    """Ten times the instructions a flop: the schedulers, four a cycle and SM, are what is full."""
    few = predicted(flash, long, mix=mix(busy_loop=loop()))
    many = predicted(flash, long, mix=mix(busy_loop=loop(instructions=4000)))
    assert many.limit == "issue"
    flops = OPS[long.op].flops(long)
    cycles = H200.multiprocessors * H200.clock_mhz * 1e6
    assert many.predicted_us == pytest.approx(flops / 524_288 * 4000 / (4 * cycles) * 1e6)
    assert few.predicted_us is not None
    assert many.predicted_us is not None
    assert many.predicted_us > few.predicted_us


def test_few_resident_warps_issue_less(flash: Kernel, long: Case) -> None:
    """One warp on an SM keeps one of its four schedulers busy."""
    loops = mix(busy_loop=loop(instructions=4000))
    full = predicted(flash, long, mix=loops).predicted_us
    alone = predicted(flash, long, mix=loops, occupancy_warps=1).predicted_us
    assert full is not None
    assert alone == pytest.approx(4 * full)


def test_exponentials_limit_a_loop_that_has_too_many(flash: Kernel, long: Case) -> None:
    """16 lanes a cycle and SM compute them: 512 of a warp take 1,024 cycles of an SM."""
    found = predicted(flash, long, mix=mix(busy_loop=loop(special=512)))
    assert found.limit == "special functions"


def test_kernel_that_doesnt_fit_has_no_time(flash: Kernel, long: Case) -> None:
    """A block that can't be launched is predicted no speed, and the reason is given."""
    found = predicted(flash, long, blocks_per_sm=0, limited_by="shared memory")
    assert (found.predicted_us, found.limit) == (None, None)
    assert "can't be launched: shared memory" in (found.reason or "")


def test_variant_that_wasnt_compiled_gets_the_plain_roofline(flash: Kernel, long: Case) -> None:
    """Without code the peaks alone count, and the row says so."""
    other = row(variant="another", case=row_case())
    (found,) = predictions([BenchCase(long, ((H200, flash),))], [other])
    assert not found.from_code
    assert found.limit == "matrix"


def test_whole_fp32_operands_dont_count_on_tensor_cores(long: Case) -> None:
    """They run on FMA units: without a matrix instruction in the code the peak is fp32's."""
    whole = ours("attention_forward")["flash_fp32"]
    single = replace(long, dtype=torch.float32, weight_dtype=torch.float32)
    assert whole.variant is not None
    plain = mix(matrix={}, busy_loop=None)
    compiled = row(variant=whole.variant(single, 90), kernel="flash_fp32", mix=plain)
    (found,) = predictions([BenchCase(single, ((H200, whole),))], [compiled])
    assert found.limit == "arithmetic"


@pytest.mark.parametrize(("n", "fits"), [(5120, True), (6144, True), (8192, False)])
def test_rows_are_those_of_the_tile_that_holds_them(n: int, *, fits: bool) -> None:
    """Several tiles hold rows of one class of width, and one of them doesn't fit on an A10."""
    kernel = ours("layer_norm_backward")["row_persistent_aligned"]
    rows = [
        row(
            op=kernel.op.name,
            kernel=kernel.name,
            function="rows",
            variant=None,
            sm=86,
            case=row_case("float32").model_copy(
                update={"op": kernel.op.name, "sizes": {"m": 2, "n": width}}
            ),
            blocks_per_sm=blocks,
        )
        for width, blocks in ((8192, 0), (6144, 1))
    ]
    case = layer_norm_case(16_384, n, (torch.float32, torch.float32))
    (found,) = predictions([BenchCase(case, ((peaks_of_sm(86)[0], kernel),))], rows)
    assert (found.reason is None) == fits


def test_rows_bound_by_memory_take_their_bytes_over_the_bandwidth() -> None:
    """Layer norm's least time is its least traffic over the bandwidth, on every model."""
    kernels = [*ours("layer_norm_backward").values()]
    benches = bench_cases(kernels, GENERATIONS)
    assert len(benches) >= 20
    found = list(predictions(benches, []))
    assert {each.sm for each in found} == set(GENERATIONS)
    for each in found:
        peak = next(one for one in peaks_of_sm(each.sm) if one.name == each.gpu)
        assert each.limit == "memory"
        assert each.predicted_us == pytest.approx(each.bytes / (peak.memory_gb_s * 1e9) * 1e6)


# Device times on an H200 in us, of docs/measured.md: case's sizes -> time.
MEASURED = {
    (16_384, 1024, "bfloat16"): 29.7,
    (8192, 8192, "bfloat16"): 105.5,
    (1_048_576, 64, "bfloat16"): 102.3,
    (128, 65_536, "bfloat16"): 46.1,
    (16_384, 4096, "float32"): 194.1,
}


def test_nothing_measured_is_faster_than_its_prediction() -> None:
    """An H200's times are above the least time, and by no more than is plausible."""
    kernels = [*ours("layer_norm_backward").values()]
    found = {
        (each.case.sizes["m"], each.case.sizes["n"], each.case.dtype): each.predicted_us
        for each in predictions(bench_cases(kernels, (90,)), [])
        if each.gpu == H200.name
    }
    for shape, measured_us in MEASURED.items():
        least_us = found[shape]
        assert least_us is not None
        assert least_us <= measured_us
        assert measured_us <= 5 * least_us
