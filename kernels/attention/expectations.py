"""What attention's compiled code is expected to be, on each generation.

Allowances are what Triton 3.7.1 makes of it, and on sm 90 the larger of that and of 3.6.0's (`nox
-s compile`, 2026-11-21). Spilled registers are bytes that a thread stores. Tiles were chosen on an
H200 by time: a few bytes outside of the loop cost it nothing, and many are why a tile is a guess
elsewhere. Neither version uses tensor cores on sm 75, where products are unrolled over FMA units;
so is fp32 everywhere.
"""

from __future__ import annotations

from kernels.expectation import Expectation, Fits, Loads, Spills, Stores, Unfit, Uses

_NONE: frozenset[str] = frozenset()
_HALVES = ("bfloat16", "float16")
# With products, and bound by them.
_BUT_SPLIT = ("forward*", "query_gradients*", "key_gradients*", "bias_gradient")
_SPLIT = ("split",)
_PRODUCTS = (*_BUT_SPLIT, *_SPLIT)
_FEW_ROWS, _MANY_ROWS = (1, 16), (17, 2**31)
_ON_TENSOR_CORES = ("flash", "two_pass", "split_keys", "split_queries", "*_tf32")
_MATRIX = (("HMMA", (80, 89)), ("HGMMA", (90, 90)), ("UTCHMMA", (100, 103)), ("HMMA", (120, 121)))

_GENERATIONS = (75, 80, 86, 89, 90, 100, 120)
_D64, _D128, _D256, _D512 = (1, 64), (65, 128), (129, 256), (257, 512)
_BOTH = frozenset({"bias", "dropout"})
# In float32 heads to 64 stand for wider ones: those of 256 take a tenth of a run's time.
_ALL_ALONE = (("flash_fp32", _D256), ("two_pass_fp32", _D256))

# Kernel, function, heads, options, aligned: bytes spilled on sm 75, 80, 86, 89, 90, 100 and 120, by
# Triton 3.6.0 or 3.7.1, whichever spills more.
_SPILLED = (
    ("flash", "forward", _D64, _NONE, True, (884, 28, 28, 28, 0, 0, 0)),
    ("flash", "forward", _D64, _NONE, False, (2184, 632, 488, 488, 76, 96, 252)),
    ("flash", "forward", _D64, _BOTH, True, (1864, 1144, 1216, 1216, 0, 0, 180)),
    ("flash", "forward", _D128, _NONE, True, (16596, 20, 28, 28, 0, 0, 120)),
    ("flash", "forward", _D256, _NONE, True, (17644, 124, 124, 124, 40, 72, 680)),
    ("flash", "forward_wide", _D512, _NONE, True, (412, 0, 0, 0, 0, 0, 0)),
    ("flash_fp32", "forward", _D256, _NONE, True, (24, 24, 24, 24, 40, 0, 0)),
    ("flash_tf32", "forward", _D64, _NONE, True, (0, 0, 0, 0, 0, 128, 0)),
    ("split_keys", "split", _D64, _NONE, True, (900, 0, 0, 0, 0, 0, 0)),
    ("split_keys", "split", _D64, _NONE, False, (1116, 0, 20, 20, 0, 0, 188)),
    ("split_keys", "split", _D256, _NONE, True, (14928, 0, 40, 40, 0, 0, 84)),
    ("split_queries", "key_gradients", _D64, _NONE, True, (0, 56, 44, 44, 388, 852, 464)),
    ("two_pass", "query_gradients", _D64, _NONE, True, (2336, 48, 68, 68, 48, 24, 176)),
    ("two_pass", "key_gradients", _D64, _NONE, True, (1604, 0, 4, 4, 12, 0, 8)),
    ("two_pass", "query_gradients", _D64, _NONE, False, (2796, 236, 152, 152, 1008, 992, 1376)),
    ("two_pass", "key_gradients", _D64, _NONE, False, (1636, 252, 416, 416, 468, 540, 1396)),
    ("two_pass", "query_gradients", _D64, _BOTH, True, (2788, 356, 272, 272, 1656, 604, 2664)),
    ("two_pass", "key_gradients", _D64, _BOTH, True, (1632, 1416, 1364, 1364, 704, 1272, 1700)),
    ("two_pass", "bias_gradient", _D64, _BOTH, True, (8724, 44, 48, 48, 0, 76, 24)),
    ("two_pass", "query_gradients", _D128, _NONE, True, (13572, 0, 0, 0, 0, 0, 116)),
    ("two_pass", "key_gradients", _D128, _NONE, True, (5456, 24, 24, 24, 188, 20, 548)),
    ("two_pass", "query_gradients", _D256, _NONE, True, (15096, 180, 100, 100, 348, 0, 9956)),
    ("two_pass", "key_gradients", _D256, _NONE, True, (9852, 0, 0, 0, 588, 424, 280)),
    ("two_pass", "key_gradients 2", _D256, _NONE, True, (1696, 0, 0, 0, 44, 8, 64)),
    ("two_pass", "query_gradients_wide", _D512, _NONE, True, (564, 0, 0, 0, 0, 0, 0)),
    ("two_pass", "key_gradients_wide", _D512, _NONE, True, (628, 44, 16, 16, 0, 288, 28)),
    ("two_pass_fp32", "query_gradients", _D64, _NONE, True, (588, 588, 568, 568, 580, 708, 712)),
    (
        *("two_pass_fp32", "query_gradients", _D256, _NONE, True),
        (7052, 16248, 6904, 6904, 16732, 5188, 5208),
    ),
    ("two_pass_tf32", "query_gradients", _D64, _NONE, True, (0, 0, 0, 0, 0, 0, 20)),
    ("two_pass_tf32", "key_gradients", _D64, _NONE, True, (0, 0, 0, 0, 0, 0, 40)),
)

# Kernel, function, heads, generations: more shared memory than a block may have.
_TOO_LARGE = (
    ("two_pass", "query_gradients", _D256, (75, 75)),
    ("two_pass", "key_gradients", _D256, (75, 75)),
    ("two_pass", "*_gradients", _D128, (120, 121)),
    ("two_pass", "*_gradients*", _D256, (120, 121)),
    ("flash", "forward", _D256, (120, 121)),
    ("two_pass_fp32", "*_gradients", _D256, (75, 75)),
    ("two_pass_fp32", "key_gradients", _D256, (86, 89)),
    ("two_pass_fp32", "key_gradients", _D256, (120, 121)),
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
        says="aligned outputs leave 16 bytes at a time",
        claim=Stores(16),
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
        # Of cases with a key head to each query head, by which those with more are stood for.
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
        says="nothing is spilled", claim=Spills(), dtypes=("bfloat16", "float32"), options=_NONE
    ),
    *(
        Expectation(
            says=f"{function} of {kernel} for heads to {heads[1]} spills no more than it did",
            claim=Spills(most),
            kernels=(kernel,),
            functions=(function,),
            sizes={"d": heads},
            options=options,
            aligned=aligned,
            sm=(sm, sm),
            stands=(kernel, heads) not in _ALL_ALONE,
        )
        for kernel, function, heads, options, aligned, spilled in _SPILLED
        for sm, most in zip(_GENERATIONS, spilled, strict=True)
        if most
    ),
)

_SHARED = (
    Expectation(says="a block fits", claim=Fits()),
    *(
        Expectation(
            says=f"{function} of {kernel} for heads to {heads[1]} is too large for sm {sm[0]}",
            claim=Unfit(),
            kernels=(kernel,),
            functions=(function,),
            sizes={"d": heads},
            sm=sm,
            stands=(kernel, heads) not in _ALL_ALONE,
        )
        for kernel, function, heads, sm in _TOO_LARGE
    ),
    Expectation(
        says="dv alone of heads to 256 fits sm 75",
        claim=Fits(),
        kernels=("two_pass",),
        functions=("key_gradients 2",),
        sizes={"d": _D256},
        sm=(75, 75),
    ),
)

EXPECTATIONS = (*_WIDTHS, *_INSTRUCTIONS, *_REGISTERS, *_SHARED)
