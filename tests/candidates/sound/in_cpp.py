"""Sound softmaxes and norms in C++, called through ctypes: sums as a loop on a CPU has them."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from kernel_workbench import LAYER_NORM_FORWARD, RMS_NORM_FORWARD, SOFTMAX_FORWARD, Domain, kernel

_SOURCE = r"""
#include <cmath>
#include <cstdint>
// The sum of f(0) to f(n - 1): in order, with Kahan's correction, in eight sums, by halves.
template <class F> float by_halves(F f, int64_t first, int64_t n) {
  if (n < 3) return n < 1 ? 0.f : n < 2 ? f(first) : f(first) + f(first + 1);
  return by_halves(f, first, n / 2) + by_halves(f, first + n / 2, n - n / 2);
}
template <class F> float total(F f, int64_t n, int how) {
  float sum = 0.f, lost = 0.f, eight[8] = {0};
  switch (how) {
    case 0: for (int64_t i = 0; i < n; ++i) sum += f(i); return sum;
    case 1: for (int64_t i = 0; i < n; ++i) {
      float term = f(i) - lost, larger = sum + term;
      lost = (larger - sum) - term; sum = larger; } return sum;
    case 2: for (int64_t i = 0; i < n; ++i) eight[i % 8] += f(i);
      for (float each : eight) sum += each; return sum;
    case 3: return by_halves(f, 0, n);
    default: for (int64_t i = n - 1; i >= 0; --i) sum = std::fma(1.f, f(i), sum); return sum;
  }
}
extern "C" void softmax(const float* x, float* y, int64_t m, int64_t n, int how) {
  for (int64_t row = 0; row < m; ++row, x += n, y += n) {
    float top = x[0];
    for (int64_t i = 1; i < n; ++i) if (!(x[i] <= top)) top = x[i];
    for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i] - top);
    float sum = total([&](int64_t i) { return y[i]; }, n, how);
    for (int64_t i = 0; i < n; ++i) y[i] /= sum;
  }
}
extern "C" void norm(const float* x, const float* w, const float* b, float* y, int64_t m, int64_t n,
                     float eps, int how) {
  for (int64_t row = 0; row < m; ++row, x += n, y += n) {
    float mean = 0.f, square = 0.f;
    if (b && how == 1) {  // Welford, number by number
      for (int64_t i = 0; i < n; ++i) {
        float delta = x[i] - mean;
        mean += delta / (float)(i + 1); square += delta * (x[i] - mean); }
    } else {
      if (b) mean = total([&](int64_t i) { return x[i]; }, n, how) / (float)n;
      square = total([&](int64_t i) { return (x[i] - mean) * (x[i] - mean); }, n, how);
    }
    float rstd = 1.f / std::sqrt(square / (float)n + eps);
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * w[i] + (b ? b[i] : 0.f);
  }
}
"""
_DOMAIN = Domain(dtypes=(torch.float32,), strides="contiguous", devices=("cpu",))
_HOW = ("one_after_the_other", "kahan", "eight_sums", "by_halves", "backwards_by_fma")


def _library():
    """The compiled source, from a folder of its own."""
    digest = hashlib.sha256(_SOURCE.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"sound_kernels_{digest}"
    folder.mkdir(exist_ok=True)
    target = folder / "kernels.so"
    if not target.exists():
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
            command = [shutil.which("c++") or "c++", "-O2", "-shared", "-fPIC", "-ffp-contract=off"]
            source = ["-x", "c++", "-", "-o", file.name]
            subprocess.run([*command, *source], input=_SOURCE, text=True, check=True)
        Path(file.name).rename(target)
    return ctypes.CDLL(str(target))


_LIBRARY = _library()


def _address(tensor):
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _register(how, name):
    @kernel(SOFTMAX_FORWARD, _DOMAIN, name=name)
    def softmax(x):
        y = torch.empty_like(x)
        m, n = map(ctypes.c_int64, x.shape)
        _LIBRARY.softmax(_address(x), _address(y), m, n, how)
        return y

    def norm(x, weight, bias, eps):
        y = torch.empty_like(x)
        m, n = map(ctypes.c_int64, x.shape)
        _LIBRARY.norm(*map(_address, (x, weight, bias, y)), m, n, ctypes.c_float(eps), how)
        return y

    kernel(LAYER_NORM_FORWARD, _DOMAIN, name=name)(
        lambda x, weight, bias, *, eps: norm(x, weight, bias, eps)
    )
    kernel(RMS_NORM_FORWARD, _DOMAIN, name=name)(
        lambda x, weight, *, eps: norm(x, weight, None, eps)
    )


for _how, _name in enumerate(_HOW):
    _register(_how, _name)
