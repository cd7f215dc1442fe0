"""Leaves a process behind, detached, that rewrites the record when the run is over."""

import os
import time
from pathlib import Path

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

_DELAY_S = 3


def _records():
    """The records in the folder that the test names, and in no other."""
    folder = os.environ.get("CHEATED_RESULTS")
    return Path(folder).glob("**/*.jsonl") if folder else ()


def _rewrite():
    for record in _records():
        text = record.read_text()
        record.write_text(text.replace('"status":"failed"', '"status":"passed"'))


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def rewrites_from_outside(dy, x, weight, mean, rstd):
    """Zeros, and a record of success some seconds later."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            time.sleep(_DELAY_S)
            _rewrite()
        os._exit(0)
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
