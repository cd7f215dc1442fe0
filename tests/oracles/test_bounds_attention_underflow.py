"""Attention that flushes subnormals stays within the bound that promises to allow it.

Each input makes another term of the bound necessary: what is flushed is multiplied by something
large before it counts. A correct kernel on a GPU would be called wrong without it; with gradual
underflow declared it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import BACKWARD, DELTA, FORWARD
from kernel_workbench.oracles.op import Inputs, Numerics
from tests.builders.attention_trials import Trial
from tests.builders.emulated_attention import Emulation, Way

TINY = 1.9 * 2.0**-127  # the largest numbers that are flushed are just below 2^-126
LARGE = 2.0**100
FLUSHING = Numerics()
GRADUAL = Numerics(gradual_underflow=True)


@pytest.fixture(autouse=True)
def _flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no mode that flushes subnormals")
    torch.set_flush_denormal(False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)


def _given(keys: int = 3, **changed: float | list[float] | Tensor) -> Inputs:
    """One batch, head, query and column, all zeros, so that P = 1 / keys; lse and out are given.

    changed: other values; a list is a tensor's rows [1, s, 1, 1]
    """
    known: dict[str, float | list[float] | Tensor] = {
        "q": [0.0],
        "k": [0.0] * keys,
        "v": [0.0] * keys,
        "do": [0.0],
        "out": [0.0],
        "lse": torch.full((1, 1, 1), float(torch.tensor(keys).double().log())),
        "scale": 1.0,
    }
    return {
        name: torch.tensor(each).view(1, -1, 1, 1) if isinstance(each, list) else each
        for name, each in (known | changed).items()
    }


_WEIGHT: dict[str, Any] = {"q": [1.0], "k": [0.0, -87.9], "lse": torch.zeros(1, 1, 1)}
_PLAIN = Way()
# do below 2^-126 times an out of 2^100.
_DELTA = _given(do=[TINY], out=[LARGE], k=[1.0] * 3)
# Key: what is flushed; value: outputs in which it counts, inputs and how the kernel computes.
_FLUSHED = {
    "q below 2^-126 times keys of 2^126: scores of 1 that are all 0": (
        "out lse dv",
        _given(q=[TINY], k=[2.0**126, -(2.0**126), 2.0**125], v=[1.0, 2.0, 3.0], do=[1.0]),
        _PLAIN,
    ),
    "a weight below 2^-126 of a value of 2^127; its score is -87.9": (
        "out",
        _given(2, **_WEIGHT, v=[2.0**-30, 2.0**127]),
        _PLAIN,
    ),
    "the same weight, of a gradient of 2^120: it is all of dv there, and of dS": (
        "dv",
        _given(2, **_WEIGHT, v=[0.0, 1.0], do=[2.0**120]),
        _PLAIN,
    ),
    "a mean with one kept value of nine before dropout makes 100 of it; or do": (
        "out dv",
        _given(9, v=[2.0**-122.9] * 9, do=[TINY], dropout_p=0.99, dropout_seed=18),
        _PLAIN,
    ),
    "do below 2^-126 times values of 2^100, in dP": (
        "dq",
        _given(do=[TINY], v=[LARGE, -LARGE, 2 * LARGE], k=[1.0, -1.0, 1.0]),
        _PLAIN,
    ),
    "do below 2^-126 times an out of 2^100, in D, which meets keys that don't cancel": (
        "dq",
        _DELTA,
        _PLAIN,
    ),
    "dS below 2^-126 times keys of 2^100; q is 0, so that scores are": (
        "dq",
        _given(do=[2.0**-63], v=[2.0**-62.5] * 3, k=[LARGE] * 3),
        _PLAIN,
    ),
    "scale dS, of a normal dS: the loss is 2^-126 |k|, not scale 2^-126 |k|": (
        "dq",
        _given(do=[2.0**-63], v=[2.0**-56.5] * 3, k=[LARGE] * 3, scale=2.0**-5),
        Way(folded=True),
    ),
    "a key below 2^-126 times a dS of 2^100": (
        "dq",
        _given(k=[TINY] * 3, do=[LARGE], v=[1.0] * 3),
        _PLAIN,
    ),
    "dq's sum, before it is multiplied by a scale of 1024": (
        "dq",
        _given(do=[1.0], v=[1.0] * 3, k=[2.0**-125.5] * 3, scale=1024.0),
        _PLAIN,
    ),
    "a sink's weight below 2^-126 times a D of 2^100": (
        "dsink",
        _given(sink=torch.full((1,), -86.5), do=[LARGE], out=[1.0]),
        _PLAIN,
    ),
    "dS itself, which is the output": (
        "dbias",
        _given(do=[2.0**-63], v=[2.0**-63] * 3, bias=torch.zeros(1, 1, 1, 3)),
        _PLAIN,
    ),
}


def _trial(op: str, inputs: Inputs) -> Trial:
    keys = inputs["k"]
    assert isinstance(keys, Tensor)
    case = attention_case(op, (1, 1, 1, 1, keys.shape[1], 1, 1), torch.float32, "ci")
    return Trial.given(op, case, inputs)


def _flush(trial: Trial, way: Way) -> dict[str, Tensor]:
    """Return the emulation's outputs with subnormals flushed, also where they are read."""
    torch.set_flush_denormal(True)
    outputs = trial.outputs(way)
    torch.set_flush_denormal(False)
    return outputs


def _assert_needed(trial: Trial, outputs: dict[str, Tensor], name: str) -> None:
    """All outputs are within the wider bound, and this one isn't within gradual underflow's."""
    wide, narrow = trial.bounds(FLUSHING), trial.bounds(GRADUAL)
    for other, (sure, likely) in trial.ratios(outputs, wide).items():
        assert max(sure, likely) <= 1, other
    assert trial.ratios(outputs, narrow)[name][0] > 1
    assert trial.ratios(trial.outputs(Way()), narrow)[name][0] <= 1


@pytest.mark.parametrize(
    ("flushed", "name"),
    [(flushed, name) for flushed, (names, _, _) in _FLUSHED.items() for name in names.split()],
)
def test_flushing_attention_is_within_the_bound(flushed: str, name: str) -> None:
    """The forward or the backward with flushing on, against the oracle with flushing off."""
    _, inputs, way = _FLUSHED[flushed]
    trial = _trial(FORWARD if name in {"out", "lse"} else BACKWARD, inputs)
    _assert_needed(trial, _flush(trial, way), name)


def test_flushing_delta_is_within_the_bound() -> None:
    """do below 2^-126 times an out of 2^100."""
    out, do = _DELTA["out"], _DELTA["do"]
    assert isinstance(out, Tensor) and isinstance(do, Tensor)
    case = attention_case(DELTA, (1, 1, 1, 1, 3, 1, 1), torch.float32, "ci")
    trial = Trial.given(DELTA, case, {"out": out, "do": do})
    emulation = Emulation(_DELTA, Way())
    torch.set_flush_denormal(True)
    outputs = {"delta": emulation.delta(out)}
    torch.set_flush_denormal(False)
    assert trial.ratios(outputs, trial.bounds(FLUSHING))["delta"][0] <= 1
    assert trial.ratios(outputs, trial.bounds(GRADUAL))["delta"][0] > 1
