"""Expectations about layer norm's compiled code, on each generation.

Shares are those of Triton 3.7.1, and on sm 90 the worse of 3.7.1's and 3.6.0's (`compile`,
2026-11-21). Narrow loads are statistics of rows, one number a row.
"""

from __future__ import annotations

from kernel_workbench.kernels.expectation import Expectation, Fits, Loads, Spills, Stores, Unfit

_NONE: frozenset[str] = frozenset()

EXPECTATIONS = (
    Expectation(
        says="aligned rows come 16 bytes at a time, but for their statistics",
        claim=Loads(16, share=0.65),
        kernels=("*_aligned",),
        functions=("rows", "columns", "shares"),
        aligned=True,
        options=_NONE,
    ),
    Expectation(
        says="other rows come by whole vectors too, but for their ends, statistics and weight",
        claim=Loads(16, share=0.5),
        kernels=("row_persistent",),
        functions=("rows",),
        aligned=False,
        options=_NONE,
        sizes={"n": (512, 8192)},
    ),
    Expectation(
        says="sums of aligned rows come 16 bytes at a time, but for their statistics",
        claim=Loads(16, share=0.65),
        functions=("sums",),
        aligned=True,
        options=_NONE,
    ),
    Expectation(
        says="aligned dx leaves 16 bytes at a time",
        claim=Stores(16, share=0.75),
        kernels=("*_aligned",),
        functions=("rows", "columns", "shares"),
        aligned=True,
        options=_NONE,
        sizes={"n": (256, 2**30)},
    ),
    *(
        Expectation(
            says="rows stay in registers, but for a few bytes",
            claim=Spills(most),
            kernels=kernels,
            options=_NONE,
            sm=sm,
        )
        for kernels, sm, most in (
            (("*",), (0, 119), 20),
            (("*_aligned", "row_sharing", "column_owning"), (120, 121), 20),
            (("row_persistent",), (120, 121), 28),  # of rows in two blocks
        )
    ),
    Expectation(says="a block fits", claim=Fits()),
    *(
        Expectation(
            says=f"three stages of the widest rows in fp32 are too large for sm {sm[0]}",
            claim=Unfit(),
            kernels=("row_persistent_aligned",),
            functions=("rows",),
            dtypes=("float32",),
            sizes={"n": (6145, 8192)},
            sm=sm,
        )
        for sm in ((86, 89), (120, 121))
    ),
)
