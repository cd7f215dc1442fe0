"""RMS norm in CUDA C++, compiled by NVRTC through cuda.core."""

import ctypes
from functools import cache

import torch
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

from kernel_workbench import RMS_NORM_FORWARD, Domain, kernel

SOURCE = r"""
extern "C" __global__ void rms_rows(
    const float* x, const float* weight, float* y, int n, float eps) {
  __shared__ float part[256];
  const float* row = x + (long long)blockIdx.x * n;
  float* out = y + (long long)blockIdx.x * n;
  float squares = 0.f;
  for (int j = threadIdx.x; j < n; j += 256) squares += row[j] * row[j];
  part[threadIdx.x] = squares;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  const float rstd = 1.f / sqrtf(part[0] / n + eps);
  for (int j = threadIdx.x; j < n; j += 256) out[j] = row[j] * rstd * weight[j];
}
"""


class TorchStream:
    """The current stream of torch, as cuda.core takes another library's stream."""

    def __cuda_stream__(self):
        return 0, torch.cuda.current_stream().cuda_stream


@cache
def compiled(index):
    """Compile the kernel once for each GPU of a process."""
    device = Device(index)
    device.set_current()
    major, minor = torch.cuda.get_device_capability(index)
    options = ProgramOptions(std="c++17", arch=f"sm_{major}{minor}")
    program = Program(SOURCE, code_type="c++", options=options)
    return device, program.compile("cubin", name_expressions=("rms_rows",)).get_kernel("rms_rows")


@kernel(
    RMS_NORM_FORWARD,
    Domain(
        dtypes=(torch.float32,),
        strides="contiguous",
        sizes={"m": (1, None), "n": (1, None)},
        devices=("cuda",),
    ),
)
def nvrtc_rms_norm(x, weight, eps=1e-6):
    device, rms_rows = compiled(x.device.index)
    y = torch.empty_like(x)
    pointers = x.data_ptr(), weight.data_ptr(), y.data_ptr()
    numbers = ctypes.c_int(x.shape[1]), ctypes.c_float(eps)
    stream = device.create_stream(TorchStream())
    launch(stream, LaunchConfig(grid=x.shape[0], block=256), rms_rows, *pointers, *numbers)
    return y
