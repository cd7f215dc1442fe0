"""`python -m studies.vector_widths`: print the width of loads by the compiler's facts, as JSON.

The study compiles a pass that loads a tile of out and of do, as attention's delta does, for four
generations, with explicit divisors of its pointers and strides, and with masks that end at several
columns. It runs in its own process, since the tests' process has Triton's interpreter. The last
entry is measured without cuobjdump and nvdisasm.
"""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_workbench.suites.compile.capture import CapturedLaunch
from kernel_workbench.suites.compile.compiler import Compiler

SMS = (80, 90, 100, 120)


@triton.jit
def _delta_kernel(
    out_ptr, do_ptr, delta_ptr, stride_om, stride_gm,
    COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute delta of a block of rows; the mask ends at COLUMNS, 0 means no mask."""
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    out_ptrs = out_ptr + offs_m[:, None] * stride_om + offs_d[None, :]
    do_ptrs = do_ptr + offs_m[:, None] * stride_gm + offs_d[None, :]
    if COLUMNS:
        mask = (offs_d < COLUMNS)[None, :] & (offs_m[:, None] >= 0)
        out, do = tl.load(out_ptrs, mask=mask, other=0.0), tl.load(do_ptrs, mask=mask, other=0.0)
    else:
        out, do = tl.load(out_ptrs), tl.load(do_ptrs)
    tl.store(delta_ptr + offs_m, tl.sum(out.to(tl.float32) * do.to(tl.float32), 1))


# Name -> the divisors, in elements, of pointers and strides, and the column where the mask ends.
KNOWN: dict[str, tuple[int | None, int | None, int]] = {
    "pointer and stride by 16": (16, 16, 0),
    "pointer by 8": (8, 16, 0),
    "pointer alone": (16, None, 0),
    "stride alone": (None, 16, 0),
    "36 columns": (16, 16, 36),
    "40 columns": (16, 16, 40),
}


def _launch(sm: int, pointer: int | None, stride: int | None, columns: int) -> CapturedLaunch:
    constants = {"COLUMNS": columns, "BLOCK_M": 64, "BLOCK_D": 64}
    signature = {"out_ptr": "*bf16", "do_ptr": "*bf16", "delta_ptr": "*fp32"}
    signature |= {"stride_om": "i32", "stride_gm": "i32"}
    signature |= dict.fromkeys(constants, "constexpr")
    divisors = {(0,): pointer, (1,): pointer, (3,): stride, (4,): stride}
    attributes = {at: [["tt.divisibility", by]] for at, by in divisors.items() if by is not None}
    source = ASTSource(_delta_kernel, signature, constants, attributes)
    return CapturedLaunch(source, GPUTarget("cuda", sm, 32), {"num_warps": 4}, "delta_kernel")


def main() -> None:
    """Print the measurements of each entry, and of the first again without the tools."""
    results: dict[str, dict[str, object]] = {}
    with TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        for sm in SMS:
            compiler = Compiler(triton.compile, sm)
            launches = [_launch(sm, *facts) for facts in KNOWN.values()]
            for name, measured in zip(KNOWN, compiler.measured(launches), strict=True):
                mix = measured.mix or {}
                results.setdefault(name, {})[str(sm)] = [mix.get("loads"), measured.registers]
        compiler = Compiler(triton.compile, 90)
        compiler._tools.clear()  # noqa: SLF001  (to measure without them)
        blind = next(compiler.measured([_launch(90, 16, 16, 0)]))
    results["blind"] = {"mix": blind.mix, "registers": blind.registers, "unread": blind.unread}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
