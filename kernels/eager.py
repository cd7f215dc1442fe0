"""Calls that a function may compute at once, without an operator of torch.library.

An operator lets torch.compile, transforms, modes and subclasses of Tensor see a call. It costs more
host time than a small kernel's launch, so a call that none of them sees does without.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

PLAIN_TENSORS = (Tensor, Parameter)  # no subclass that may do something of its own


def is_eager(*tensors: Tensor | None) -> bool:
    """Return True if nothing traces, transforms or intercepts calls on these tensors.

    torch also mends some tensors before it calls an operator: a lazy negation, whose memory has the
    other sign, and a tensor of the device `meta`, which has no memory.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()  # noqa: SLF001  # there is no public name
        or torch._C._len_torch_dispatch_stack()  # noqa: SLF001
    ) and all(tensor is None or _is_plain(tensor) for tensor in tensors)


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN_TENSORS and not (tensor.is_neg() or tensor.is_meta)
