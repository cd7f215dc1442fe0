# ruff: noqa: F722, F821, UP037  # shapes in annotations
"""Ops made of references: what follows from a function's annotations, operations and values."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.registry import KernelError, load_ops
from kernel_workbench.oracles import (
    ADD_RMS_NORM_FORWARD,
    GEGLU_BACKWARD,
    OPS,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
    ROPE_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
)
from kernel_workbench.oracles.cases.covering import Coverage
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.cases.sizes import COLUMNS, ROWS, Sizes
from kernel_workbench.oracles.op import Case, Numerics, OutputForm, required
from kernel_workbench.oracles.reference import OpError, ReferenceOp
from kernel_workbench.oracles.reference import op as made_by

CPU = torch.device("cpu")
HALF, SINGLE = torch.bfloat16, torch.float32
DERIVED = [each for each in OPS.values() if isinstance(each, ReferenceOp)]
_BY_NAME = pytest.mark.parametrize("op", DERIVED, ids=lambda each: each.name)
_NAMED = case_named(
    RMS_NORM_BACKWARD, "rms_norm_backward-m12-n77-bfloat16_float32weight-contiguous"
)
assert _NAMED is not None
CASE: Case = _NAMED


def _ci(op: ReferenceOp) -> list[Case]:
    return [case for case in op.cases() if case.tier == "ci"]


def test_annotations_give_arguments_and_forms() -> None:
    """The backward has the outputs' gradients first, and a gradient for each argument."""
    assert RMS_NORM_FORWARD.arguments == ("x", "weight", "eps")
    assert RMS_NORM_BACKWARD.arguments == ("dy", "x", "weight", "eps")
    m, n = CASE.size("m"), CASE.size("n")
    expected = {"dx": OutputForm((m, n), HALF), "dweight": OutputForm((n,), SINGLE)}
    assert RMS_NORM_BACKWARD.forms(CASE) == expected
    inputs = RMS_NORM_BACKWARD.inputs(CASE, CPU)
    assert tuple(inputs) == RMS_NORM_BACKWARD.arguments
    assert inputs["eps"] == 1e-6
    for name, place in RMS_NORM_BACKWARD.geometry(CASE).items():
        tensor = required(inputs, name)
        assert (tuple(tensor.shape), tensor.dtype) == (place.shape, place.dtype)


def test_gradients_are_those_of_the_closed_form() -> None:
    """dx = r (g - x^ mean(g x^)), dweight = sum dy x^, with x^ = x r and g = dy weight."""
    inputs = RMS_NORM_BACKWARD.inputs(CASE, CPU)
    dy, x, weight = (required(inputs, name).double() for name in ("dy", "x", "weight"))
    r = (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    x_hat, g = x * r, dy * weight
    dx = r * (g - x_hat * (g * x_hat).mean(1, keepdim=True))
    truth = RMS_NORM_BACKWARD.oracle(CASE, inputs)
    torch.testing.assert_close(truth["dx"], dx, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(truth["dweight"], (dy * x_hat).sum(0), rtol=1e-12, atol=1e-14)


def test_output_may_have_the_name_of_an_argument() -> None:
    """One output is called y, and so may be an argument, of other axes: each has its own signs."""

    @made_by(sizes={"m": ROWS, "n": COLUMNS})
    def weighted(x: Float[Tensor, "m n"], y: Float[Tensor, "n"]) -> Float[Tensor, "m"]:
        return x @ y

    weighted.check()
    case = next(each for each in _ci(weighted) if each.size("m") > 1 and each.size("n") > 1)
    flips = weighted.signs(case, 5)
    for of, shape in (
        (flips.of_inputs["y"], (case.size("n"),)),
        (flips.of_outputs["y"], (case.size("m"),)),
    ):
        assert torch.broadcast_shapes(shape, *(factor.shape for factor in of)) == shape
    assert weighted.backward().arguments == ("dy", "x", "y")
    assert weighted.backward().outputs == ("dx", "dy")


def test_gradient_of_an_output_has_no_arguments_name() -> None:
    """Two arguments would be called dy: the sentence says how to name the output."""

    @made_by(sizes={"m": ROWS})
    def ours(x: Float[Tensor, "m"], dy: Float[Tensor, "m"]) -> Float[Tensor, "m"]:
        return x * dy

    with pytest.raises(OpError, match=r"dy is an argument, and the gradient of the output y; give"):
        ours.backward()


def test_gradient_that_needs_no_x_is_given_none() -> None:
    """RoPE's turns dy back: a turn of it, and by the same angles, is dy again."""
    case = next(each for each in _ci(ROPE_BACKWARD) if min(n for _, n in each.sizes) > 2)
    inputs = ROPE_BACKWARD.inputs(case, CPU)
    assert tuple(inputs) == ("dy", "cos", "sin")
    dy, s, pairs = required(inputs, "dy").double(), case.size("s"), case.size("p")
    assert dy.shape[-1] == 2 * pairs
    angle = torch.linspace(0, 3, s * pairs).double().view(s, pairs)
    turned = torch.complex(dy[..., :pairs], dy[..., pairs:]) * torch.exp(1j * angle)[:, None]
    forward = torch.cat((turned.real, turned.imag), -1)
    back = ROPE_BACKWARD.oracle(case, {"dy": forward, "cos": angle.cos(), "sin": angle.sin()})
    torch.testing.assert_close(back["dx"], dy, rtol=1e-12, atol=1e-14)


def test_smoothed_loss_is_that_of_pytorch_and_ignored_rows_have_none() -> None:
    """Beside the z-loss; some rows of every larger case have no label."""
    case = next(
        each
        for each in _ci(SMOOTHED_CROSS_ENTROPY_BACKWARD)
        if each.size("m") > 30 and not each.options and each.distribution == "normal"
    )
    inputs = SMOOTHED_CROSS_ENTROPY_BACKWARD.inputs(case, CPU)
    x, target = required(inputs, "x").double().requires_grad_(), required(inputs, "target")
    ignored = target == -100
    assert 0 < int(ignored.sum()) < case.size("m")
    plain = functional.cross_entropy(x, target, label_smoothing=0.1, reduction="none")
    expected = plain + 1e-4 * x.logsumexp(-1).square().masked_fill(ignored, 0)
    (dx,) = torch.autograd.grad(expected, x, required(inputs, "dloss").double())
    inputs_of_forward = {name: inputs[name] for name in SMOOTHED_CROSS_ENTROPY_FORWARD.arguments}
    loss = SMOOTHED_CROSS_ENTROPY_FORWARD.oracle(case, inputs_of_forward)["loss"]
    assert loss is not None and not bool(loss[ignored].any())
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-14)
    made = SMOOTHED_CROSS_ENTROPY_BACKWARD.oracle(case, inputs)["dx"]
    torch.testing.assert_close(made, dx, rtol=1e-10, atol=1e-14)


def test_bound_allows_for_a_cast_of_the_sum_where_it_is_declared() -> None:
    """RMS norm of a sum: what is normalised after the cast is further from the truth."""
    case = next(each for each in _ci(ADD_RMS_NORM_FORWARD) if each.dtype == HALF and each.size("m"))
    inputs = ADD_RMS_NORM_FORWARD.inputs(case, CPU)
    truth = ADD_RMS_NORM_FORWARD.oracle(case, inputs)
    plain, cast = (
        ADD_RMS_NORM_FORWARD.bound(case, inputs, truth, Numerics(casts=casts))
        for casts in ("", "s")
    )
    assert torch.equal(plain["s"].deterministic, cast["s"].deterministic)
    assert bool((cast["y"].deterministic > plain["y"].deterministic).all())


def test_gradient_of_what_is_marked_may_be_cast_too() -> None:
    """GeGLU's activation is marked, and dy up is by a d before its name: dgate alone follows."""
    case = next(each for each in _ci(GEGLU_BACKWARD) if each.dtype == HALF and each.size("m"))
    inputs = GEGLU_BACKWARD.inputs(case, CPU)
    truth = GEGLU_BACKWARD.oracle(case, inputs)
    plain, cast = (
        GEGLU_BACKWARD.bound(case, inputs, truth, Numerics(casts=casts))
        for casts in ("", "dactivation")
    )
    assert torch.equal(plain["dup"].deterministic, cast["dup"].deterministic)
    assert bool((cast["dgate"].deterministic > plain["dgate"].deterministic).any())


def test_work_is_counted_from_operations_and_annotations() -> None:
    """Four operations on each element of x, two on each row; x, weight and y pass once."""
    m, n = CASE.size("m"), CASE.size("n")
    assert RMS_NORM_FORWARD.flops(CASE) == 4 * m * n + 2 * m
    assert RMS_NORM_FORWARD.bytes(CASE) == 2 * 2 * m * n + 4 * n


@_BY_NAME
def test_cases_are_enough_and_small(op: ReferenceOp) -> None:
    """At least 60 in `ci`, and more in `full`."""
    cases = _ci(op)
    assert 60 <= len(cases) < len(op.cases())
    assert max(map(op.bytes, cases)) <= 2**20


@_BY_NAME
def test_every_pair_of_levels_that_can_meet_meets(op: ReferenceOp) -> None:
    """The `ci` cases have every pair that a search through small cases finds possible."""

    def serves(case: Case) -> bool:
        return op.bytes(case) <= 2**20 and all(size for _, size in case.sizes)

    coverage = Coverage(op, serves)
    coverage.search()
    for case in _ci(op):
        coverage.add(case)
    unmet = [coverage.names[each] for each in np.flatnonzero(coverage.missing().any(axis=1))]
    assert not unmet


@_BY_NAME
def test_linear_signs_and_bounds_are_of_the_op(op: ReferenceOp) -> None:
    """The bound is finite where the truth is, and far below it for plain numbers in fp32."""
    case = next(
        each
        for each in _ci(op)
        if each.dtype == SINGLE
        and each.distribution == "normal"
        and min(size for _, size in each.sizes) > 1
    )
    inputs = op.inputs(case, CPU)
    truth = op.oracle(case, inputs)
    for name, bound in op.bound(case, inputs, truth, Numerics()).items():
        value = truth[name]
        assert value is not None
        assert ((bound.deterministic > 0) | (value == 0)).all()
        assert bound.deterministic.max() <= 1e-3 * value.abs().max()
    assert op.linear in op.arguments


def test_signs_of_rows_and_columns_are_found() -> None:
    """Signs of RMS norm's x turn y's by rows and columns, the weight's by columns."""
    case = next(each for each in _ci(RMS_NORM_FORWARD) if each.size("m") > 2 < each.size("n"))
    flips = RMS_NORM_FORWARD.signs(case, 5)
    shapes = {name: [tuple(each.shape) for each in of] for name, of in flips.of_inputs.items()}
    m, n = case.size("m"), case.size("n")
    assert shapes == {"x": [(), (m, 1), (1, n)], "weight": [(), (n,)]}


def test_signs_that_groups_of_one_channel_have_are_none_of_group_norm() -> None:
    """At 8 channels in 8 groups those of x turn y's, at 16 they don't."""
    made = made_by(sizes={"b": ROWS, "c": _CHANNELS, "s": ROWS})(_group_norm)
    found = [(axis, tuple(arguments)) for axis, arguments, _ in made.found_signs()]
    assert (None, ("weight", "x")) in found
    assert ("c", ("bias", "weight")) in found
    assert all("x" not in arguments for axis, arguments in found if axis == "c")


_CHANNELS = Sizes("channels", {"few": (8, 16)}, lambda _: "few", (8,), multiple=8)


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    b, c, s = x.shape
    wide = x.reshape(b, 8, c // 8 * s)
    centred = wide - wide.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return (centred * rstd).reshape(b, c, s) * weight[:, None] + bias[:, None]


_PLACED, _CHANNEL = Float[Tensor, "b c s"], Float[Tensor, "c"]
_group_norm.__annotations__ = {
    "x": _PLACED,
    "weight": _CHANNEL,
    "bias": _CHANNEL,
    "return": _PLACED,
}


def _written(cache: Tensor, slot: Tensor) -> Tensor:
    return cache.index_fill(0, slot.flatten().clamp(min=0), 0.0)


_CACHE = Float[Tensor, "n d"]
_written.__annotations__ = {"cache": _CACHE, "slot": Int[Tensor, "m k"], "return": _CACHE}


_SLOTS = {"m": Sizes("m", {"all": (3, 2)}, lambda _: "all", (3,)), "d": ROWS}


@pytest.mark.parametrize("axes", ["m k", "k", "m"])
def test_distinct_numbers_come_once_along_their_axes(axes: str) -> None:
    """But for ignored ones; every number below the size is drawn sooner or later."""
    sizes = _SLOTS | {
        "n": Sizes("n", {"all": (6, 8, 9)}, lambda _: "all", (9,)),
        "k": Sizes("k", {"all": (2, 5)}, lambda _: "all", (2,)),
    }
    made = made_by(
        sizes=sizes, labels={"slot": "n"}, ignored={"slot": -1}, distinct={"slot": axes}
    )(_written)
    assert made.allowed is not None
    seen = set()
    for case in made.cases():
        count = math.prod(case.size(each) for each in axes.split())
        assert count <= case.size("n")
        slot = required(made.inputs(case, CPU), "slot")
        assert slot.shape == (case.size("m"), case.size("k"))
        lines = {"m k": slot.reshape(1, -1), "k": slot, "m": slot.t()}[axes]
        for line in lines.tolist():
            kept = [each for each in line if each >= 0]
            assert len(set(kept)) == len(kept)
            seen |= set(line)
    assert seen == {-1, *range(9)}
    small = replace(made.cases()[0], sizes=(("m", 3), ("n", 1), ("k", 5), ("d", 3)))
    told = made.allowed.objection(small)
    assert told is not None
    assert "n must be" in told


@pytest.mark.parametrize(
    ("distinct", "told"),
    [
        ({"slot": "m k"}, "no sizes have as many values as distinct indices: slot holds"),
        ({"slot": "d"}, "slot is distinct along d; name some of its axes, m k"),
        ({"cache": "n"}, "distinct names 'cache', and arguments of whole numbers are slot"),
    ],
)
def test_indices_that_cannot_be_distinct_are_refused(distinct: dict[str, str], told: str) -> None:
    """In a sentence, where the op is made."""
    sizes = _SLOTS | {
        "n": Sizes("n", {"all": (2, 3)}, lambda _: "all", (3,)),
        "k": Sizes("k", {"all": (2, 5)}, lambda _: "all", (2,)),
    }
    with pytest.raises(OpError, match=re.escape(told)):
        made_by(sizes=sizes, labels={"slot": "n"}, distinct=distinct)(_written)


_HEAD = """
import torch
from jaxtyping import Float, Float8e4m3fn, Int
from torch import Tensor
from kernel_workbench import COLUMNS, ROWS
from kernel_workbench import op

@op(sizes={"m": ROWS, "n": COLUMNS})
"""
_PLAIN = 'def mine(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:\n    '
# Bodies of functions, whose line the sentence names, and a part of the sentence.
_WRONG_BODIES = {
    "random numbers": ("return x + torch.randn_like(x)", "draws random numbers"),
    "an input that is changed": ("return x.mul_(2)", "changes its argument x"),
    "a branch by values": ("return x if x.sum() > 0 else -x", "goes by a tensor's values"),
    "numpy": ("return torch.from_numpy(x.numpy())", "it leaves PyTorch by numpy"),
    "bits of its argument": (
        "return (x.view(torch.int32) & -8192).view(torch.float32)",
        "it reads a number's bits",
    ),
    "bits of what it computed": (
        "return (2 * x).float().view(torch.int32).view(torch.float32).double()",
        "it reads a number's bits, from torch.float32 to torch.int32",
    ),
    "numbers made of bits": (
        "return x * torch.full((1,), 1072693248 << 32).view(torch.float64)",
        "it reads a number's bits, from torch.int64 to torch.float64",
    ),
    "no rule": ("return torch.linalg.svd(x)[0] @ x", "svd"),
    "other dtype": ("return x @ torch.ones(5, 5, dtype=torch.int32)", "it fails in float64"),
    "fp8 on the way": (
        "return x.to(torch.float8_e4m3fn).to(x.dtype) * 2",
        "it casts to fp8 on the way",
    ),
}
# Functions, the line that the sentence names, and a part of the sentence.
_WRONG = {
    "no shape": ("def mine(x: Tensor) -> Tensor:\n    return x", 8, "x has no shape"),
    "no annotation": ("def mine(x):\n    return x", 8, "x has no shape"),
    "no shape of what it returns": (
        'def mine(x: Float[Tensor, "m n"]):\n    return x',
        8,
        "y has no shape",
    ),
    "other shape": (_PLAIN + "return x.sum(0)", 8, "has shape (5,) where its annotation says"),
    "a size that nothing says": (
        'def mine(x: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:\n    return x',
        8,
        "nothing says what size k is tried at",
    ),
    "whole numbers": (
        _PLAIN.replace(")", ', i: Int[Tensor, "m"])', 1) + "return x",
        8,
        "i holds whole numbers; say the size",
    ),
    **{name: (_PLAIN + body, 10, part) for name, (body, part) in _WRONG_BODIES.items()},
}


def _same(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ({"outputs": "y"}, "outputs is the string 'y'; write ('y',)"),
        ({"outputs": ("",)}, "outputs has '', which names nothing; leave it out"),
        ({"outputs": ("y", "y")}, "outputs has 'y' twice; write it once"),
        ({"weights": ("weight", " ")}, "weights has ' ', which names nothing"),
        ({"weights": ("weight", "weight")}, "weights has 'weight' twice"),
        ({"nonzero": "x"}, "nonzero is the string 'x'; write ('x',)"),
        ({"nonzero": ("z",)}, "nonzero names 'z', and there are x"),
        ({"without": ("inff",)}, "without names 'inff', and there are normal, "),
        ({"without": ("inf", "inf")}, "without has 'inf' twice"),
    ],
    ids=str,
)
def test_names_that_an_op_lists_are_refused_in_a_sentence(
    listed: dict[str, Any], told: str
) -> None:
    """A blank name, one that comes twice, one of nothing, and a string alone."""
    with pytest.raises(OpError, match=re.escape(told)):
        made_by(sizes={"m": ROWS, "n": COLUMNS}, **listed)(_same)


@pytest.mark.usefixtures("known_ops_alone")
@pytest.mark.parametrize("kind", _WRONG)
def test_wrong_reference_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    """With the file, the line and what to write."""
    function, line, part = _WRONG[kind]
    file = tmp_path / "mine.py"
    file.write_text(_HEAD + function + "\n")
    with pytest.raises(KernelError) as refused:
        load_ops(file)
    told = str(refused.value)
    assert f"{file}:{line}: " in told, told
    assert part in told, told
    assert "\n" not in told


@pytest.mark.usefixtures("known_ops_alone")
def test_last_cast_to_codes_is_the_outputs_own(tmp_path: Path) -> None:
    """The truth is what is cast, and its bound is the one before the cast."""
    file = tmp_path / "mine.py"
    codes = 'x: Float[Tensor, "m n"]) -> Float8e4m3fn[Tensor, "m n"]:\n    return '
    texts = ("mine(" + codes + "x * 3", "other(" + codes + "(x * 3).to(torch.float8_e4m3fn)")
    head, decorator = _HEAD.split("@op")
    file.write_text(head + "\n".join(f"@op{decorator}def {each}\n" for each in texts))
    load_ops(file)
    found = []
    case = next(each for each in OPS["mine_forward"].cases() if each.size("m") > 1)
    inputs = OPS["mine_forward"].inputs(case, CPU)
    for name in ("mine_forward", "other_forward"):
        truth = OPS[name].oracle(case, inputs)
        found.append((truth, OPS[name].bound(case, inputs, truth, Numerics())["y"].deterministic))
    (truth, bound), (other, as_wide) = found
    y, x = required(truth, "y"), required(inputs, "x")
    assert torch.equal(y, required(other, "y"))
    assert torch.equal(y, 3 * x.double())
    assert torch.equal(bound, as_wide)
    assert bool((bound <= 2.0**-23 * y.abs() + 2.0**-125).all())


@pytest.mark.usefixtures("known_ops_alone")
def test_op_of_a_taken_name_is_refused(tmp_path: Path) -> None:
    """A user's op can't stand for one of the workbench's."""
    file = tmp_path / "mine.py"
    file.write_text(_HEAD + _PLAIN.replace("mine", "rms_norm") + "return x\n")
    with pytest.raises(KernelError, match="two ops are called rms_norm_forward"):
        load_ops(file)
