"""Softmax in CUDA C++, built by load_inline as an operator of torch."""

from functools import cache
from pathlib import Path

import torch
from torch.utils.cpp_extension import load_inline

from kernel_workbench import SOFTMAX_FORWARD, Domain, built, kernel

SOURCE = r"""
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <torch/library.h>
#include <ATen/ATen.h>

// Return NaN if either is NaN, which fmaxf doesn't.
__device__ float larger(float a, float b) { return a != a || a > b ? a : b; }

template <typename Fold>
__device__ float over_block(float value, Fold fold) {
  __shared__ float part[256];
  __syncthreads();
  part[threadIdx.x] = value;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (threadIdx.x < step)
      part[threadIdx.x] = fold(part[threadIdx.x], part[threadIdx.x + step]);
    __syncthreads();
  }
  return part[0];
}

__global__ void softmax_rows(const float* x, float* y, int n) {
  const float* row = x + static_cast<long long>(blockIdx.x) * n;
  float* out = y + static_cast<long long>(blockIdx.x) * n;
  float largest = -INFINITY, total = 0.f;
  for (int j = threadIdx.x; j < n; j += 256) largest = larger(row[j], largest);
  largest = over_block(largest, [](float a, float b) { return larger(a, b); });
  for (int j = threadIdx.x; j < n; j += 256) total += expf(row[j] - largest);
  total = over_block(total, [](float a, float b) { return a + b; });
  for (int j = threadIdx.x; j < n; j += 256) out[j] = expf(row[j] - largest) / total;
}

at::Tensor softmax(const at::Tensor& x) {
  auto y = at::empty_like(x);
  softmax_rows<<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

TORCH_LIBRARY(languages, m) { m.def("softmax(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(languages, CUDA, m) { m.impl("softmax", &softmax); }
"""


def operator(folder: Path) -> Path:
    """Compile the source with nvcc, and return the library's path."""
    load_inline(
        "softmax_operator",
        cpp_sources="",
        cuda_sources=SOURCE,
        build_directory=str(folder),
        is_python_module=False,
        no_implicit_headers=True,
    )
    return folder / "softmax_operator.so"


@cache
def function():
    """Load the operator once in each process."""
    torch.ops.load_library(str(built(operator)))
    return torch.ops.languages.softmax


@kernel(
    SOFTMAX_FORWARD,
    Domain(
        dtypes=(torch.float32,),
        strides="contiguous",
        sizes={"m": (1, None), "n": (1, None)},
        devices=("cuda",),
    ),
    build=operator,
)
def cuda_softmax(x):
    return function()(x)
