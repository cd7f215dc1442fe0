"""Inputs of samples: never the same values twice, and outputs that the judge can undo."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.bench.rotation import Rotation, changed_at, changes_in, moved
from kernel_workbench.suites.bench.stamps import effective_mhz
from kernel_workbench.suites.bench.task import is_kept, kept_of

CPU = torch.device("cpu")
CASES = (
    layer_norm_case(6, 5, (torch.float32, torch.float32)),
    attention_case(
        "attention_backward", (1, 2, 1, 5, 7, 4, 4), torch.float32, "ci", options="causal"
    ),
    Case(
        op="rms_norm_backward",
        sizes=(("m", 6), ("n", 5)),
        dtype=torch.float32,
        weight_dtype=torch.float32,
    ),
)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_changes_follow_a_gray_code(buffers: int) -> None:
    """One change a turn, and no set of them again before the 4,096th."""
    seen = [changes_in(number * buffers, buffers) for number in range(300)]
    assert len(set(seen)) == len(seen)
    for number in range(1, 300):
        apart = set(seen[number]) ^ set(seen[number - 1])
        assert apart == {changed_at(number * buffers, buffers)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_sample_has_values_and_pointers_of_its_own(case: Case) -> None:
    """No two of forty samples have the same inputs, and no two in a row the same address."""
    inputs = [OPS[case.op].inputs(case, CPU) for _ in range(2)]
    rotation = Rotation(case, inputs, seed=3)
    seen, last = set(), 0
    for _ in range(40):
        given = rotation.next()
        tensors = [each for each in given.values() if isinstance(each, Tensor)]
        seen.add(b"".join(each.contiguous().numpy().tobytes() for each in tensors))
        assert tensors[0].data_ptr() != last
        last = tensors[0].data_ptr()
    assert len(seen) == 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_outputs_of_changed_inputs_are_undone(case: Case) -> None:
    """Undone outputs of any sample are those of the first inputs."""
    op = OPS[case.op]
    peers = {each.name: each for each in all_kernels() if each.op is op}
    kernel = peers.get("torch_eager") or peers["torch_native"]
    expected = kernel.function(**op.inputs(case, CPU))
    assert isinstance(expected, tuple)
    inputs = [op.inputs(case, CPU) for _ in range(2)]
    rotation = Rotation(case, inputs, seed=11)
    for number in range(25):
        made = kernel.function(**rotation.next())
        assert isinstance(made, tuple)
        outputs = {
            name: each for name, each in zip(op.outputs, made, strict=True) if each is not None
        }
        for change in changes_in(number, 2):
            outputs = OPS[case.op].signs(case, 11 + change).outputs(outputs)
        for got, right in zip(
            outputs.values(), (each for each in expected if each is not None), strict=True
        ):
            assert torch.equal(got, right)


def test_argument_that_calls_add_to_is_put_back() -> None:
    """Each sample finds what the first one found, but for its signs."""
    case = layer_norm_case(6, 5, (torch.float32, torch.float32), options=frozenset({"accumulate"}))
    op = OPS[case.op]
    inputs = [op.inputs(case, CPU)]
    before = inputs[0]["dweight"]
    assert isinstance(before, Tensor)
    kept = before.clone()
    rotation = Rotation(case, inputs, seed=5, updates=op.updates)
    for _ in range(5):
        given = rotation.next()["dweight"]
        assert isinstance(given, Tensor)
        assert torch.equal(given.abs(), kept.abs())
        given.add_(1.0)  # as a kernel does


@pytest.mark.parametrize("layout", ["contiguous", "offset2", "rowpad3", "expanded_all"])
def test_moved_inputs_are_the_same_elsewhere(layout: str) -> None:
    """Values, strides, alignment and what shares memory; not one address."""
    every = OPS["layer_norm_backward"].cases()
    case = next(each for each in every if each.layout.name == layout and each.size("m") > 1)
    before = OPS[case.op].inputs(case, CPU)
    before["shared"] = before["x"]
    after = moved(before)
    assert list(after) == list(before)
    for name, value in before.items():
        now = after[name]
        if not isinstance(value, Tensor):
            assert now == value
            continue
        assert isinstance(now, Tensor)
        assert torch.equal(now, value)
        assert (now.shape, now.stride(), now.dtype) == (value.shape, value.stride(), value.dtype)
        assert now.data_ptr() != value.data_ptr()
        assert now.data_ptr() % 256 == value.data_ptr() % 256
    x, shared = after["x"], after["shared"]
    assert isinstance(x, Tensor)
    assert isinstance(shared, Tensor)
    assert x.data_ptr() == shared.data_ptr()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_moving_changes_no_sample(case: Case) -> None:
    """A rotation that moves gives the values of one that doesn't, with the same signs turned."""
    still, moving = (
        Rotation(case, [OPS[case.op].inputs(case, CPU) for _ in range(2)], seed=7) for _ in range(2)
    )
    places = set()
    for number in range(24):
        if number % 4 == 0:
            moving.move()
        here, there = still.next(), moving.next()
        for name, value in here.items():
            if isinstance(value, Tensor):
                assert torch.equal(value, there[name])  # type: ignore[arg-type]
        first = next(each for each in there.values() if isinstance(each, Tensor))
        places.add(first.data_ptr())
    assert len(places) > 4


def test_kept_sample_may_be_any_of_them() -> None:
    """However many there are, and it is one that was kept."""
    chosen = [kept_of(str(number), 20) for number in range(400)]
    assert set(chosen) == set(range(20))
    assert all(is_kept(str(number), chosen[number]) for number in range(400))


def test_effective_clock_is_cycles_over_nanoseconds_of_the_same_sm() -> None:
    """SMs' counters differ by any amount; those that were stamped once don't count."""
    before = {0: (10_000, 500), 1: (77, 510), 2: (5, 505)}
    after = {0: (10_000 + 198_000, 100_500), 1: (77 + 200_000, 100_510), 7: (3, 100_000)}
    assert effective_mhz(before, after) == pytest.approx(1990.0)
    assert effective_mhz(before, {9: (1, 100_000)}) is None
    # A pair of stamps that are a few steps of the timer apart says nothing.
    assert effective_mhz({0: (0, 0)}, {0: (2000, 1024)}) is None
