"""Signs flipped in inputs come back out of outputs, whatever the op, the options and the layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.layouts import LARGEST_POISONED_BUFFER
from kernel_workbench.oracles.op import Case, Flips, Inputs
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.worker_side.in_process import InProcess

CPU = torch.device("cpu")
SEED = 3
OP_NAMES = tuple(OPS)
# exp knows signs: no change of them leaves the outputs' magnitudes.
NO_SIGNS = {"softmax_forward", "cross_entropy_forward", "smoothed_cross_entropy_forward"}


@cache
def _small(op: str) -> list[Case]:
    """The `ci` cases whose tensors are small, as most are."""
    return [
        case
        for case in OPS[op].cases()
        if case.tier == "ci"
        and all(
            1 + sum((size - 1) * step for size, step in zip(each.shape, each.strides, strict=True))
            <= 2**20
            for each in OPS[op].geometry(case).values()
            if all(each.shape)
        )
    ]


def _tensors(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in inputs.items() if isinstance(value, Tensor))


def _bits(tensor: Tensor) -> Tensor:
    """The whole buffer that a tensor lies in, as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _equal(one: Tensor, other: Tensor) -> bool:
    """As numbers: zeros of two signs are equal, and so are two NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


@pytest.mark.parametrize("op", OP_NAMES)
def test_flips_change_signs_and_nothing_else(op: str) -> None:
    """Each element keeps its size, each poisoned one its bits; a second time gives all back."""
    for case in _small(op)[::11]:
        inputs = OPS[op].inputs(case, CPU)
        before = {name: (each.clone(), _bits(each).clone()) for name, each in _tensors(inputs)}
        flipped = OPS[case.op].signs(case, SEED)
        flipped.apply_(inputs)
        for name, each in _tensors(inputs):
            assert _equal(each.abs(), before[name][0].abs()), (case.id(), name)
        poisoned = {name: _bits(each).clone() for name, each in _tensors(inputs)}
        flipped.apply_(inputs)
        for name, each in _tensors(inputs):
            assert torch.equal(_bits(each), before[name][1]), (case.id(), name)
            # The bits between a tensor's elements are NaN's, and no element's sign is one of them.
            changed = int((poisoned[name] != before[name][1]).sum())
            assert changed <= each.numel(), (case.id(), name)


@pytest.mark.parametrize("op", OP_NAMES)
def test_truth_follows_the_signs_exactly(op: str) -> None:
    """In float64, for every option and layout: the outputs' signs put back, it is the same."""
    for case in _small(op)[::7]:
        inputs = OPS[op].inputs(case, CPU)
        truth = OPS[op].oracle(case, inputs)
        flipped = OPS[case.op].signs(case, SEED)
        flipped.apply_(inputs)
        again = OPS[op].oracle(case, inputs)
        for name, value in truth.items():
            other = again[name]
            assert (value is None) == (other is None)
            if value is None or other is None:
                continue
            back = _undone(flipped, name, other)
            near = (back - value).abs() <= 1e-9 * value.abs().amax() if value.numel() else back == 0
            right = (back == value) | near | (back.isnan() & value.isnan())
            assert bool(right.all()), (case.id(), name)


def _undone(flipped: Flips, name: str, output: Tensor) -> Tensor:
    """A float64 output with its signs put back."""
    made = output.clone()
    for factor in flipped.of_outputs.get(name, ()):
        made = torch.where(factor, -made, made)
    return made


@pytest.mark.parametrize("op", OP_NAMES)
def test_each_output_but_lse_and_some_input_change(op: str) -> None:
    """Nothing that a first call returned can be returned again, where there is anything at all."""
    for case in _small(op):
        found = OPS[case.op].signs(case, SEED)
        for name, form in OPS[op].forms(case).items():
            if name in found.of_outputs and name != "lse" and 0 not in form.shape:
                total = torch.zeros(form.shape, dtype=torch.bool)
                for factor in found.of_outputs[name]:
                    total = total ^ factor
                assert bool(total.any()), (case.id(), name)


@pytest.mark.parametrize("op", OP_NAMES)
def test_signs_differ_with_the_seed_and_not_without(op: str) -> None:
    """The same seed gives the same signs; another seed others, where there is room for any."""
    plain = [each for each in _small(op) if not each.options and not each.layout.tensors]
    case = max(plain, key=lambda each: math.prod(dict(each.sizes).values()))
    if op in NO_SIGNS:
        assert not OPS[op].signs(case, 1).of_inputs
        return

    def signs(seed: int) -> bytes:
        found = OPS[op].signs(case, seed).of_inputs
        return b"".join(bytes(each.flatten().tolist()) for of in found.values() for each in of)

    assert signs(1) == signs(1)
    assert signs(1) != signs(2)


def test_flips_of_a_parcel_are_those_of_its_tensors() -> None:
    """As bytes that are sent to a worker, expanded and interleaved tensors get the same signs."""
    wanted = ("qkv_interleaved", "kv_expanded_heads", "do_expanded_all", "do_expanded_rows")
    cases = [
        case
        for name in ("attention_forward", "attention_backward")
        for case in _small(name)
        if case.layout.name in wanted
    ]
    assert {case.layout.name for case in cases} == set(wanted)
    for case in cases:
        inputs = OPS[case.op].inputs(case, CPU)
        found = OPS[case.op].signs(case, SEED)
        parcel = Parcel.of(inputs, CPU)
        parcel.change(found.apply_)
        found.apply_(inputs)
        for name, each in _tensors(inputs):
            sent = parcel.seen()[name]
            assert isinstance(sent, torch.Tensor)
            kind = torch.int16 if each.element_size() == 2 else torch.int32
            assert torch.equal(sent.view(kind), each.view(kind)), (case.id(), name)


def _named(kernel: Kernel) -> str:
    return f"{kernel.op.name}-{kernel.name}"


@pytest.mark.parametrize("kernel", all_kernels(), ids=_named)
def test_kernels_follow_the_signs_bit_by_bit(kernel: Kernel, device: torch.device) -> None:
    """Ours and PyTorch's: a second call with flipped signs repeats the first, signs put back.

    Each kernel on some cases that it serves, other ones for each.
    """
    served = [
        case
        for case in _small(kernel.op.name)
        if kernel.domain.reject(case, 90, device.type) is None
        and kernel.op.bytes(case) <= LARGEST_POISONED_BUFFER
        # PyTorch's RMS norm on a GPU doesn't, beside an infinity.
        and not (device.type == "cuda" and kernel.origin == "baseline" and "-inf_" in case.id())
    ]
    if not served:
        pytest.skip(f"{kernel.name} doesn't run on {device.type}")
    first_case = all_kernels().index(kernel) % min(5, len(served))
    for case in served[first_case :: max(1, len(served) // 2)]:
        found = OPS[case.op].signs(case, SEED)
        parcel = Parcel.of(kernel.op.inputs(case, device), device)
        here = InProcess(device, DEFAULT_SM)
        first = here.call(kernel, case, parcel, "nan")
        parcel.change(found.apply_)
        second = here.call(kernel, case, parcel, "sentinel")
        back = found.outputs(second.outputs)
        assert list(back) == list(first.outputs) != []
        for name, each in first.outputs.items():
            assert _equal(back[name], each), (case.id(), name)
