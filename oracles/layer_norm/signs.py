"""Changes of signs under which layer norm's gradients change signs, and nothing else.

With x^ = (x - mean) rstd and g = weight dy:

    s on columns of weight and dy    g stays; dweight and dbias get s        not zero-centred
    t on columns of x and dy         dx and dbias get t                      RMS norm
    g on rows of dy and dresidual    dx gets g; dbias, dweight want one g for all rows
    h on rows of x and mean          x^ gets h, dx stays; dweight wants one g h for all rows

Gradients that are added to get the signs of what is added. An axis of stride 0 has one sign.
"""

from __future__ import annotations

import torch

from kernel_workbench.oracles.op import Case, Flips
from kernel_workbench.oracles.signs import Signs, expanded


def flips(case: Case, seed: int) -> Flips:
    """The signs of a case."""
    draw = Signs("signs", seed)
    options, n, batches = case.options, case.size("n"), case.layout.batches
    rows = (case.size("m"),) if batches is None else (batches, case.size("m") // batches)
    one = (1,) * len(rows)
    has_weight, zero_centred = "no_weight" not in options, "zero_centred" in options
    has_bias = has_weight and "no_bias" not in options
    dy, x = expanded(case, "dy"), expanded(case, "x")
    none = torch.zeros(1, dtype=torch.bool)
    # One sign for all columns would undo what a gradient gets from dy's.
    columns = n > 1 and "n" not in dy + x
    weights = draw(n) if columns and has_weight and not zero_centred else none
    inner = draw(n) if columns and "rms_norm" in options else none
    # The sign of dy x^, each row's share of dweight.
    product = draw.perhaps(1) if len(weights) > 1 else draw(1)
    of_dy = draw(*(one if has_bias or dy or (has_weight and x) else rows), 1)
    of_x = of_dy ^ product if has_weight else draw(*(one if x else rows), 1)
    inputs = {
        "dy": (weights, inner, of_dy),
        "x": (inner, of_x),
        "mean": (of_x.squeeze(-1),),
        "weight": (weights,),
        "dresidual": (inner, of_dy),
        "dweight": (weights, product),
        "dbias": (weights, inner, of_dy.reshape(-1)) if has_bias else (),
    }
    outputs = {"dx": (inner, of_dy), "dweight": inputs["dweight"], "dbias": inputs["dbias"]}
    return Flips(inputs, outputs)
