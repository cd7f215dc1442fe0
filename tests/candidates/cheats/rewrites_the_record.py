"""Turns failures in every record that it finds into passes, while the run goes on."""

import os
from pathlib import Path

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


def _records():
    """The records in the folder that the test names, and in no other."""
    folder = os.environ.get("CHEATED_RESULTS")
    return Path(folder).glob("**/*.jsonl") if folder else ()


def _rewrite():
    for record in _records():
        text = record.read_text()
        record.write_text(text.replace('"status":"failed"', '"status":"passed"'))


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def rewrites_the_record(dy, x, weight, mean, rstd):
    """Zeros, and a record of success."""
    _rewrite()
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
