"""Softmax in CUDA C++, built by torch at import: within its output, and past the end of it."""

import torch
from torch import Tensor
from torch.utils.cpp_extension import load_inline

from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

_CUDA = r"""
#include <torch/extension.h>
#include <math_constants.h>

// A thread a row; the last one writes `beyond` elements more than there are.
__global__ void rows(const float* x, float* y, long m, long n, long beyond) {
  long row = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
  if (row >= m) return;
  const float* from = x + row * n;
  float* to = y + row * n;
  float most = -CUDART_INF_F, sum = 0.f;
  for (long j = 0; j < n; ++j) {
    most = isnan(from[j]) || isnan(most) ? CUDART_NAN_F : fmaxf(most, from[j]);
  }
  for (long j = 0; j < n; ++j) sum += expf(from[j] - most);
  for (long j = 0; j < n; ++j) to[j] = expf(from[j] - most) / sum;
  if (row == m - 1) for (long j = 0; j < beyond; ++j) to[n + j] = 0.f;
}

torch::Tensor softmax_rows(torch::Tensor x, int64_t beyond, int64_t stream) {
  auto y = torch::empty_like(x);
  const long m = x.size(0), n = x.size(1);
  auto on = reinterpret_cast<cudaStream_t>(stream);
  const float* from = x.data_ptr<float>();
  if (m) rows<<<(m + 127) / 128, 128, 0, on>>>(from, y.data_ptr<float>(), m, n, beyond);
  return y;
}
"""
_DECLARED = "torch::Tensor softmax_rows(torch::Tensor x, int64_t beyond, int64_t stream);"
_built = load_inline(
    "workbench_softmax_rows",
    cpp_sources=_DECLARED,
    cuda_sources=_CUDA,
    functions=["softmax_rows"],
)
_SERVED = Domain(dtypes=(torch.float32,), strides="contiguous", devices=("cuda",))


def _rows(x: Tensor, beyond: int) -> Tensor:
    made: Tensor = _built.softmax_rows(x, beyond, torch.cuda.current_stream().cuda_stream)
    return made


@kernel(SOFTMAX_FORWARD, _SERVED)
def within(x: Tensor) -> Tensor:
    """The sound one."""
    return _rows(x, 0)


@kernel(SOFTMAX_FORWARD, _SERVED)
def past_the_end(x: Tensor) -> Tensor:
    """One element more than there is."""
    return _rows(x, 1)
