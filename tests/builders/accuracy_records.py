"""An invented run, for the report gallery and for tests; no figure was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_workbench.reports.record import (
    AccuracyRow,
    CaseInfo,
    Environment,
    KernelInfo,
    OutputError,
    RecordWriter,
    RunEnd,
    RunHeader,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernel_workbench.reports.record import Rule

Numerics = dict[str, bool | int | float | str | None]

OP = "layer_norm_backward"
KERNELS = ("row_persistent", "two_pass_split", "torch_native")  # the last is a baseline
DTYPES = ("float32", "float16", "bfloat16", "bfloat16_float32weight")
LAYOUTS = (
    *("contiguous", "offset1", "dy_offset3", "weight_offset2", "rowpad1", "dy_rowpad3"),
    *("colstride2", "x_transposed", "expanded_rows", "expanded_all", "rank3", "far"),
)
ATTENTION_OPS = ("attention_forward", "attention_backward")
ATTENTION_KERNELS = ("flash", "flash_wide", "torch_efficient")  # of both ops, by the same names
VARIANTS = tuple(
    f"{dtype}_{aligned}_{tile}_{accumulator}_sm80"
    for dtype in ("f32", "f16", "bf16")
    for aligned in ("aligned", "notaligned")
    for tile, accumulator in (("64x64", "rf"), ("64x128", "rf"), ("32x128", "gmem"))
)
_ON_CHIP = tuple(each for each in VARIANTS if "rf" in each)
_OPTIONS = (
    *((), ("causal",), ("bottom_right", "causal", "window"), ("bias", "bias_over_heads")),
    *(("alibi", "gqa"), ("dropout", "sink", "softcap"), ("unequal_d", "varlen")),
)
_DEFAULTS: Numerics = {
    "accumulation_roundoff": 2.0**-24,
    "gradual_underflow": False,
    "bitwise_repeatable": True,
}


def example_header(planned_rows: int, *, attention: bool = False) -> RunHeader:
    """Return the header of a run without a GPU, with attention's kernels too if asked."""
    numerics: tuple[Numerics, ...] = (
        {},
        {"accumulation_roundoff": 2.0**-11},
        {"gradual_underflow": True},
    )
    return RunHeader(
        suite="accuracy",
        started_at="2026-11-21T04:15:00Z",
        command="nox -s accuracy",
        environment=Environment(
            device="cpu",
            device_name="Example CPU",
            simulated_sm=90,
            hostname="example",
            platform="Linux-6.1-x86_64",
            cpu="Example CPU",
            cpu_count=2,
            python="3.12.0",
            packages={"torch": "2.13.0", "triton": "3.7.1"},
            git_commit="0123456789abcdef",
            git_dirty=False,
        ),
        kernels=tuple(
            KernelInfo(
                op=op,
                name=name,
                origin="baseline" if name.startswith("torch") else "ours",
                priority=0,
                path=f"kernels/{name}.py",
                numerics=_DEFAULTS | declared,
                variants=VARIANTS if name == "flash" else (),
            )
            for op, names in [(OP, KERNELS)]
            + [(each, ATTENTION_KERNELS) for each in ATTENTION_OPS if attention]
            for name, declared in zip(names, numerics, strict=True)
        ),
        default_numerics=_DEFAULTS,
        planned_rows=planned_rows,
        gate_baselines=False,
    )


def example_row(
    kernel: str = KERNELS[0],
    dtype: str = DTYPES[0],
    layout: str = LAYOUTS[0],
    *,
    m: int = 37,
    ratio: float = 0.43,
    rule: Rule | None = None,
    refusal: str | None = None,
) -> AccuracyRow:
    """Return a row that passed, or failed by `rule`, or was refused."""
    sizes = {"m": m, "n": 760}
    parts = [f"{name}{value}" for name, value in sizes.items()] + [dtype, layout]
    output = OutputError(
        output="dx",
        worst_deterministic=ratio,
        worst_probabilistic=None if ratio > 1 else ratio,
        worst_index=(m // 2, 17),
        got=1.2345678,
        expected=1.2340001,
        bound=0.00132,
        rmse=1e-4,
        max_ulp=2.5,
    )
    failure = "dx is further from the truth than its bound in 14 of 28,120 elements"
    return AccuracyRow(
        kernel=kernel,
        case=CaseInfo(
            id="-".join([OP, *parts]),
            op=OP,
            sizes=sizes,
            dtype=dtype,
            layout=layout,
            distribution="normal",
            options=(),
            seed=0,
            tier="ci",
            why="",
        ),
        status="failed" if rule else "refused" if refusal else "passed",
        rule=rule,
        reason=refusal or (failure if rule else None),
        outputs=() if refusal or rule == "raised" else (output,),
        gates=not kernel.startswith("torch"),
        reproduce=f"nox -s accuracy -- --only {'-'.join([OP, kernel, *parts])}",
        duration_s=0.05 + m / 1000,
        call_s=None if refusal else 0.01,
    )


def example_rows(*, failing: bool = True) -> list[AccuracyRow]:
    """Return a row for each kernel, dtype and layout, some refused and, if asked, some failed."""
    rows = []
    for number, (kernel, dtype, layout) in enumerate(
        (kernel, dtype, layout) for kernel in KERNELS for dtype in DTYPES for layout in LAYOUTS
    ):
        if kernel == "row_persistent" and "offset" in layout:
            reason = f"needs 16-byte pointers, got dy offset by {layout[-1]} elements"
            rows.append(example_row(kernel, dtype, layout, refusal=reason))
        elif failing and kernel == "two_pass_split" and "rowpad" in layout:
            rows.append(example_row(kernel, dtype, layout, ratio=17.4, rule="deterministic bound"))
        elif failing and kernel == "two_pass_split" and layout == "expanded_all":
            rows.append(
                example_row(kernel, dtype, layout, ratio=float("nan"), rule="non-finite values")
            )
        else:
            rows.append(example_row(kernel, dtype, layout, ratio=0.1 + number % 50 / 100))
    return rows


def attention_rows() -> list[AccuracyRow]:
    """Return rows of two ops with kernels of the same names, long ids, options and variants.

    flash takes all of its variants but those of `gmem`, and fails one row for the memory it took.
    """
    rows = []
    for op in ATTENTION_OPS:
        for kernel in ATTENTION_KERNELS:
            for number, variant in enumerate(_ON_CHIP * 3):
                options = _OPTIONS[number % len(_OPTIONS)]
                layout = ("contiguous", "q_offset1", "qkv_interleaved", "bhsd")[number % 4]
                refusal = None
                if kernel == "flash_wide" and "sink" in options:
                    refusal = "doesn't serve sink"
                row = example_row(
                    kernel,
                    DTYPES[number // 12],
                    layout,
                    m=number,
                    ratio=0.1 + number / 50,
                    refusal=refusal,
                )
                row = _as_attention(row, op, options)
                if kernel == "flash":
                    memory = {"workspace_bytes": 4 * number, "declared_workspace_bytes": 256}
                    row = row.model_copy(update={"variant": variant, **memory})
                rows.append(row)
    took = {
        "status": "failed",
        "rule": "workspace",
        "reason": "it took 1,048,576 bytes beyond its inputs and outputs, and declares 256 for "
        "this case",
        "workspace_bytes": 2**20,
    }
    return [rows[0].model_copy(update=took), *rows[1:]]


def _as_attention(row: AccuracyRow, op: str, options: tuple[str, ...]) -> AccuracyRow:
    """Return the row with `op`, its seven sizes and its options."""
    sizes = {"b": 2, "h_q": 4, "h_kv": 2, "s_q": 129, "s_kv": 257, "d": 128, "d_v": 96}
    if "window" in options:
        sizes |= {"window_left": 17, "window_right": 0}
    parts = [f"{name}{value}" for name, value in sizes.items()]
    parts += [row.case.dtype, row.case.layout, *options, f"seed{row.case.sizes['m']}"]
    case = row.case.model_copy(
        update={
            "id": "-".join([op, *parts]),
            "op": op,
            "sizes": sizes,
            "options": options,
            "seed": row.case.sizes["m"],
        }
    )
    outputs = tuple(
        each.model_copy(update={"output": "out" if op == ATTENTION_OPS[0] else "dbias"})
        for each in row.outputs
    )
    command = f"nox -s accuracy -- --only {'-'.join([op, row.kernel, *parts])}"
    return row.model_copy(update={"case": case, "outputs": outputs, "reproduce": command})


def write_example(
    path: Path, rows: Sequence[AccuracyRow], *, planned: int | None = None, whole: bool = True
) -> Path:
    """Write `rows` as a record at `path`, with an end line if `whole`."""
    attention = any(row.case.op in ATTENTION_OPS for row in rows)
    header = example_header(len(rows) if planned is None else planned, attention=attention)
    with RecordWriter(path, header) as writer:
        for row in rows:
            writer.write(row)
        if whole:
            failed = any(row.status == "failed" and row.gates for row in rows)
            writer.close(
                RunEnd(
                    finished_at="2026-11-21T04:17:31Z",
                    duration_s=151.2,
                    rows=len(rows),
                    interrupted=False,
                    exit_status=int(failed),
                )
            )
    return path
