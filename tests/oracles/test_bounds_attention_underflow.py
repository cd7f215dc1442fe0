"""Attention that flushes subnormals stays within the bound that promises to allow it.

Each input makes another term of the bound necessary: what is flushed is multiplied by something
large before it counts. A correct kernel on a GPU would be called wrong without it; with gradual
underflow declared it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def _base(*, width: int = 1, keys: int = 3) -> Inputs:
    """One batch, head and query, some keys, all scores 0: P = 1 / keys; lse and out are given."""
    one = torch.zeros(1, 1, 1, width)
    many = torch.zeros(1, keys, 1, width)
    return {
        "q": one,
        "k": many,
        "v": many.clone(),
        "do": one.clone(),
        "out": one.clone(),
        "lse": torch.full((1, 1, 1), float(torch.tensor(keys).double().log())),
        "scale": 1.0,
    }


def _flushed_query() -> Inputs:
    """q below 2^-126 times keys of 2^126: scores of 1 that are all 0."""
    made = _base()
    made["q"] = torch.full((1, 1, 1, 1), TINY)
    made["k"] = (2.0**126 * torch.tensor([1.0, -1.0, 0.5])).view(1, 3, 1, 1)
    made["v"] = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    made["do"] = torch.ones(1, 1, 1, 1)
    return made


def _flushed_weight() -> Inputs:
    """A weight below 2^-126 of a value of 2^120; its score is -87.9."""
    made = _base(keys=2)
    made["q"] = torch.ones(1, 1, 1, 1)
    made["k"] = torch.tensor([0.0, -87.9]).view(1, 2, 1, 1)
    made["v"] = torch.tensor([2.0**-30, 2.0**127]).view(1, 2, 1, 1)
    made["lse"] = torch.zeros(1, 1, 1)
    return made


def _flushed_weight_times_do() -> Inputs:
    """The same weight, of a gradient of 2^120: it is all of dv there, and of dS."""
    made = _flushed_weight()
    made["v"] = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)
    made["do"] = torch.full((1, 1, 1, 1), 2.0**120)
    return made


def _flushed_product() -> Inputs:
    """A mean with one kept value of nine is flushed before dropout makes 100 of it; or do is."""
    made = _base(keys=9)
    made["v"] = torch.full((1, 9, 1, 1), 2.0**-122.9)
    made["do"] = torch.full((1, 1, 1, 1), TINY)
    return {**made, "dropout_p": 0.99, "dropout_seed": 18}


def _flushed_do() -> Inputs:
    """do below 2^-126 times values of 2^100, in dP."""
    made = _base()
    made["do"] = torch.full((1, 1, 1, 1), TINY)
    made["v"] = (LARGE * torch.tensor([1.0, -1.0, 2.0])).view(1, 3, 1, 1)
    made["q"], made["k"] = torch.zeros(1, 1, 1, 1), torch.zeros(1, 3, 1, 1)
    made["k"] = torch.tensor([1.0, -1.0, 1.0]).view(1, 3, 1, 1)
    return made


def _flushed_do_in_delta() -> Inputs:
    """do below 2^-126 times an out of 2^100, in D, which meets keys that don't cancel."""
    made = _base()
    made["do"] = torch.full((1, 1, 1, 1), TINY)
    made["out"] = torch.full((1, 1, 1, 1), LARGE)
    made["k"] = torch.ones(1, 3, 1, 1)
    return made


def _flushed_ds() -> Inputs:
    """dS below 2^-126 times keys of 2^100; q is 0, so that scores are."""
    made = _base()
    made["do"] = torch.full((1, 1, 1, 1), 2.0**-63)
    made["v"] = torch.full((1, 3, 1, 1), 2.0**-62.5)
    made["k"] = torch.full((1, 3, 1, 1), LARGE)
    return made


def _flushed_scaled_ds() -> Inputs:
    """dS is normal and scale dS isn't: the loss is 2^-126 |k|, not scale 2^-126 |k|."""
    made = _flushed_ds()
    made["v"] = torch.full((1, 3, 1, 1), 2.0**-56.5)
    made["scale"] = 2.0**-5
    return made


def _flushed_key() -> Inputs:
    """A key below 2^-126 times a dS of 2^100."""
    made = _base()
    made["k"] = torch.full((1, 3, 1, 1), TINY)
    made["do"], made["v"] = torch.full((1, 1, 1, 1), LARGE), torch.ones(1, 3, 1, 1)
    return made


def _flushed_before_the_scale() -> Inputs:
    """dq's sum is flushed before it is multiplied by a scale of 1024."""
    made = _base()
    made["do"], made["v"] = torch.full((1, 1, 1, 1), 1.0), torch.ones(1, 3, 1, 1)
    made["k"] = torch.full((1, 3, 1, 1), 2.0**-125.5)
    made["scale"] = 1024.0
    return made


def _flushed_sink() -> Inputs:
    """A sink's weight below 2^-126 times a D of 2^100."""
    made = _base()
    made["sink"] = torch.full((1,), -86.5)
    made["do"] = torch.full((1, 1, 1, 1), LARGE)
    made["out"] = torch.ones(1, 1, 1, 1)
    return made


def _flushed_bias_gradient() -> Inputs:
    """dS itself is the output, and below 2^-126."""
    made = _base()
    made["do"], made["v"] = torch.full((1, 1, 1, 1), 2.0**-63), torch.full((1, 3, 1, 1), 2.0**-63)
    made["bias"] = torch.zeros(1, 1, 1, 3)
    return made


Made = Callable[[], Inputs]
BACKWARDS: tuple[tuple[Made, str, Way], ...] = (
    (_flushed_query, "dv", Way()),
    (_flushed_weight_times_do, "dv", Way()),
    (_flushed_product, "dv", Way()),
    (_flushed_do, "dq", Way()),
    (_flushed_do_in_delta, "dq", Way()),
    (_flushed_ds, "dq", Way()),
    (_flushed_scaled_ds, "dq", Way(folded=True)),
    (_flushed_key, "dq", Way()),
    (_flushed_before_the_scale, "dq", Way()),
    (_flushed_sink, "dsink", Way()),
    (_flushed_bias_gradient, "dbias", Way()),
)
FORWARDS: tuple[tuple[Made, str], ...] = (
    (_flushed_query, "out"),
    (_flushed_query, "lse"),
    (_flushed_weight, "out"),
    (_flushed_product, "out"),
)


def _trial(op: str, inputs: Inputs) -> Trial:
    keys = inputs["k"]
    assert isinstance(keys, Tensor)
    case = attention_case(op, (1, 1, 1, 1, keys.shape[1], 1, 1), torch.float32, "ci")
    return Trial.given(op, case, inputs)


def _flush(trial: Trial, way: Way) -> dict[str, Tensor]:
    """What the emulation returns where subnormals are flushed, as they are read too."""
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


@pytest.mark.parametrize(("made", "name", "way"), BACKWARDS)
def test_flushing_backward_is_within_the_bound(made: Made, name: str, way: Way) -> None:
    """The backward with flushing on, against the oracle with flushing off."""
    trial = _trial(BACKWARD, made())
    _assert_needed(trial, _flush(trial, way), name)


@pytest.mark.parametrize(("made", "name"), FORWARDS)
def test_flushing_forward_is_within_the_bound(made: Made, name: str) -> None:
    """The forward with flushing on, against the oracle with flushing off."""
    trial = _trial(FORWARD, made())
    _assert_needed(trial, _flush(trial, Way()), name)


def test_flushing_delta_is_within_the_bound() -> None:
    """do below 2^-126 times an out of 2^100."""
    inputs = _flushed_do_in_delta()
    out, do = inputs["out"], inputs["do"]
    assert isinstance(out, Tensor) and isinstance(do, Tensor)
    case = attention_case(DELTA, (1, 1, 1, 1, 3, 1, 1), torch.float32, "ci")
    trial = Trial.given(DELTA, case, {"out": out, "do": do})
    emulation = Emulation(inputs, Way())
    torch.set_flush_denormal(True)
    outputs = {"delta": emulation.delta(out)}
    torch.set_flush_denormal(False)
    assert trial.ratios(outputs, trial.bounds(FLUSHING))["delta"][0] <= 1
    assert trial.ratios(outputs, trial.bounds(GRADUAL))["delta"][0] > 1
