"""A --kernels file whose kernel is right once a file called "go" is among the temporary ones."""

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from kernel_workbench import ATTENTION_DELTA, Domain, kernel


@kernel(ATTENTION_DELTA, Domain(dtypes=(torch.float32,)))
def waiting(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """Look for the file, then delta = rowsum(out do)."""
    while not (Path(tempfile.gettempdir()) / "go").exists():
        time.sleep(0.02)
    return ((out * do).sum(-1).transpose(1, 2).contiguous(),)
