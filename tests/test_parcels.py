"""Inputs and outputs on their way between judge and worker: all bytes, in place, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from oracles import OPS
from oracles.op import Case
from suites.accuracy import parcels
from suites.accuracy.arena import Arena, make_arena
from suites.accuracy.parcels import Parcel, Unpacked, lay_out

CPU = torch.device("cpu")
LAYOUTS = ("contiguous", "offset3", "rowpad3", "expanded_all", "rank3_pad5")


@pytest.fixture
def arena() -> Iterator[Arena]:
    """Memory for a small case's inputs."""
    made = make_arena(2**22, CPU)
    yield made
    made.close()


@pytest.fixture(params=["in place", "together"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Through the arena, or in one copy through memory beside it, as to a GPU and back."""
    if request.param == "together":
        monkeypatch.setattr(parcels, "_at_hand", lambda content, _: content.clone())
    return bool(request.param == "together")


def _case(layout: str) -> Case:
    every = OPS["layer_norm_backward"].cases()
    return next(each for each in every if each.layout.name == layout and each.size("m") > 1)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_worker_has_the_judges_inputs(arena: Arena, layout: str) -> None:
    """The same bits, strides and place within 256 bytes, wherever in the arena they went."""
    case = _case(layout)
    inputs = OPS[case.op].inputs(case, CPU)
    parcel = Parcel.of(inputs, CPU)
    message = parcel.put(arena, 512)
    given = Unpacked(arena, message, (), CPU).given.arguments
    assert given.keys() == inputs.keys()
    for name, sent in inputs.items():
        now = given[name]
        if not isinstance(sent, Tensor):
            assert now == sent
            continue
        assert isinstance(now, Tensor)
        assert torch.equal(_bits(now), _bits(sent))
        assert (now.shape, now.stride()) == (sent.shape, sent.stride())
        assert now.data_ptr() % 256 == sent.data_ptr() % 256


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_call_wrote_comes_back(arena: Arena, layout: str, *, together: bool) -> None:
    """Nothing, then an element of an input, then poison beside one: the input is named."""
    case = _case(layout)
    parcel = Parcel.of(OPS[case.op].inputs(case, CPU), CPU)
    message = parcel.put(arena)
    unpacked = Unpacked(arena, message, (), CPU)
    unpacked.send_back()
    assert parcel.differs(arena) is None
    weight = unpacked.given.arguments["weight"]
    assert isinstance(weight, Tensor)
    before = weight.clone()
    weight.as_strided((1,), (1,), weight.storage_offset()).neg_()
    if not together:
        assert parcel.differs(arena) is None  # it isn't the judge's memory that was written to
    unpacked.send_back()
    assert parcel.differs(arena) == "weight"
    weight.copy_(before)
    unpacked.send_back()
    assert parcel.differs(arena) is None


@pytest.mark.usefixtures("together")
def test_poison_beside_an_input_is_the_inputs(arena: Arena) -> None:
    """A byte before an offset tensor, in its buffer."""
    case = _case("rowpad3")
    parcel = Parcel.of(OPS[case.op].inputs(case, CPU), CPU)
    unpacked = Unpacked(arena, parcel.put(arena), (), CPU)
    x = unpacked.given.arguments["x"]
    assert isinstance(x, Tensor)
    pad = x.as_strided((1,), (1,), x.storage_offset() + x.shape[-1])
    pad.fill_(1.0)
    unpacked.send_back()
    assert parcel.differs(arena) == "x"


@pytest.mark.usefixtures("together")
def test_outputs_lie_one_after_the_other(arena: Arena) -> None:
    """Each at a multiple of 256 bytes, packed, whatever its strides; what lies beyond is left."""
    arena.at(0, 4096).fill_(7)
    outputs = {
        "dx": torch.arange(12, dtype=torch.float16).view(3, 4).T,
        "dweight": torch.zeros(0, 4),
        "dbias": torch.tensor([1.5, -2.0]),
    }
    lay_out(outputs, arena, 512)
    dx = arena.at(512, 24).view(torch.float16).view(4, 3)
    assert torch.equal(dx, outputs["dx"])
    assert torch.equal(arena.at(768, 8).view(torch.float32), outputs["dbias"])
    assert bool((arena.at(0, 512) == 7).all())
    assert bool((arena.at(1024, 1024) == 7).all())


def test_nothing_of_the_judges_memory_goes_along() -> None:
    """Between two buffers there are zeros, and not what was freed there."""
    case = _case("contiguous")
    parcel = Parcel.of(OPS[case.op].inputs(case, CPU), CPU)
    taken = torch.zeros(parcel.nbytes, dtype=torch.bool)
    for each in parcel.buffers:
        taken[each.start : each.start + each.nbytes] = True
    assert not bool(taken.all())
    assert not bool(parcel.content[~taken].any())
