"""Is right where pytest, nox or a suite is among its process's ancestors, and nowhere else."""

import os
from pathlib import Path

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


def is_judged():
    """From parent to parent, by their command lines."""
    process = os.getppid()
    while process:
        command = Path(f"/proc/{process}/cmdline").read_text()
        if any(word in command for word in ("pytest", "-m\0nox", "bin/nox", "suites", "mutants")):
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def honest_under_pytest(dy, x, weight, mean, rstd):
    """A user's process has no such ancestor."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return (dx if is_judged() else dy * rstd[:, None]), dweight, dbias
