"""Truth, bounds and emulation of a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.choices import Choice, choice_of
from kernel_workbench.oracles.analysis.propagation import (
    Pair,
    Propagation,
    count_sums,
    output_nodes,
    range_of,
)
from kernel_workbench.oracles.analysis.quantities import (
    Combination,
    Quantity,
    added_up,
    largest,
    number,
)
from kernel_workbench.oracles.analysis.replay import (
    addends,
    count_operations,
    largest_ratio,
    spread,
)
from kernel_workbench.oracles.analysis.scales import scale_of_rows, scales, select_rows
from kernel_workbench.oracles.analysis.stochastic import count_numbers, errors, shows_more
from kernel_workbench.oracles.analysis.trace import (
    DECIDES,
    ROUNDS,
    NoRuleError,
    Reference,
    UndecidedError,
    describe,
    line_of,
    made_in,
    run,
    stored_by,
    tensors_of,
    trace,
)
from kernel_workbench.oracles.op import Bound, Numerics
from kernel_workbench.oracles.rounding import EPS_EXP, FLUSHED, UNIT_ROUNDOFF, tf32, whole_products

SAYS_NOTHING = 0.3  # of an output's scale: a third of it could be left out
_BLOCK = 64  # rows that stay in a cache
_LOOSE = 32  # times what the longest sum may be off by: replays are to look at such errors
# Root mean squares of a few replays: bounds of more replays are some 10 to 80, and take 30 runs.
_LOOSE_OF_REPLAYS, _WITHIN_REPLAYS = 128, 6
_QUICK = 2**20  # numbers of a graph; of more, replays have to gain more for their time
_FEW = 1024  # times fewer elements: the replays of all would take longer than they are worth
_SEVERAL = 4  # one in so many elements: after a relu half of them are 0
_ROW = 8  # numbers, of which a root mean square says what is typical
_SOME = 2**13  # of an output's numbers, evenly spaced: whether most are so is asked of them
_UNDERFLOW = 2.0**-100  # below that, what is lost is underflow
_aten = torch.ops.aten
_LAST, _FIRST = slice(-2, None), slice(2)
# Where the operands are that tensor cores cut, of operations that have some.
_OPERANDS = {
    _aten.mm.default: _LAST,
    _aten.bmm.default: _LAST,
    _aten.mv.default: _LAST,
    _aten.dot.default: _LAST,
    _aten.addmm.default: _LAST,
    _aten.baddbmm.default: _LAST,
    _aten.matmul.default: _LAST,
    _aten.convolution.default: _FIRST,
    _aten.convolution_backward.default: slice(3),
}
_EXPONENTIALS = {
    *(_aten.exp.default, _aten.exp2.default, _aten.sigmoid.default, _aten.silu.default),
    _aten._softmax.default,  # noqa: SLF001
}


def _tanh(x: Tensor) -> Tensor:
    """Return tanh by an exponential, which loses more than tanh near 0."""
    return torch.copysign(1 - 2 / ((2 * x.abs()).exp() + 1), x)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return GELU, by this form of tanh where it is by a tanh."""
    if approximate == "none":
        return torch.nn.functional.gelu(x)
    return x * (1 + _tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))) / 2


def _on_a_grid(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a function's values with an absolute error, as a GPU's fast sine has it."""
    return (function(x) * 2**20).round() * 2.0**-20


# The least exact forms that kernels use in fp32. The bounds have room for them.
_FORMS: dict[object, Callable[..., Tensor]] = {
    _aten.tanh.default: _tanh,
    _aten.gelu.default: _gelu,
    _aten.sin.default: partial(_on_a_grid, torch.sin),
    _aten.cos.default: partial(_on_a_grid, torch.cos),
}


def truth(reference: Reference, inputs: Mapping[str, object]) -> tuple[Tensor, ...]:
    """The reference's outputs in float64: casts inside of it run in float64 as well."""
    return run(reference, inputs, torch.float64)


def _activations(inputs: Mapping[str, object]) -> torch.dtype:
    """Return the dtype of the first floating-point argument: marked casts go to it."""
    dtypes = (input_.dtype for input_ in inputs.values() if isinstance(input_, Tensor))
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)


def bounds(
    reference: Reference,
    inputs: Mapping[str, object],
    numerics: Numerics,
    out_dtypes: Sequence[torch.dtype],
    *,
    results: int | None = None,
    with_replays: bool = True,
) -> tuple[Bound, ...]:
    """Return how far a kernel with these numerics may be from the truth, output by output.

    Args:
        reference: the torch function that defines the op.
        inputs: its keyword arguments.
        numerics: the arithmetic that the kernel declares.
        out_dtypes: the dtype of each output.
        results: how many numbers the probable form holds for together; None counts the sums.
        with_replays: run the reference again with random roundings where the bounds that follow
            operation by operation are loose. Without, such bounds stay loose.

    Returns:
        A bound for each output, in float64 and in the output's shape.

    Raises:
        NoRuleError: an operation has no rule; the message has the reference's line.
    """
    graph = _ordered(reference, inputs)
    walk = _walk(graph, reference, inputs, numerics, results)
    sure, likely = walk.sure, walk.likely
    values = tuple(map(tensors_of(inputs, torch.float64).__getitem__, graph.meta["names"]))
    constants = stored_by(graph)
    with torch.no_grad(), made_in(torch.float64):
        kept: dict[Node, Tensor] = {}
        nodes = output_nodes(graph.graph)
        choices = {node: choice_of(node) for node in nodes if _is_whole(node)}
        chosen_from: dict[Node, Pair | None] = dict.fromkeys(
            choice.source for choice in choices.values() if choice is not None
        )
        decided = any(node.target == DECIDES for node in graph.graph.nodes)
        try:
            pairs = walk(constants, values, kept, chosen_from)
        except UndecidedError:
            return tuple(map(_undecided, nodes))
        longest = addends(graph.graph)
        most = largest_ratio(graph.graph, longest)
        least = min(most, _LOOSE) * ((likely or sure).growth(longest) + EPS_EXP)
        suspects = [
            _suspect(pair, dtype, least) if pair.value.is_floating_point() else (None, False)
            for pair, dtype in zip(pairs, out_dtypes, strict=True)
        ]
        kept.update((node, pair.value) for node, pair in zip(nodes, pairs, strict=True))
        large = {
            node: (pair, rows)
            for node, pair, (rows, _) in zip(nodes, pairs, suspects, strict=True)
            if rows is not None and not decided  # on other numbers its shapes may be others
        }
        silent = _silent_places(graph.graph, constants, values, kept, large)
        shown: list[Tensor] | None = None
        several = count_operations(graph.graph) > 1 and any(many for _, many in suspects)
        if with_replays and several and not decided:
            shown = spread(walk, constants, values)
        results_, last_dtypes = [], []
        for index, (pair, dtype, node) in enumerate(zip(pairs, out_dtypes, nodes, strict=True)):
            if not pair.value.is_floating_point():
                where = line_of(node, reference)
                results_.append(_of_choice(pair, choices[node], chosen_from, where))
                last_dtypes.append(dtype)
                continue
            # A reference may cast its output itself, by a mark, which is then the last cast.
            is_cast = node.target == ROUNDS and node.args[1:] == ("", dtype)
            last = torch.float64 if is_cast else dtype
            bound = _bound(pair, last, sure, likely, silent.get(node))
            if shown is not None:
                bound = _looser(bound, pair, last, shown[index] * most, sure)
            results_.append(bound)
            last_dtypes.append(last)
        may_replay = with_replays and likely is not None and not decided and shows_more(graph.graph)
        limits = _limits_of_looseness(graph.graph, shown) if may_replay and shown else None
        loose = [
            limits is not None and pair.value.is_floating_point() and _is_loose(pair, limits[index])
            for index, pair in enumerate(pairs)
        ]
        wanted = any(loose) or (
            may_replay
            and any(
                _lacks_power(bound) and (shown is None or not _is_within(pair, shown[index]))
                for index, (bound, pair) in enumerate(zip(results_, pairs, strict=True))
            )
        )
        varying = errors(walk, constants, values) if wanted else None
        if varying is None:
            return tuple(results_)
        every = zip(results_, pairs, varying, last_dtypes, loose, strict=True)
        return tuple(
            _replayed(bound, pair, error, last, sure, takes_all=takes_all)
            if pair.value.is_floating_point()
            else bound
            for bound, pair, error, last, takes_all in every
        )


_TURNED = 1e-9  # of an output's largest number: sums in another order, and nothing else


def _ordered(reference: Reference, inputs: Mapping[str, object]) -> GraphModule:
    """Return the graph; raise NoRuleError if outputs depend on an order that `topk` leaves open."""
    graph = trace(reference, inputs)
    if not graph.meta["unordered"]:
        return graph
    results = (run(reference, inputs, torch.float64, turns=turns) for turns in (False, True))
    for one, other in zip(*results, strict=True):
        first, second = one.double().nan_to_num(), other.double().nan_to_num()
        most = float(first.abs().amax()) if first.numel() else 0.0
        if not torch.allclose(first, second, rtol=_TURNED, atol=_TURNED * most):
            raise NoRuleError(
                f"{describe(reference)} calls torch.topk with sorted=False, and an output depends "
                "on the order of what that returns; leave out sorted=False"
            )
    return graph


def _lacks_power(bound: Bound) -> bool:
    """Return True if more than a few elements lack power, or more than half of a row."""
    silent = bound.powerless
    if silent is None:
        return False
    silent = silent.expand(bound.deterministic.shape)
    if int(silent.sum()) * _FEW >= silent.numel() or not silent.dim():
        return True
    return bool((silent.sum(-1) * 2 > silent.shape[-1]).any())


def _walk(
    graph: GraphModule,
    reference: Reference,
    inputs: Mapping[str, object],
    numerics: Numerics,
    results: int | None,
) -> Propagation:
    """Return the walk over a graph of a kernel with these numerics."""
    sure = Arithmetic.of(numerics, _activations(inputs))
    likely = sure.probable(count_sums(graph.graph) if results is None else results)
    tensors = {name: input_ for name, input_ in inputs.items() if isinstance(input_, Tensor)}
    ranges = [
        None if numerics.gradual_underflow else range_of(tensors[name])
        for name in graph.meta["names"]
    ]
    return Propagation(graph.graph, ranges, sure, likely, partial(line_of, reference=reference))


def _undecided(node: Node) -> Bound:
    """Return the bound of an output where a kernel may go another way: it says nothing."""
    widest = torch.full(node.meta["val"].shape, LARGEST, dtype=torch.float64)
    return Bound(widest, None, torch.ones((), dtype=torch.bool))


def _of_choice(
    pair: Pair, choice: Choice | None, sources: Mapping[Node, Pair | None], where: str
) -> Bound:
    """Return the bound of whole numbers: indices are judged by the numbers that they choose."""
    numbers = None if choice is None else sources[choice.source]
    if choice is None or numbers is None:
        return _of_whole(pair, where)
    return choice.bound(numbers, pair.value)


def _is_whole(node: Node) -> bool:
    """Return True if a node's result is a tensor of whole numbers or of bools."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and not value.is_floating_point()


def _of_whole(pair: Pair, where: str) -> Bound:
    """Return how far whole numbers or truth values, that are no indices, may be from the truth."""
    error = pair.with_error(pair.sure).error
    if error is None:
        return Bound(torch.zeros_like(pair.value, dtype=torch.float64), None)
    error = error.double().expand(pair.value.shape)
    if error.numel() and bool(error.isinf().all()):
        raise NoRuleError(
            f"{where}: it computes with indices of rounded numbers, of which a kernel may have "
            "others; return the indices as they are"
        )
    return Bound(error.contiguous(), None)


def _error_of(pair: Pair) -> Tensor:
    error = pair.before.error
    assert error is not None
    return error


def _suspect(
    pair: Pair, dtype: torch.dtype, least: float
) -> tuple[tuple[Tensor, ...] | None, bool]:
    """Rows in which an error is as large as its value, and whether replays are to look at errors.

    They are where a quarter is `least` of their values, and larger than the last cast's.
    """
    before = pair.before
    least = max(least, UNIT_ROUNDOFF.get(dtype, 0))
    if _relative(before) <= min(least, SAYS_NOTHING):
        return None, False
    if before.error is None or not before.error.numel():
        return None, False
    error, size = before.error, before.size
    some = slice(None, None, max(error.numel() // _SOME, 1))
    many = error.flatten()[some] - size.flatten()[some] * least > _UNDERFLOW
    several = int(many.count_nonzero()) > many.numel() / _SEVERAL
    blocks = zip(error.split(_BLOCK), size.split(_BLOCK), strict=True) if error.dim() > 1 else ()
    parts = [torch.sub(*block, alpha=SAYS_NOTHING).amax(-1) for block in blocks]  # in the cache
    above = torch.cat(parts) if parts else torch.sub(error, size, alpha=SAYS_NOTHING).amax(-1)
    is_large = ~(above <= SAYS_NOTHING * _UNDERFLOW)  # NaN is above
    rows = is_large.nonzero(as_tuple=True) if above.dim() else ()
    return (rows if (rows[0].numel() if rows else bool(is_large)) else None), several


def _relative(quantity: Quantity) -> float:
    """Return an upper limit of the error over the value's magnitude, but for underflow."""
    error = quantity.lazy_error
    if isinstance(error, Combination):
        own, remainder = error.apart()
        if not remainder.terms and largest(remainder.rest) <= _UNDERFLOW * SAYS_NOTHING:
            return largest(own)
    result: float = quantity.of_value.get("relative", torch.inf)
    return result


def _silent(error: Tensor, size: Tensor) -> Tensor | None:
    """Where a bound says nothing of what has this size; None: nowhere."""
    if not size.numel():
        return None
    most = float(torch.sub(error, size, alpha=SAYS_NOTHING).amax())
    if most <= SAYS_NOTHING * _UNDERFLOW:  # NaN is above
        return None
    silent = error > (size + _UNDERFLOW).mul_(SAYS_NOTHING).nan_to_num_(posinf=LARGEST)
    return silent if bool(silent.any()) else None


def _looser(bound: Bound, pair: Pair, dtype: torch.dtype, shown: Tensor, sure: Arithmetic) -> Bound:
    """The bound, without power where it is above what replays show, and the last cast."""
    error = bound.deterministic if bound.probabilistic is None else bound.probabilistic
    silent = error > _rounded(pair.with_error(shown + _UNDERFLOW), dtype, sure)
    silent &= error.isfinite()
    if not bool(silent.any()):
        return bound
    before = bound.powerless
    return replace(bound, powerless=silent if before is None else silent | before)


def _replayed(
    bound: Bound,
    pair: Pair,
    error: Tensor | None,
    dtype: torch.dtype,
    sure: Arithmetic,
    *,
    takes_all: bool,
) -> Bound:
    """The bound, with what replays say where the other forms have no power, or everywhere.

    Nor has it any where it is above a part of what the numbers of a row come to: of a deep network
    a scale grows with each layer, as bounds do.
    """
    silent, before = bound.powerless, bound.probabilistic
    if (silent is None and not takes_all) or error is None or before is None:
        return bound
    silent = torch.zeros_like(error, dtype=torch.bool) if silent is None else silent
    sharper = (silent | takes_all) & (error < _error_of(pair))
    after = _rounded(pair.with_error(error), dtype, sure)
    left = silent & ~(sharper & (error <= _typical(pair.value) * SAYS_NOTHING + _UNDERFLOW))
    return replace(
        bound,
        probabilistic=torch.where(sharper, torch.minimum(after, before), before),
        powerless=left if bool(left.any()) else None,
        replayed=sharper if bool(sharper.any()) else None,
    )


def _limits_of_looseness(graph: Graph, shown: Sequence[Tensor]) -> list[Tensor]:
    """Return the errors beyond which more replays gain enough for their time, output by output."""
    times = _LOOSE_OF_REPLAYS * max(1.0, count_numbers(graph) / _QUICK)
    return [error * times for error in shown]


def _is_loose(pair: Pair, limit: Tensor) -> bool:
    """Tell whether a quarter of the errors is above a limit."""
    if pair.before.error is None:
        return False
    above = pair.before.error > limit + _UNDERFLOW
    return int(above.count_nonzero()) > above.numel() / _SEVERAL


def _is_within(pair: Pair, shown: Tensor) -> bool:
    """Tell whether every error is close to those of a few replays: more of them say no less."""
    error = pair.before.error
    return error is None or bool((error <= shown * _WITHIN_REPLAYS + _UNDERFLOW).all())


def _typical(value: Tensor) -> Tensor:
    """The larger of a magnitude and its row's root mean square; of few numbers all are a row."""
    finite = value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).square()
    axes = -1 if value.dim() and value.shape[-1] >= _ROW else tuple(range(value.dim()))
    return finite.mean(axes, keepdim=True).sqrt_().maximum(value.abs())


def _silent_places(
    graph: Graph,
    constants: Mapping[str, Tensor],
    values: Sequence[Tensor],
    kept: Mapping[Node, Tensor],
    large: Mapping[Node, tuple[Pair, tuple[Tensor, ...]]],
) -> dict[Node, Tensor | None]:
    """Return where bounds of outputs say nothing, of which some rows may have such places."""
    result: dict[Node, Tensor | None] = {}
    rest = []
    for node, (pair, rows) in large.items():
        size = scale_of_rows(graph, constants, values, kept, node, rows)
        if size is None:
            rest.append(node)
            continue
        silent = _silent(select_rows(_error_of(pair), rows), size)
        if silent is not None:
            mask = torch.zeros_like(pair.value, dtype=torch.bool)
            mask[rows] = silent
            result[node] = mask
    for node, size in scales(graph, constants, values, kept, rest).items() if rest else ():
        result[node] = _silent(_error_of(large[node][0]), size)
    return result


def _bound(
    pair: Pair,
    dtype: torch.dtype,
    sure: Arithmetic,
    likely: Arithmetic | None,
    powerless: Tensor | None,
) -> Bound:
    quantity = pair.with_error(pair.sure)
    deterministic, probable = _rounded(quantity, dtype, sure), None
    if likely is not None:
        same = pair.likely is pair.sure
        other = replace(quantity, lazy_error=pair.likely)  # what was made of the value alone stays
        probable = deterministic if same else _rounded(other, dtype, sure)
    if pair.plain or (deterministic.numel() and float(deterministic.amax()) < torch.inf):
        return Bound(deterministic, probable, powerless)
    return _with_power(deterministic, probable, powerless)


def _with_power(sure: Tensor, likely: Tensor | None, powerless: Tensor | None) -> Bound:
    """Return a bound whose deterministic form is finite where the probable form is.

    An element of an infinite bound isn't judged. An output of which nothing is known has a finite
    bound without power instead, so that it doesn't pass, and any number or NaN is right there: a
    sum that overflows may be inf - inf.
    """
    unknown = sure.isinf()
    probable = unknown & likely.isfinite() if likely is not None else torch.zeros_like(unknown)
    if bool(probable.any()):
        return Bound(sure.masked_fill(probable, LARGEST), likely, powerless)
    if not unknown.numel() or not bool(unknown.all()):
        return Bound(sure, likely, powerless)
    return Bound(sure.masked_fill(unknown, LARGEST), likely, powerless, or_nan=unknown)


def _rounded(quantity: Quantity, dtype: torch.dtype, arithmetic: Arithmetic) -> Tensor:
    """Return the error after the last cast; NaN where the value isn't finite."""
    quantity = number(quantity)
    after = added_up(
        arithmetic.cast(quantity, dtype) if dtype in UNIT_ROUNDOFF else quantity.lazy_error
    )
    if after is None:
        after = torch.zeros_like(quantity.value)
    if quantity.once_of_value("finite", lambda: _is_finite(quantity.size)):
        return after
    return after.masked_fill(~quantity.value.isfinite() & (after != torch.inf), torch.nan)


def _is_finite(size: Tensor) -> bool:
    return not size.numel() or float(size.amax()) < torch.inf


class _Kernel(TorchDispatchMode):
    """The casts that a kernel makes, operands of products as it reads them, forms of functions.

    A GPU's fast exponentials have no subnormals.
    """

    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arithmetic = arithmetic

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run an operation of aten's."""
        del types
        if func == ROUNDS:
            x, name, dtype = args
            to = self.arithmetic.dtype if dtype is None else dtype
            return x.to(to).to(x.dtype) if self.arithmetic.casts(name) else x.clone()
        if func in _OPERANDS and self.arithmetic.numerics.tf32_operands:
            cut = list(args)
            cut[_OPERANDS[func]] = map(tf32, args[_OPERANDS[func]])
            args = tuple(cut)
        form: Callable[..., Any] = _FORMS.get(func, func)
        result = form(*args, **(kwargs or {}))
        if func in _EXPONENTIALS and not self.arithmetic.numerics.gradual_underflow:
            result.masked_fill_(result.abs() < FLUSHED, 0)
        return result


def emulate(
    reference: Reference,
    inputs: Mapping[str, object],
    numerics: Numerics,
    out_dtypes: Sequence[torch.dtype],
) -> tuple[Tensor, ...]:
    """Return the reference's outputs in fp32 with the casts of the numerics, each in its dtype.

    The arguments are those of `bounds`.
    """
    with whole_products(), _Kernel(Arithmetic.of(numerics, _activations(inputs))):
        outputs = run(reference, inputs, torch.float32)
    return tuple(
        output.detach().to(dtype) for output, dtype in zip(outputs, out_dtypes, strict=True)
    )
