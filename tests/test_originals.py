"""The inputs of a case: each call's are its own, and what it does to them shows."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from oracles import ATTENTION_FORWARD, LAYER_NORM_BACKWARD
from oracles.inputs import LARGEST_POISONED_BUFFER, place_vector
from oracles.op import CONTIGUOUS, Case, Inputs, Layout, TensorLayout
from suites.accuracy import originals
from suites.accuracy.originals import Originals

F16, F32 = torch.float16, torch.float32
_OFFSET = Layout("offset3", tuple((name, TensorLayout(offset=3)) for name in ("dy", "x", "weight")))
_FAR = Layout("x_far", (("x", TensorLayout(row_stride=2**29 + 8)),))


def _case(
    layout: Layout = CONTIGUOUS, options: tuple[str, ...] = (), dtype: torch.dtype = F32
) -> Case:
    return Case(
        op=LAYER_NORM_BACKWARD.name,
        sizes=(("m", 3), ("n", 37)),
        dtype=dtype,
        weight_dtype=dtype,
        layout=layout,
        options=frozenset(options),
    )


def _tensors(inputs: Inputs) -> dict[str, Tensor]:
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}


def _bytes(tensor: Tensor, count: int) -> Tensor:
    """`count` bytes before the first element of `tensor`."""
    start = tensor.storage_offset() * tensor.element_size() - count
    bits = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return bits[start : start + count]


@pytest.mark.parametrize("layout", [CONTIGUOUS, _OFFSET, _FAR], ids=lambda each: each.name)
def test_call_is_given_the_oracles_inputs_at_other_addresses(
    layout: Layout, device: torch.device
) -> None:
    """Values, strides and the place within 256 bytes are those of the op's own inputs."""
    case = _case(layout, dtype=F16)
    made = Originals(LAYER_NORM_BACKWARD, case, device)
    expected = _tensors(LAYER_NORM_BACKWARD.inputs(case, device))
    first = _tensors(made.give().arguments)
    second = _tensors(made.give().arguments)
    read = _tensors(made.read())
    assert list(first) == list(expected) == list(second) == list(read)
    for name, tensor in expected.items():
        for given in (first[name], second[name], read[name]):
            assert torch.equal(given, tensor)
            assert (given.dtype, given.stride()) == (tensor.dtype, tensor.stride())
            assert (given.data_ptr() - tensor.data_ptr()) % 256 == 0
        assert len({each[name].data_ptr() for each in (first, second, read)}) == 3


def test_guards_of_a_copy_hold_poison(device: torch.device) -> None:
    """What lies before an element that a kernel may read by mistake is no number."""
    made = Originals(LAYER_NORM_BACKWARD, _case(_OFFSET), device)
    for tensor in _tensors(made.give().arguments).values():
        assert _bytes(tensor, 64).view(F32).isnan().all()


def test_tensors_that_share_a_buffer_share_its_copy(device: torch.device) -> None:
    """q, k and v of one projection lie in one buffer, position by position."""

    def shared(_: Case, device: torch.device) -> Inputs:
        buffer = place_vector(torch.arange(24.0, device=device), F32, TensorLayout())
        q, k = buffer.view(2, 2, 6).unbind(1)
        return {"q": q, "k": k, "causal": True}

    op = dataclasses.replace(ATTENTION_FORWARD, inputs=shared)
    given = Originals(op, _case(), device).give()
    q, k = _tensors(given.arguments).values()
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    assert k.data_ptr() - q.data_ptr() == 6 * F32.itemsize
    assert k.tolist() == [list(range(6, 12)), list(range(18, 24))]
    assert given.arguments["causal"] is True
    assert given.changed() is None
    k[1, 2] = 0
    assert given.changed() == "q"


def test_change_of_one_bit_is_found_wherever_it_is(device: torch.device) -> None:
    """In a tensor, in the guard before it, and in the room that a copy needs to be aligned."""
    made = Originals(LAYER_NORM_BACKWARD, _case(_OFFSET), device)
    for name in _tensors(made.read()):
        for reach in (0, 1, 200):
            given = made.give()
            assert given.changed() is None
            tensor = _tensors(given.arguments)[name]
            _bytes(tensor, reach + 1)[0] ^= 1
            assert given.changed() == name
        given = made.give()
        tensor = _tensors(given.arguments)[name]
        bits = torch.empty(0, dtype=torch.uint8, device=device).set_(tensor.untyped_storage())
        bits[-1] ^= 1
        assert given.changed() == name


def test_nan_that_stays_is_no_change(device: torch.device) -> None:
    """Bits are compared, and NaN has the same as before."""
    case = dataclasses.replace(_case(), distribution="nan_x")
    given = Originals(LAYER_NORM_BACKWARD, case, device).give()
    assert _tensors(given.arguments)["x"].isnan().any()
    assert given.changed() is None


@pytest.mark.parametrize("largest", [2**30, 0], ids=["copied", "drawn anew"])
def test_argument_that_is_updated_may_change_and_nothing_around_it(
    largest: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dweight is added to in place; its guard isn't."""
    monkeypatch.setattr(originals, "LARGEST_POISONED_BUFFER", largest)
    made = Originals(LAYER_NORM_BACKWARD, _case(options=("accumulate",)), device)
    given = made.give()
    _tensors(given.arguments)["dweight"].add_(1)
    assert given.changed() is None
    _tensors(given.arguments)["weight"].add_(1)
    assert given.changed() == "weight"


def test_change_in_a_buffer_of_gigabytes_is_found(device: torch.device) -> None:
    """Its gaps aren't compared, which would touch them all; the elements are."""
    made = Originals(LAYER_NORM_BACKWARD, _case(_FAR, dtype=F16), device)
    given = made.give()
    assert given.changed() is None
    x = _tensors(given.arguments)["x"]
    assert x.untyped_storage().nbytes() > LARGEST_POISONED_BUFFER
    x[2, 36] = math.pi
    assert given.changed() == "x"
    assert torch.equal(_tensors(made.read())["x"], _tensors(made.give().arguments)["x"])
