"""Softmax by CuPy's RawKernel, on torch's memory and torch's stream."""

from functools import cache

import cupy
import torch

from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

SOURCE = r"""
__device__ float larger(float a, float b) { return a != a || a > b ? a : b; }

extern "C" __global__ void softmax_rows(const float* x, float* y, int n) {
  __shared__ float part[256];
  const float* row = x + (long long)blockIdx.x * n;
  float* out = y + (long long)blockIdx.x * n;
  const int t = threadIdx.x;
  float largest = -__int_as_float(0x7f800000), total = 0.f;
  for (int j = t; j < n; j += 256) largest = larger(row[j], largest);
  part[t] = largest;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (t < step) part[t] = larger(part[t], part[t + step]);
    __syncthreads();
  }
  largest = part[0];
  __syncthreads();
  for (int j = t; j < n; j += 256) total += expf(row[j] - largest);
  part[t] = total;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (t < step) part[t] += part[t + step];
    __syncthreads();
  }
  for (int j = t; j < n; j += 256) out[j] = expf(row[j] - largest) / part[0];
}
"""


@cache
def softmax_rows():
    return cupy.RawKernel(SOURCE, "softmax_rows")


@kernel(
    SOFTMAX_FORWARD,
    Domain(
        dtypes=(torch.float32,),
        strides="contiguous",
        sizes={"m": (1, None), "n": (1, None)},
        devices=("cuda",),
    ),
)
def cupy_softmax(x):
    y = torch.empty_like(x)
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        arguments = x.data_ptr(), y.data_ptr(), cupy.int32(x.shape[1])
        softmax_rows()((x.shape[0],), (256,), arguments)
    return y
