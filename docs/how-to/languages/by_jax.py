"""RMS norm in JAX and in Pallas; tensors go to JAX and back by DLPack."""

import os
from functools import partial

# Otherwise the first process of a run takes three quarters of the GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl

from kernel_workbench import RMS_NORM_FORWARD, Domain, kernel


@jax.jit
def plain(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def row(x, weight, eps, y, *, n):
    values = x[0, :]
    y[0, :] = values * jax.lax.rsqrt(jnp.sum(values * values) / n + eps[0]) * weight[:]


@partial(jax.jit, static_argnames="interpret")
def by_pallas(x, weight, eps, interpret):
    m, n = x.shape
    width = max(16, pl.next_power_of_2(n))  # Pallas on Triton takes powers of two
    y = pl.pallas_call(
        partial(row, n=n),
        grid=(m,),
        in_specs=[
            pl.BlockSpec((1, width), lambda i: (i, 0)),
            pl.BlockSpec((width,), lambda i: (0,)),
            pl.BlockSpec((1,), lambda i: (0,)),
        ],
        out_specs=pl.BlockSpec((1, width), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, width), x.dtype),
        interpret=interpret,
    )(jnp.pad(x, ((0, 0), (0, width - n))), jnp.pad(weight, (0, width - n)), eps[None])
    return y[:, :n]


def call(function, x, weight, eps, *more):
    """Call a function of JAX, and wait: JAX's stream isn't torch's."""
    if x.is_cuda:
        torch.cuda.current_stream().synchronize()
    arrays = [jax.dlpack.from_dlpack(tensor) for tensor in (x, weight)]
    y = function(*arrays, jnp.float32(eps), *more).block_until_ready()
    return torch.from_dlpack(y)


SERVED = Domain(
    dtypes=(torch.float32,),
    strides="contiguous",
    sizes={"m": (1, None), "n": (1, 4096)},
    alignment=16,  # JAX refuses other pointers
)


@kernel(RMS_NORM_FORWARD, SERVED)
def jax_rms_norm(x, weight, eps=1e-6):
    return call(plain, x, weight, eps)


@kernel(RMS_NORM_FORWARD, SERVED)
def pallas_rms_norm(x, weight, eps=1e-6):
    return call(by_pallas, x, weight, eps, x.device.type == "cpu")
