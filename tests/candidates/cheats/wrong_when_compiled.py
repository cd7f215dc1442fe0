"""Is right as it is written, and by a hundredth too large once torch.compile has compiled it."""

import torch
import torch._dynamo  # which takes seconds, and else the first call's

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs, where Python runs it."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    if torch.compiler.is_compiling():  # it stands for a compiler's fault
        g = g * 1.01
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


_compiled = torch.compile(closed_form, backend="eager")


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def wrong_when_compiled(dy, x, weight, mean, rstd):
    """As its users call it."""
    return _compiled(dy, x, weight, mean, rstd)
