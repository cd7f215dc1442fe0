"""Softmax in TileLang: a block a row, one compiled kernel for all sizes of a dtype."""

from functools import cache

import tilelang
import tilelang.language as T
import torch

from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

WIDTH = 2048
LOG2E = 1.4426950408889634


@cache
def compiled(dtype):
    m, n = T.dynamic("m"), T.dynamic("n")

    @T.prim_func
    def rows(X: T.Tensor((m, n), dtype), Y: T.Tensor((m, n), dtype)):
        with T.Kernel(m, threads=128) as row:
            values = T.alloc_fragment((1, WIDTH), "float32")
            largest = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            for i, j in T.Parallel(1, WIDTH):
                values[i, j] = T.if_then_else(
                    j < n, T.cast(X[row, j], "float32"), -T.infinity("float32")
                )
            T.reduce_max(values, largest, dim=1, clear=True)
            for i, j in T.Parallel(1, WIDTH):
                values[i, j] = T.exp2((values[i, j] - largest[i]) * LOG2E)
            T.reduce_sum(values, total, dim=1)
            for i, j in T.Parallel(1, WIDTH):
                if j < n:
                    Y[row, j] = T.cast(values[i, j] / total[i], dtype)

    return tilelang.compile(rows, out_idx=[1], target="cuda")


@kernel(
    SOFTMAX_FORWARD,
    Domain(
        dtypes=(torch.float32, torch.bfloat16),
        strides="contiguous",
        sizes={"m": (1, None), "n": (1, WIDTH)},
        devices=("cuda",),
    ),
)
def tilelang_softmax(x):
    return compiled(str(x.dtype).removeprefix("torch."))(x)
