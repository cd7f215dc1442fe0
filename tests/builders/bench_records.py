"""An invented run of `nox -s bench`, for tests and for display; no figure was measured."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from kernel_workbench.reports.record import (
    BENCH_PROTOCOL,
    BenchRow,
    CaseInfo,
    CountedLaunch,
    Environment,
    FlushProbe,
    KernelInfo,
    RecordWriter,
    Roof,
    RunEnd,
    RunHeader,
    TimedProcess,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

NORM = "layer_norm_backward"
FORWARD = "attention_forward"
NORM_KERNELS = ("row_persistent_aligned", "torch_native", "inductor", "liger")
FORWARD_KERNELS = ("flash_wide", "sdpa_flash", "sdpa_cudnn", "flex")
_OURS = (NORM_KERNELS[0], FORWARD_KERNELS[0])
PEAK_GB_S, PEAK_TFLOPS = 4800.0, 989.0
ADD_GB_S, MATMUL_TFLOPS = 4390.0, 701.0

# m, n and a time for each of NORM_KERNELS: about those of an H200.
_NORM_US = (
    (16384, 1024, (38.4, 109.9, 47.3, 127.8)),
    (4096, 4096, (36.1, 63.2, 74.6, 62.5)),
    (16384, 4095, (131.0, 252.4, 204.0, 266.1)),
    (8192, 8192, (112.9, 253.6, 243.7, 146.2)),
    (2048, 65536, (260.2, 524.1, 490.8, None)),
)
# s, d, causal and TFLOP/s for each of FORWARD_KERNELS.
_FORWARD_TFLOPS = (
    (1024, 128, False, (431.0, 342.1, 520.3, 400.4)),
    (4096, 128, False, (512.0, 371.0, 601.6, 464.6)),
    (16384, 128, True, (498.3, 318.0, 549.9, 404.4)),
    (4096, 256, True, (None, 285.7, 562.5, 279.2)),
)


def example_roofs() -> tuple[Roof, ...]:
    """Return roofs of an H200 from its datasheet, and measured ones."""
    sheet = "NVIDIA H200 datasheet"
    return (
        Roof(name="memory", value=PEAK_GB_S, unit="GB/s", measured=False, source=sheet),
        Roof(name="half", value=PEAK_TFLOPS, unit="TFLOP/s", measured=False, source=sheet),
        Roof(
            name="copy", value=4250.0, unit="GB/s", measured=True, source="copy of 256 MiB",
            times_us=(126.1, 126.3, 126.4), clock_mhz=1980.0,
        ),
        Roof(
            name="add", value=ADD_GB_S, unit="GB/s", measured=True,
            source="torch.add(x, dy, out=dx), 8192 x 8192 bfloat16",
            times_us=(91.6, 91.7, 91.9), clock_mhz=1980.0,
        ),
        Roof(
            name="matmul bfloat16", value=MATMUL_TFLOPS, unit="TFLOP/s", measured=True,
            source="8192 x 8192 x 8192", times_us=(1561.0, 1568.4, 1570.2), clock_mhz=1440.0,
        ),
    )  # fmt: skip


def example_bench_header(planned_rows: int, *, known_gpu: bool = True) -> RunHeader:
    """Return the header of a run on an H200, or on a GPU without a known datasheet."""
    roofs = example_roofs()
    return RunHeader(
        suite="bench",
        protocol=BENCH_PROTOCOL,
        started_at="2026-11-21T04:15:00Z",
        command="nox -s bench",
        environment=Environment(
            device="cuda",
            device_name="NVIDIA H200" if known_gpu else "Example GPU",
            sm=90,
            multiprocessors=132,
            memory_bytes=150_754_820_096,
            gpu_uuid="GPU-00000000-0000-0000-0000-000000000000",
            driver="580.159.04",
            cuda="13.0",
            hostname="example",
            platform="Linux-6.1-x86_64",
            cpu="Example CPU",
            cpu_count=16,
            python="3.12.3",
            packages={"torch": "2.11.0", "triton": "3.6.0"},
            git_commit="0123456789abcdef",
            git_dirty=False,
            vbios="96.00.AF.00.01",
            power_limit_w=700.0,
            default_power_limit_w=700.0,
            default_sm_clock_mhz=1980,
            max_sm_clock_mhz=1980,
            ecc=True,
            mig=False,
            l2_bytes=50 * 2**20,
            missing={"virtualisation": "not supported: the driver doesn't say"},
        ),
        kernels=tuple(
            KernelInfo(
                op=op,
                name=name,
                origin="ours" if name in _OURS else "baseline",
                priority=0,
                path=f"kernels/{name}.py",
                numerics={},
            )
            for op, names in ((NORM, NORM_KERNELS), (FORWARD, FORWARD_KERNELS))
            for name in names
        ),
        planned_rows=planned_rows,
        gate_baselines=False,
        roofs=roofs if known_gpu else tuple(roof for roof in roofs if roof.measured),
        empty_call_us=1.28,
        flush=FlushProbe(
            bytes=16 * 2**20,
            warm_us=3.9,
            cold_us=6.8,
            evicts=True,
            reason="a read of 16.0 MiB takes 3.9 us right after itself and 6.8 us after the flush",
        ),
    )


def norm_case(m: int, n: int, dtype: str = "bfloat16", layout: str = "contiguous") -> CaseInfo:
    """Return a case of layer-norm backward."""
    return _case(NORM, {"m": m, "n": n}, dtype, layout, ())


def forward_case(s: int, d: int, options: tuple[str, ...] = ()) -> CaseInfo:
    """Return a case of attention forward with 16,384 tokens and 2,048 columns."""
    b, h = 16384 // s, 2048 // d
    sizes = {"b": b, "h_q": h, "h_kv": h, "s_q": s, "s_kv": s, "d": d, "d_v": d}
    return _case(FORWARD, sizes, "bfloat16", "contiguous", options)


def _case(
    op: str, sizes: dict[str, int], dtype: str, layout: str, options: tuple[str, ...]
) -> CaseInfo:
    parts = [f"{name}{value}" for name, value in sizes.items()] + [dtype, layout, *options]
    return CaseInfo(
        id="-".join([op, *parts]), op=op, sizes=sizes, dtype=dtype, layout=layout,
        distribution="normal", options=options, seed=0, tier="full", why="",
    )  # fmt: skip


def bench_row(
    kernel: str,
    case: CaseInfo,
    median_us: float,
    *,
    weight: float | None = None,
    samples: int = 40,
    known_gpu: bool = True,
    seed: int = 0,
) -> BenchRow:
    """Return a timed row, whose figures follow from its median."""
    rng = random.Random(f"{seed}{kernel}{case.id}")
    times = tuple(round(median_us * (1 + rng.gauss(0, 0.004)), 3) for _ in range(samples))
    flops, least, limit = _work(case)
    tflops, gb_s = flops / median_us / 1e6, least / median_us / 1e3
    clock = 1980.0 if limit == "memory" else 1455.0
    achieved, peak, ceiling = (
        (gb_s, PEAK_GB_S, ADD_GB_S) if limit == "memory" else (tflops, PEAK_TFLOPS, MATMUL_TFLOPS)
    )
    first = 0.9 if kernel in _OURS else 7.3 if kernel in {"inductor", "flex"} else 0.04
    return _row(kernel, case, "timed").model_copy(
        update={
            "accuracy": "passed",
            "worst_ratio": 0.41,
            "processes": (
                TimedProcess(
                    times_us=times,
                    clocks_mhz=(clock,) * samples,
                    throttled=2 if limit == "matrix" else 0,
                    stopped="steady" if median_us < 1000 else "noise plateau",
                ),
            ),
            "median_us": median_us,
            "low_us": median_us * 0.9992,
            "high_us": median_us * 1.0011,
            "first_quartile_us": median_us * 0.9975,
            "third_quartile_us": median_us * 1.0028,
            "clock_mhz": clock,
            "median_cycles": median_us * clock,
            "first_quartile_cycles": median_us * clock * 0.9975,
            "third_quartile_cycles": median_us * clock * 1.0028,
            "flops": flops,
            "bytes": least,
            "tflops": tflops,
            "gb_s": gb_s,
            "limit": limit,
            "share_of_peak": achieved / peak if known_gpu else None,
            "share_of_ceiling": achieved / ceiling,
            "share_of_clocked_peak": achieved / peak * 1980 / clock if known_gpu else None,
            "cupti_us": 0.97 * median_us,
            "host_us": median_us + 11.5,
            "enqueue_us": 21.0 if kernel in _OURS else 9.3,
            "first_call_s": first,
            "peak_bytes": int(1.1 * least),
            "workspace_bytes": 1_081_344 if kernel in _OURS else None,
            "launches": 2 if case.op == NORM else 1,
            "weight": weight,
        }
    )


def _work(case: CaseInfo) -> tuple[int, int, str]:
    """Return the flops, the least bytes and the limit of a case."""
    sizes = case.sizes
    if case.op == NORM:
        elements = sizes["m"] * sizes["n"]
        each = 4 if case.dtype == "float32" else 2
        return 11 * elements, 3 * each * elements, "memory"
    rows, keys = sizes["b"] * sizes["h_q"] * sizes["s_q"], sizes["s_kv"]
    flops = 4 * rows * keys * sizes["d"] // (2 if "causal" in case.options else 1)
    return flops, 8 * rows * sizes["d"] + 4 * rows, "matrix"


def _row(kernel: str, case: CaseInfo, status: str, reason: str | None = None) -> BenchRow:
    return BenchRow(
        op=case.op,
        kernel=kernel,
        case=case,
        status=status,  # type: ignore[arg-type]
        reason=reason,
        gates=kernel in _OURS,
        reproduce=f"nox -s bench -- --device cuda --kernel {kernel} --case {case.id}",
        duration_s=1.3,
    )


def counted(*launches: str) -> dict[str, Any]:
    """Return a row's fields about counters of these launches."""
    counters = (
        CountedLaunch(
            launch=each, device_us=7.5, registers=96, occupancy=0.412, most_occupancy=0.5,
            waves=1.25, sm_share=0.32, tensor_share=0.081, dram_share=0.87, l2_share=0.44,
            l2_hits=0.333, stalls={"long scoreboard": 12.5, "wait": 1.3, "barrier": 0.8},
        )
        for each in launches
    )  # fmt: skip
    return {"counters": tuple(counters), "counters_file": "bench-1-001-a.ncu-rep"}


def wrong_row() -> BenchRow:
    """Return a row without a figure, because its outputs are wrong."""
    reason = "dx is further from the truth than its bound in 14 of 28,120 elements; not timed"
    row = _row(_OURS[0], norm_case(37, 760), "wrong", reason)
    return row.model_copy(update={"accuracy": "failed", "worst_ratio": 17.4})


def unfigured_row(kernel: str, case: CaseInfo, status: str, reason: str) -> BenchRow:
    """Return a row that was refused or failed, or whose peer is absent."""
    return _row(kernel, case, status, reason)


def bench_rows(*, failing: bool = True, known_gpu: bool = True) -> list[BenchRow]:
    """Return rows of two ops: timed, refused, absent, and wrong and failed if asked."""
    rows = []
    for number, (m, n, times) in enumerate(_NORM_US):
        case = norm_case(m, n)
        for kernel, us in zip(NORM_KERNELS, times, strict=True):
            if us is None:
                reason = "serves n up to 32,768, got 65,536"
                rows.append(unfigured_row(kernel, case, "refused", reason))
                continue
            weighted = bench_row(kernel, case, us, weight=32.0 * (number + 1), known_gpu=known_gpu)
            rows.append(weighted)
    for s, d, causal, figures in _FORWARD_TFLOPS:
        case = forward_case(s, d, ("causal",) if causal else ())
        for kernel, tflops in zip(FORWARD_KERNELS, figures, strict=True):
            if tflops is None:
                reason = "serves d up to 128, got 256"
                rows.append(unfigured_row(kernel, case, "refused", reason))
                continue
            us = _work(case)[0] / tflops / 1e6
            weight = 48.0 if s == 4096 and d == 128 else None
            rows.append(bench_row(kernel, case, us, weight=weight, known_gpu=known_gpu))
    besides = {"codes": ("shared GPU", "busy host"), "gpu_processes": 2, "host_load": 0.31}
    rows[0] = rows[0].model_copy(update=besides)
    rows[1] = rows[1].model_copy(update=counted("a_kernel"))
    absent = "not installed: liger-kernel (the dependency group `peers`)"
    rows.append(unfigured_row("liger", norm_case(5, 17, "float32", "x_offset1"), "absent", absent))
    if failing:
        rows.append(wrong_row())
        reason = "it was faster than the memory allows: 5,310 GB/s of 4,800; no figure is believed"
        rows.append(unfigured_row("torch_native", norm_case(37, 760), "failed", reason))
    return rows


def many_bench_rows(number: int, *, samples: int = 40) -> list[BenchRow]:
    """Return `number` timed rows, to measure how long a report takes."""
    rng = random.Random(0)
    rows: list[BenchRow] = []
    while len(rows) < number:
        case = norm_case(len(rows) + 1, 1024 + len(rows))
        us = 5 + case.sizes["m"] * case.sizes["n"] * 6 / 3.1e6
        for kernel in NORM_KERNELS[: number - len(rows)]:
            rows += [bench_row(kernel, case, us * rng.uniform(1, 3), samples=samples)]
    return rows


def write_bench(
    path: Path,
    rows: Sequence[BenchRow],
    *,
    header: RunHeader | None = None,
    whole: bool = True,
    problems: Iterable[str] = (),
) -> Path:
    """Write `rows` as a record at `path`, with an end line if `whole`."""
    with RecordWriter(path, header or example_bench_header(len(rows))) as writer:
        for row in rows:
            writer.write(row)
        if whole:
            failed = any(row.status in {"wrong", "failed"} and row.gates for row in rows)
            writer.close(
                RunEnd(
                    finished_at="2026-11-21T04:19:31Z",
                    duration_s=271.2,
                    rows=len(rows),
                    interrupted=False,
                    exit_status=int(failed or bool(tuple(problems))),
                    problems=tuple(problems),
                )
            )
    return path
