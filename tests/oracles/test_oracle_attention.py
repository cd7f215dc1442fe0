"""The float64 oracle of attention against autograd through a plain formula, option by option."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention import scores
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.closed_form import (
    OPTIONS,
    backward,
    delta,
    forward,
    gradients,
)
from kernel_workbench.oracles.attention.dropout import keep_mask
from kernel_workbench.oracles.attention.geometry import BACKWARD, FORWARD, GRADIENTS, forms
from kernel_workbench.oracles.attention.values import inputs as inputs_of
from kernel_workbench.oracles.op import Case, Inputs

CPU = torch.device("cpu")
# The tolerance is 4500 unit roundoffs of float64. The longest sums here have 60 terms, and scores
# of 10 multiply the error of an exponential by as much.
TOLERANCE = 1e-12
# Queries and keys differ both ways, and both end in the middle of a group of four.
SHAPES = ((2, 4, 2, 13, 22, 5, 3), (1, 3, 3, 22, 13, 4, 4))
WINDOWS = ((3, 4), (None, 2), (5, None), (0, 0), (2, -1))
# Options that may be combined freely; bias and varlen exclude one another.
FREE = ("causal", "bottom_right", "window", "alibi", "softcap", "sink", "dropout", "scale")
BIASES = ("bias", "bias bias_over_batch", "bias bias_over_heads", "bias bias_over_queries")
EVERY_BIAS = "bias bias_over_batch bias_over_heads bias_over_queries"


def _sets() -> Iterator[str]:
    """No option, each, each pair, and all of them; with each bias and with varlen."""
    yield ""
    yield from FREE
    yield from (" ".join(pair) for pair in itertools.combinations(FREE, 2))
    for other in (*BIASES, EVERY_BIAS, "varlen"):
        yield other
        yield from (f"{other} {each}" for each in FREE)
        yield " ".join((other, *FREE))


SETS = tuple(_sets())


def _case(op: str, options: str, shape: tuple[int, ...], turn: int = 0) -> Case:
    window = WINDOWS[turn % len(WINDOWS)] if "window" in options else None
    if "varlen" in options:
        shape = (6, *shape[1:])  # from five on, one is empty and two lack queries or keys
    return attention_case(op, shape, torch.float32, "ci", options=options, window=window, seed=turn)


def _tensor(inputs: Inputs, name: str) -> Tensor:
    value = inputs[name]
    assert isinstance(value, Tensor)
    return value


def _wide(inputs: Inputs, *names: str) -> dict[str, Tensor]:
    """Return the named arguments that are there, in float64, as leaves of a graph."""
    return {
        name: _tensor(inputs, name).double().detach().requires_grad_()
        for name in names
        if inputs.get(name) is not None
    }


def _parts(inputs: Inputs) -> list[tuple[int, slice, slice]]:
    """Number, queries and keys of each sequence; one with all of them without sequences."""
    if "cu_seqlens_q" not in inputs:
        return [(0, slice(None), slice(None))]
    q, k = (_tensor(inputs, f"cu_seqlens_{name}").tolist() for name in "qk")
    return [(n, slice(q[n], q[n + 1]), slice(k[n], k[n + 1])) for n in range(len(q) - 1)]


def _mask(inputs: Inputs, s_q: int, s_kv: int) -> list[list[bool]]:
    """The contract's two sentences, pair by pair."""
    shift = s_kv - s_q if inputs.get("corner") == "bottom_right" else 0
    window = inputs.get("window", (None, None))
    assert isinstance(window, tuple)
    left, right = window
    return [
        [
            (not inputs.get("causal") or j <= i + shift)
            and (left is None or i + shift - left <= j)
            and (right is None or j <= i + shift + right)
            for j in range(s_kv)
        ]
        for i in range(s_q)
    ]


def _part_scores(
    inputs: Inputs, wide: dict[str, Tensor], part: tuple[int, slice, slice]
) -> tuple[Tensor, Tensor, Tensor]:
    """S [b, h, i, j] with -inf where masked, v [b, h, j, c] and w of one part."""
    number, rows, keys = part
    q, k, v = (wide[name] for name in ("q", "k", "v"))
    group = q.shape[2] // k.shape[2]
    q = q[:, rows].transpose(1, 2)
    k, v = (each[:, keys].transpose(1, 2).repeat_interleave(group, 1) for each in (k, v))
    b, h, s_q, d = q.shape
    s_kv, scale, cap = k.shape[2], inputs.get("scale", d**-0.5), inputs.get("softcap")
    assert isinstance(scale, float)
    s = torch.einsum("bhid,bhjd->bhij", q, k) * scale
    if isinstance(cap, float):
        s = cap * torch.tanh(s / cap)
    if "bias" in wide:
        s = s + wide["bias"]
    if "alibi_slopes" in inputs:
        shift = s_kv - s_q if inputs.get("corner") == "bottom_right" else 0
        away = (torch.arange(s_q)[:, None] + shift - torch.arange(s_kv)).abs()
        s = s - _tensor(inputs, "alibi_slopes").double()[:, None, None] * away
    mask = torch.tensor(_mask(inputs, s_q, s_kv), dtype=torch.bool).view(s_q, s_kv)
    w = torch.ones_like(s)
    p, seed = inputs.get("dropout_p"), inputs.get("dropout_seed")
    if isinstance(p, float) and isinstance(seed, int):
        blocks = (number + torch.arange(b))[:, None] * h + torch.arange(h)
        w = keep_mask(seed, p, blocks, torch.arange(s_q), range(s_kv)).double() / (1 - p)
    return s.masked_fill(~mask, -torch.inf), v, w


def plain_forward(inputs: Inputs, wide: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """out [b, s_q, h_q, d_v] and lse [b, h_q, s_q], by the definition."""
    outs, lses = [], []
    for part in _parts(inputs):
        s, v, w = _part_scores(inputs, wide, part)
        if "sink" in wide:
            column = wide["sink"][:, None, None].expand(*s.shape[:3], 1)
        else:
            column = torch.full((*s.shape[:3], 1), -torch.inf, dtype=torch.float64)
        both = torch.cat([s, column], -1)
        empty = (both == -torch.inf).all(-1, keepdim=True)
        p = torch.softmax(both.masked_fill(empty, 0), -1)[..., :-1].masked_fill(s == -torch.inf, 0)
        outs.append((w * p @ v).transpose(1, 2))
        lses.append(torch.logsumexp(both, -1))
    return torch.cat(outs, 1), torch.cat(lses, 2)


def _close(got: Tensor | None, expected: Tensor, what: object) -> None:
    assert got is not None and got.dtype == torch.float64
    assert got.shape == expected.shape
    finite = expected.isfinite()
    assert torch.equal(got.masked_fill(finite, 0), expected.masked_fill(finite, 0)), what
    scale = expected[finite].abs().max() if bool(finite.any()) else torch.tensor(0.0)
    error = (got - expected)[finite].abs()
    assert (error <= TOLERANCE * scale).all(), (what, float(error.max() / scale))


@pytest.mark.parametrize("options", SETS)
def test_oracle_agrees_with_autograd(options: str) -> None:
    """Forward and gradients end to end, of each set of options on two shapes."""
    for turn, shape in enumerate(SHAPES):
        case = _case(GRADIENTS, options, shape, turn + len(options))
        inputs = inputs_of(case, CPU)
        wide = _wide(inputs, "q", "k", "v", "bias", "sink")
        out, lse = plain_forward(inputs, wide)
        got = forward(case, inputs)
        _close(got["out"], out.detach(), options)
        _close(got["lse"], lse.detach(), options)
        (out * _tensor(inputs, "do").double()).sum().backward()
        made = gradients(case, inputs)
        assert {name for name, value in made.items() if value is not None} == set(forms(case))
        for name, leaf in wide.items():
            assert leaf.grad is not None
            _close(made[f"d{name}"], leaf.grad, (options, name))


@pytest.mark.parametrize("options", SETS)
def test_backward_is_the_closed_form_in_the_lse_and_out_that_are_given(options: str) -> None:
    """P = exp(S - lse) isn't renormalised, and D is do.out: lse and out are off by a tenth here.

    With lse, D and dP held constant, dS is the derivative of sum_ij exp(S_ij - lse_i)
    (w_ij dP_ij - D_i) by S, and dv that of sum_ij w_ij P_ij do_i.v_j by v.
    """
    case = _case(BACKWARD, options, SHAPES[0], len(options))
    inputs = inputs_of(case, CPU)
    lse, out = _tensor(inputs, "lse"), _tensor(inputs, "out")
    inputs["lse"], inputs["out"] = lse + 0.1 * lse.nan_to_num(neginf=0).sin(), out * 1.1
    wide = _wide(inputs, "q", "k", "v", "bias", "sink")
    do, d = _tensor(inputs, "do").double(), delta(case, inputs)["delta"]
    rows = _tensor(inputs, "lse").double()
    assert d is not None
    total = torch.zeros((), dtype=torch.float64)
    for part in _parts(inputs):
        s, v, w = _part_scores(inputs, wide, part)
        own, d_own, do_own = rows[:, :, part[1]], d[:, :, part[1]], do[:, part[1]].transpose(1, 2)
        p = torch.exp(s - own.masked_fill(own == -torch.inf, 0)[..., None])
        dp = (do_own @ v.mT).detach()
        total = total + (p * (w * dp - d_own[..., None])).sum()
        total = total + (w * p.detach() * (do_own @ v.mT)).sum()
    if "sink" in wide:
        total = total - (torch.exp(wide["sink"][:, None] - rows) * d).sum()
    total.backward()
    made = backward(case, inputs)
    for name, leaf in wide.items():
        assert leaf.grad is not None
        _close(made[f"d{name}"], leaf.grad, (options, name))


def test_every_option_is_tried() -> None:
    """The sets above hold every option that has a keyword on a CPU."""
    tried = {option for each in SETS for option in each.split()}
    assert tried == set(OPTIONS) - {"gqa", "unequal_d", "torch_dropout"}


def test_delta_is_the_product_of_rows() -> None:
    """delta [b, h, s] of out and do [b, s, h, d_v]."""
    case = _case(BACKWARD, "", SHAPES[0])
    inputs = inputs_of(case, CPU)
    out, do = (_tensor(inputs, name).double() for name in ("out", "do"))
    _close(delta(case, inputs)["delta"], torch.einsum("bshd,bshd->bhs", out, do), "delta")


@pytest.mark.parametrize("elements", [7, 60, 300])
@pytest.mark.parametrize("options", ["", "causal bottom_right", "window", "varlen", EVERY_BIAS])
def test_pieces_change_nothing(
    options: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of one row, of some rows, of some heads and of some batches give the same sums."""
    options = f"{options} dropout sink alibi"
    case = _case(GRADIENTS, options, (3, 4, 2, 13, 22, 5, 3), 1)
    inputs = inputs_of(case, CPU)
    whole = {**forward(case, inputs), **gradients(case, inputs)}
    counted = len(list(scores.Problem.of(case, inputs).pieces()))
    monkeypatch.setitem(scores._PIECE_ELEMENTS, "cpu", elements)
    pieces = list(scores.Problem.of(case, inputs).pieces())
    assert len(pieces) > counted
    for name, value in {**forward(case, inputs), **gradients(case, inputs)}.items():
        expected = whole[name]
        assert (value is None) == (expected is None)
        if value is not None and expected is not None:
            finite = expected.isfinite()
            assert torch.equal(finite, value.isfinite())
            scale = expected[finite].abs().max()
            assert ((value - expected)[finite].abs() <= 1e-14 * scale).all(), name


@pytest.mark.parametrize("name", ["q", "k", "v", "do", "out"])
def test_oracle_takes_any_strides(name: str) -> None:
    """The (b, h, s, d) view of each tensor, and one with gaps, give what a packed one does."""
    case = _case(BACKWARD, "causal", SHAPES[0])
    inputs = inputs_of(case, CPU)
    packed = {key: value for key, value in inputs.items() if key != name}
    value = _tensor(inputs, name)
    apart = torch.full((*value.shape[:3], value.shape[3] * 2), torch.nan)[..., ::2]
    heads_first = value.transpose(1, 2).contiguous().transpose(1, 2)
    for other in (apart.copy_(value), heads_first):
        assert not other.is_contiguous()
        for oracle in (forward, backward, delta):
            made = oracle(case, {**packed, name: other})
            for key, expected in oracle(case, inputs).items():
                if expected is not None:
                    _close(made[key], expected, key)


@pytest.mark.parametrize("op", [FORWARD, BACKWARD, GRADIENTS])
@pytest.mark.parametrize(
    "shape", [(2, 4, 2, 0, 5, 4, 3), (2, 4, 2, 5, 0, 4, 3), (0, 4, 2, 5, 6, 4, 3)]
)
def test_empty_cases_have_empty_or_zero_outputs(op: str, shape: tuple[int, ...]) -> None:
    """s_q, s_kv or b of 0: what is left of out and gradients is 0, and lse -inf."""
    case = attention_case(op, shape, torch.float32, "ci", options="bias")
    outputs = OPS[op].oracle(case, inputs_of(case, CPU))
    for name, form in forms(case).items():
        value = outputs[name]
        assert value is not None and tuple(value.shape) == form.shape
        assert (value == (-torch.inf if name == "lse" else 0)).all(), name
