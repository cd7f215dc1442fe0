"""Inputs and outputs on their way between judge and worker: all bytes, in place, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import ATTENTION_FORWARD, LAYER_NORM_BACKWARD, OPS
from kernel_workbench.oracles.cases.layouts import LARGEST_POISONED_BUFFER, place_vector
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Case, Inputs, Layout, TensorLayout, required
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox import parcels
from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, Unpacked, lay_out, make_arena
from kernel_workbench.suites.sandbox.worker_side.in_process import InProcess
from tests.builders.by_hand import kernel_of
from tests.builders.wrong_layer_norms import closed_form

CPU = torch.device("cpu")
LAYOUTS = ("contiguous", "offset3", "rowpad3", "expanded_all", "rank3_pad5")
_FAR = Layout("x_far", (("x", TensorLayout(row_stride=2**29 + 8)),))


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
    given = Unpacked(arena, message, (), CPU).arguments
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
    weight = unpacked.arguments["weight"]
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
    x = unpacked.arguments["x"]
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


def _called(case: Case, device: torch.device, changed: str | None, reach: int = 0) -> str | None:
    """The reason of a call that changes a bit `reach` bytes before a tensor's first element."""

    def kernel(**given: Tensor) -> tuple[Tensor, ...]:
        made = closed_form(given["dy"], given["x"], given["weight"], given["mean"], given["rstd"])
        if changed is not None:
            tensor = given[changed]
            bits = torch.empty(0, dtype=torch.uint8, device=device).set_(tensor.untyped_storage())
            bits[tensor.storage_offset() * tensor.element_size() - reach] ^= 1
        return made

    parcel = Parcel.of(LAYER_NORM_BACKWARD.inputs(case, device), device)
    call = InProcess(device, DEFAULT_SM).call(kernel_of(kernel), case, parcel, "nan")
    assert (call.rule == "changed input") == (call.reason is not None)
    return call.reason


@pytest.mark.parametrize("name", ["dy", "x", "weight"])
def test_change_of_one_bit_is_found_wherever_it_is(name: str, device: torch.device) -> None:
    """In a tensor, and in the guard before it, whose poison is no number."""
    case = _case("offset3")
    assert _called(case, device, None) is None
    for reach in (0, 1):
        told = f"it wrote to memory in or around input {name}"
        assert _called(case, device, name, reach) == told


def test_nan_that_stays_is_no_change(device: torch.device) -> None:
    """Bits are compared, and NaN has the same as before."""
    case = replace(_case("contiguous"), distribution="nan_x")
    assert _called(case, device, None) is None


def test_change_in_a_buffer_of_gigabytes_is_found(device: torch.device) -> None:
    """Its gaps aren't compared, which would touch them all; the elements are."""
    case = replace(_case("contiguous"), sizes=(("m", 3), ("n", 37)), layout=_FAR)
    parcel = Parcel.of(LAYER_NORM_BACKWARD.inputs(case, CPU), CPU)
    assert parcel.nbytes < 2**16
    arena = Arena(torch.empty_like(parcel.content), {})
    unpacked = Unpacked(arena, parcel.put(arena), (), device)
    x = unpacked.arguments["x"]
    assert isinstance(x, Tensor)
    assert x.untyped_storage().nbytes() > LARGEST_POISONED_BUFFER
    unpacked.send_back()
    assert parcel.differs(arena) is None
    x[2, 36] = 3.0
    unpacked.send_back()
    assert parcel.differs(arena) == "x"


def test_element_that_is_seen_often_is_sent_once(device: torch.device) -> None:
    """In a buffer of gigabytes, too, to which elements are written one by one."""
    name = "b2-h_q2-h_kv2-s_q1-s_kv2-d8-d_v8-float16-kv_expanded_batch+v_heads_far"
    case = case_named(ATTENTION_FORWARD, f"attention_forward-{name}")
    assert case is not None
    inputs = ATTENTION_FORWARD.inputs(case, CPU)
    parcel = Parcel.of(inputs, CPU)
    arena = Arena(torch.empty_like(parcel.content), {})
    unpacked = Unpacked(arena, parcel.put(arena), (), device)
    v, given = required(unpacked.arguments, "v"), required(inputs, "v")
    assert v.stride(0) == 0
    assert v.untyped_storage().nbytes() > LARGEST_POISONED_BUFFER
    assert torch.equal(v.cpu(), given)
    unpacked.send_back()
    assert parcel.differs(arena) is None


@pytest.mark.parametrize(
    "x",
    [torch.arange(48.0).view(6, 8).T, torch.arange(24.0).expand(5, 24)],
    ids=["turned", "spread"],
)
def test_large_buffer_without_gaps_keeps_its_order(
    x: Tensor, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its elements may be as many as the buffer has, in another order, or more."""
    monkeypatch.setattr(parcels, "LARGEST_POISONED_BUFFER", 64)
    parcel = Parcel.of({"x": x}, CPU)
    unpacked = Unpacked(arena, parcel.put(arena), (), CPU)
    for sent in (parcel.seen()["x"], required(unpacked.arguments, "x")):
        assert torch.equal(required({"x": sent}, "x"), x)
    unpacked.send_back()
    assert parcel.differs(arena) is None
    required(unpacked.arguments, "x")[:1, 0] = -1.0
    unpacked.send_back()
    assert parcel.differs(arena) == "x"


def test_tensors_that_share_a_buffer_share_its_copy(arena: Arena) -> None:
    """q, k and v of one projection lie in one buffer, position by position."""
    buffer = place_vector(torch.arange(24.0), torch.float32, TensorLayout())
    q, k = buffer.view(2, 2, 6).unbind(1)
    inputs: Inputs = {"q": q, "k": k, "causal": True}
    parcel = Parcel.of(inputs, CPU)
    unpacked = Unpacked(arena, parcel.put(arena), (), CPU)
    q, k = (each for each in unpacked.arguments.values() if isinstance(each, Tensor))
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    assert k.data_ptr() - q.data_ptr() == 6 * torch.float32.itemsize
    assert k.tolist() == [list(range(6, 12)), list(range(18, 24))]
    assert unpacked.arguments["causal"] is True
    k[1, 2] = 0
    unpacked.send_back()
    assert parcel.changed(arena, ATTENTION_FORWARD) == "it wrote to memory in or around input q"


def test_argument_that_is_updated_may_change_and_nothing_else(arena: Arena) -> None:
    """dweight is added to in place, and put back before bytes are compared."""
    case = replace(_case("contiguous"), options=frozenset({"accumulate"}))
    parcel = Parcel.of(LAYER_NORM_BACKWARD.inputs(case, CPU), CPU)
    unpacked = Unpacked(arena, parcel.put(arena), LAYER_NORM_BACKWARD.updates, CPU)
    for name, found in (("dweight", None), ("weight", "weight")):
        tensor = unpacked.arguments[name]
        assert isinstance(tensor, Tensor)
        tensor.add_(1)
        unpacked.restore()
        unpacked.send_back()
        assert parcel.differs(arena) == found
