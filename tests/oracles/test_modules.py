"""Ops of modules: their arguments, sizes, values and outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kernel_workbench import op_of
from kernel_workbench.oracles.op import Numerics
from kernel_workbench.oracles.reference import OpError, small_sizes
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.oracles.reference.modules import ModuleOp

_SINGLE = (torch.float32, torch.float32)
CPU = torch.device("cpu")


class _Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor, scale: float) -> Tensor:
        return (a @ b) * scale


class _Triangle(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return a.cumsum(-1)


class _Log(nn.Module):
    def forward(self, p: Tensor) -> Tensor:
        return p.log()


class _Scales(nn.Module):
    """Its parameters are a.b_c and a_b.c."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.a_b = nn.Module(), nn.Module()
        self.a.b_c, self.a_b.c = (nn.Parameter(torch.full((5,), size)) for size in (2.0, 300.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a.b_c + self.a_b.c  # type: ignore[operator]


class _Loss(nn.Module):
    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x, label)


def _small(op: ModuleOp) -> dict[str, Tensor]:
    case = case_of(op.name, small_sizes(op.reference), _SINGLE, "ci")
    drawn = op.inputs(case, CPU)
    assert op.bound(case, drawn, op.oracle(case, drawn), Numerics())
    return {name: value for name, value in drawn.items() if isinstance(value, Tensor)}


def test_axes_that_vary_together_are_one_size() -> None:
    """The inner axis of a product is that of both operands; a number is passed by its name."""
    op = op_of(_Product(), [torch.rand(12, 20), torch.rand(20, 7), 0.5])
    axes = {each.name: each.axes for each in op.reference.signature.arrays}
    assert axes["a"][1] == axes["b"][0]
    assert len({*axes["a"], *axes["b"]}) == 3
    assert op.reference.signature.outputs[0].axes == (axes["a"][0], axes["b"][1])
    assert op.arguments == ("a", "b", "scale")


def test_channels_of_a_weight_stay_as_they_are() -> None:
    """An axis that the weight fixes is none of the sizes, where operations check it or not."""
    for layer in (nn.Conv2d(3, 5, 3), nn.ConvTranspose2d(3, 5, 3), nn.Linear(8, 5)):
        shape = (2, 8) if isinstance(layer, nn.Linear) else (2, 3, 8, 8)
        op = op_of(layer, [torch.rand(shape)])
        (x, *_) = op.reference.signature.arrays
        assert x.axes[1] == shape[1]
        assert isinstance(x.axes[0], str)


def test_buffer_that_changes_is_an_output() -> None:
    """Batch norm in training returns its statistics; in evaluation it has y alone."""
    layer = nn.BatchNorm1d(5)
    trained = op_of(layer, [torch.rand(6, 5)])
    state = ("new_running_mean", "new_running_var", "new_num_batches_tracked")
    assert trained.outputs == ("y", *state)
    assert trained.computed == ("y",)
    assert op_of(layer.eval(), [torch.rand(6, 5)]).outputs == ("y",)


def test_parameters_of_one_name_are_two_arguments() -> None:
    """Dots become underscores: the second of two that are alike then has a word before it."""
    op = op_of(_Scales(), [torch.rand(6, 5)])
    assert op.arguments == ("x", "a_b_c", "own_a_b_c")
    drawn = _small(op)
    assert float(drawn["a_b_c"].max()) < 100 < float(drawn["own_a_b_c"].min())


def test_parameters_are_spread_about_the_modules_own() -> None:
    """No weight is 1 and no bias 0 throughout, and the module keeps its own."""
    layer = nn.LayerNorm(16)
    drawn = _small(op_of(layer, [torch.rand(6, 16)]))
    assert float(drawn["weight"].std()) > 0.05
    assert float(drawn["bias"].std()) > 0.05
    assert torch.equal(layer.weight, torch.ones(16))


def test_values_with_a_rule_are_the_examples() -> None:
    """A triangle stays one, labels are valid, and a logarithm is of what is above 0."""
    triangle = op_of(_Triangle(), lambda: [torch.rand(9, 9).tril()])
    drawn = _small(triangle)["a"]
    assert torch.equal(drawn, drawn.tril())
    loss = op_of(_Loss(), lambda: [torch.randn(9, 30), torch.randint(30, (9,))])
    assert _small(loss)["label"].dtype == torch.int64
    log = op_of(_Log(), lambda: [torch.rand(9, 30) + 0.1])
    assert float(_small(log)["p"].min()) > 0


def test_own_sizes_have_the_examples_values() -> None:
    """The last case is the module's own, drawn by the function that makes its inputs."""
    op = op_of(nn.ReLU(), lambda: [torch.rand(3, 5) + 7])
    own = op.cases()[-1]
    x = op.inputs(own, CPU)["input"]
    assert isinstance(x, Tensor)
    assert dict(own.sizes) == {"m": 3, "n": 5}
    assert float(x.min()) >= 7


def test_dropout_in_training_is_refused_with_the_modules_line() -> None:
    """It draws random numbers."""
    op = op_of(nn.Dropout(0.5), [torch.rand(6, 5)])
    with pytest.raises(OpError, match="random"):
        op.check()
