"""Expectations about attention's compiled code, on each generation.

Spills are bytes of registers that a thread stores. Tiles for the H200 were chosen by time, so their
spills are only limited to the measured values (docs/decisions/0029): a few bytes outside of the
loop cost nothing there. Elsewhere a model chose the tiles, and a block must fit. Triton doesn't use
tensor cores on sm 75 and unrolls products over FMA units there, as it does for fp32 everywhere.
"""

from __future__ import annotations

from kernel_workbench.kernels.expectation import Expectation, Fits, Loads, Spills, Stores, Uses

_NONE: frozenset[str] = frozenset()
_HALVES = ("bfloat16", "float16")
# With products, and bound by them.
_BUT_SPLIT = ("forward*", "query_gradients*", "key_gradients*", "bias_gradient")
_SPLIT = ("split",)
_PRODUCTS = (*_BUT_SPLIT, *_SPLIT)
_FEW_ROWS, _MANY_ROWS = (1, 16), (17, 2**31)
_ON_TENSOR_CORES = ("flash", "two_pass", "split_keys", "split_queries", "*_tf32")
_MATRIX = (("HMMA", (80, 89)), ("HGMMA", (90, 90)), ("UTCHMMA", (100, 103)), ("HMMA", (120, 121)))

_D64, _D128, _D256 = (1, 64), (65, 128), (129, 256)
# In float32 heads to 64 stand for wider ones: those of 256 take a tenth of a run's time.
_ALL_ALONE = (("flash_fp32", _D256), ("two_pass_fp32", _D256))

# `flash_two_pass` runs what `two_pass` does, on heads of 192.
# Kernel, heads: bytes spilled on sm 90 by Triton 3.6.0 or 3.7.1 (2026-11-21), the larger.
_SPILLED = (
    ("flash", _D256, 40),
    ("flash_fp32", _D256, 40),
    ("split_queries", _D64, 388),
    ("hopper_ordered", _D64, 8),
    ("hopper_atomic", _D64, 32),
    ("*two_pass", _D64, 48),
    ("*two_pass", _D128, 188),
    ("*two_pass", _D256, 588),
    ("two_pass_fp32", _D64, 580),
    ("two_pass_fp32", _D256, 16_732),
)

_WIDTHS = (
    Expectation(
        says="aligned heads come 16 bytes at a time",
        claim=Loads(16),
        functions=(*_PRODUCTS, "delta"),
        aligned=True,
        options=_NONE,
    ),
    Expectation(
        # A thread of a narrow tile has two vectors of out, and an element of lse.
        says="aligned outputs leave 16 bytes at a time, but for their lse",
        claim=Stores(16, share=0.85),
        kernels=("flash*",),
        functions=("forward",),
        aligned=True,
        options=_NONE,
    ),
    Expectation(
        # A thread of a narrow tile has one or two vectors of out.
        says="aligned shares leave 16 bytes at a time, but for their lse",
        claim=Stores(16, share=0.75),
        functions=_SPLIT,
        aligned=True,
        options=_NONE,
    ),
    Expectation(
        # Triton 3.6 on sm 100: 39 % of the bytes; a stride that isn't known leaves none.
        says="aligned heads come 16 bytes at a time, but for lse and delta of many rows",
        claim=Loads(16, share=0.35),
        functions=("key_gradients*", "query_gradients_wide"),
        aligned=True,
        options=_NONE,
    ),
    Expectation(
        # HGMMA and UTCHMMA of tf32 take v transposed, which is loaded by elements.
        says="aligned heads come 16 bytes at a time, but for v of tf32",
        claim=Loads(16, share=0.5),
        kernels=("*_tf32",),
        functions=("forward",),
        aligned=True,
        options=_NONE,
        sm=(90, 119),
    ),
)

_INSTRUCTIONS = (
    *(
        Expectation(
            says=f"products{which} use {instruction} on sm {sm[0]}",
            claim=Uses(instruction),
            kernels=_ON_TENSOR_CORES,
            functions=functions,
            sizes=sizes,
            sm=sm,
        )
        for which, functions, sizes in (
            ("", _BUT_SPLIT, {}),
            (" of a tile of 64 rows", _SPLIT, {"s_q": _MANY_ROWS}),
        )
        for instruction, sm in _MATRIX
    ),
    Expectation(
        says="products of groups of warps use HGMMA",
        claim=Uses("HGMMA"),
        kernels=("hopper", "hopper_ordered", "hopper_atomic"),
        functions=("hopper_kernel", "gradients_kernel"),
        sm=(90, 90),
    ),
    Expectation(
        # Its cases have a key head for each query head, and stand for those with more query heads.
        says="products of a tile of 16 rows use HMMA",
        claim=Uses("HMMA"),
        kernels=("split_keys",),
        functions=_SPLIT,
        sizes={"s_q": _FEW_ROWS},
        sm=(80, 121),
    ),
)

_REGISTERS = (
    Expectation(
        # As it is now: 852 at most (split_queries on sm 100).
        says="aligned heads to 128 spill less than 1 KiB",
        claim=Spills(1023),
        aligned=True,
        options=_NONE,
        sizes={"d": (1, 128)},
        sm=(80, 121),
    ),
    Expectation(
        says="nothing is spilled on sm 90",
        claim=Spills(),
        aligned=True,
        options=_NONE,
        sm=(90, 90),
    ),
    *(
        Expectation(
            says=f"{kernel} for heads to {heads[1]} spills no more than it did on sm 90",
            claim=Spills(most),
            kernels=(kernel,),
            sizes={"d": heads},
            aligned=True,
            options=_NONE,
            sm=(90, 90),
            stands=(kernel, heads) not in _ALL_ALONE,
        )
        for kernel, heads, most in _SPILLED
    ),
)

_SHARED = (Expectation(says="a block fits", claim=Fits()),)

EXPECTATIONS = (*_WIDTHS, *_INSTRUCTIONS, *_REGISTERS, *_SHARED)
