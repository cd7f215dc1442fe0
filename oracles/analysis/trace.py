"""A reference run in another precision, and as a graph of aten operations in float64.

The graph is made without values (on fake tensors), in two steps: the first runs the reference, with
autograd under it where it asks for gradients; the second takes out operations in place, and lowers
compositions (`silu`, `native_layer_norm`) to operations that have rules.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from traceback import walk_tb
from typing import Any, Literal

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx import traceback as lines
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import has_side_effect
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, _get_current_function_mode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from kernel_workbench.oracles.analysis.lowered import LOWERED

Reference = Callable[..., Tensor | tuple[Tensor, ...]]
_aten = torch.ops.aten
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HALVES = {Tensor.half: torch.float16, Tensor.bfloat16: torch.bfloat16}
CODES = torch.float8_e4m3fn
_MARKED = (*_HALVES.values(), CODES)
_CONVERSIONS = (Tensor.to, Tensor.type)
_DTYPE_OF = Tensor.dtype.__get__  # type: ignore[attr-defined]
_DEFAULT_DTYPE = threading.RLock()


class NoRuleError(ValueError):
    """A reference that can't be analysed: says which operation, and in which line."""


def _marked(x: Tensor, name: str, dtype: torch.dtype | None) -> Tensor:
    """Return a copy of x, the mark of a cast; `name` "" stands for a cast of every kernel."""
    del name, dtype
    return x.clone()


# `torch.library.custom_op` would import torch._dynamo at the first call, for a second.
_LIBRARY = torch.library.Library("workbench", "DEF")
_LIBRARY.define("rounds(Tensor x, str name, ScalarType? dtype) -> Tensor")
_LIBRARY.impl("rounds", _marked, "CompositeExplicitAutograd")
ROUNDS = torch.ops.workbench.rounds.default


def _keep(ctx: Any, inputs: tuple[Tensor, str, torch.dtype | None], output: Tensor) -> None:  # noqa: ANN401
    del output
    ctx.mark = inputs[1:]


def _gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
    """The gradient of what is marked p may be cast likewise, and is marked dp."""
    name, dtype = ctx.mark
    return ROUNDS(gradient, f"d{name}", dtype) if name else gradient, None, None


torch.library.register_autograd("workbench::rounds", _gradient, setup_context=_keep, lib=_LIBRARY)


def rounds(x: Tensor, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """x, where a kernel may cast it on its way: those do whose `Numerics.casts` names it.

    dtype: what it is cast to; None: the dtype of the op's first argument that is floating-point.
    Its gradient is marked likewise, with a d before the name.
    """
    marked: Tensor = ROUNDS(x, name, dtype)
    return marked


class UndecidedError(Exception):
    """A reference goes by numbers, as in a branch, that a kernel may have otherwise."""


def _deciding(x: Tensor) -> Tensor:
    """Return a copy of x, the mark of a tensor that a reference goes by the values of."""
    return x.clone()


_LIBRARY.define("decides(Tensor x) -> Tensor")
_LIBRARY.impl("decides", _deciding, "CompositeExplicitAutograd")
DECIDES = torch.ops.workbench.decides.default
has_side_effect(DECIDES)  # nothing reads its result


class _Marks(TorchDispatchMode):
    """Marks the tensors that branches, shapes and numbers of Python follow from."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run an operation of aten's."""
        del types
        tags: Any = func.tags  # type: ignore[attr-defined]
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            for x in tree_leaves((args, kwargs)):
                if isinstance(x, Tensor) and (func not in _BY_MASKS or x.dtype == torch.bool):
                    DECIDES(x)
        return func(*args, **(kwargs or {}))


def goes_by_values(reference: Reference) -> bool:
    """Say whether a reference may go by its arguments' values, as one of others' may."""
    return bool(getattr(reference, "goes_by_values", False))


def attention_by_operations() -> AbstractContextManager[None]:
    """Have PyTorch's attention computed by products and a softmax, which have rules.

    PyTorch may call a kernel for it otherwise, whose operation is marked as random even where
    nothing is dropped.
    """
    return sdpa_kernel(SDPBackend.MATH)


# Without eps these functions use fp32's eps up to fp32; float64, the truth's dtype, has another.
_RMS_NORMS = {torch.nn.functional.rms_norm, torch.rms_norm}
_EPS_OF_RMS_NORM = torch.finfo(torch.float32).eps


class Precision(TorchFunctionMode):
    """Floating-point tensors are made and kept in one dtype, whatever a reference asks for.

    A cast to a half, or to fp8, is marked, as one that every kernel makes. Nodes of a graph are
    told by the line of `file` that runs. declared: by the id of a tensor, the dtype that code of
    `file` is told of it, so that a cast to an argument's dtype is one to the dtype that a kernel is
    given. turns: numbers of a `topk` that promises no order come the least first, not the largest;
    `unordered` counts such calls.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        file: str = "",
        declared: Mapping[int, torch.dtype] | None = None,
        *,
        turns: bool = False,
    ) -> None:
        super().__init__()
        self.dtype, self.file, self.declared, self.turns = dtype, file, declared or {}, turns
        self.unordered = 0
        self.followed: set[Any] = set()  # nodes of autograd

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run a function of torch's with other dtypes."""
        del types
        mark = self._tell(func) if self.file else ""
        result = self._run(func, args, dict(kwargs or {}))
        if mark:
            self._follow(result, mark)
        return result

    def _run(
        self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> object:
        if getattr(func, "namespace", "") == ROUNDS.namespace:
            return func(*args, **named)
        if func == _DTYPE_OF and id(args[0]) in self.declared:
            asks = sys._getframe(2).f_code.co_filename  # noqa: SLF001  # torch itself asks, too
            if asks == self.file:
                return self.declared[id(args[0])]
        if func in _HALVES:
            return rounds(args[0].to(self.dtype), "", _HALVES[func])
        if func in {Tensor.float, Tensor.double}:
            return args[0].to(self.dtype)
        if func in _RMS_NORMS and (*args, *[None] * 4)[3] is None and named.get("eps") is None:
            args, named["eps"] = args[:3], _EPS_OF_RMS_NORM
        if func is Tensor.view and (to := _dtype_among(args[1:], named)) is not None:
            return self._bits_as(args[0], to)
        is_outer = not isinstance(_get_current_function_mode(), Precision)
        if (
            is_outer
            and func in _TOPK
            and (named.get("sorted") is False or (*args, *[True] * 5)[4] is False)
        ):
            self.unordered += 1
            result = func(*args[:4], **{**named, "sorted": True})
            axis = named.get("dim", (*args, *[-1] * 5)[2])
            return tuple(x.flip(axis) for x in result) if self.turns else result
        if func in _CONVERSIONS:
            marked = [argument for argument in (*args[1:], *named.values()) if argument in _MARKED]
            if marked:
                return rounds(args[0].to(self.dtype), "", marked[0])

        def kept(argument: object) -> object:
            return (
                self.dtype
                if isinstance(argument, torch.dtype) and argument in _FLOATS
                else argument
            )

        if func in _INDEXED and not _is_held(args[0]):
            args = (args[0], _by_places(args[1]), *args[2:])
        # Whole numbers that a graph has as they are: what follows from them is known, too.
        with _disable_current_modes() if _has_values(args, named) else nullcontext():
            return func(*map(kept, args), **{name: kept(value) for name, value in named.items()})

    def _bits_as(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return whole numbers' bits read as another dtype; real numbers' bits are a kernel's."""
        if x.is_floating_point() and (dtype.is_floating_point or x.dtype == dtype):
            return x
        if x.is_floating_point():
            raise NoRuleError("reads the bits of real numbers, of which a kernel may have others")
        with _disable_current_modes() if _has_values((x,), {}) else nullcontext():
            bits = x.view(dtype)
            return bits.to(self.dtype) if dtype in _FLOATS else bits

    def _tell(self, func: Callable[..., Any]) -> str:
        """Mark the nodes to come with a line of the file and the function that it calls.

        Returns:
            The mark; empty where no line of the file runs.

        """
        frame = sys._getframe(2)  # noqa: SLF001  # the one way to the caller's line
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                mark = f"{self.file}:{frame.f_lineno}{_NAMED}{name_of(func)}"
                lines.set_stack_trace([mark])
                return mark
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def _follow(self, result: object, mark: str) -> None:
        """Have the gradients of what a function computed marked as that function's."""
        roots = [x.grad_fn for x in tree_leaves(result) if isinstance(x, Tensor)]
        named = mark.replace(_NAMED, f"{_NAMED}the gradient of ")
        while roots:
            root = roots.pop()
            if root is None or root in self.followed:
                continue
            self.followed.add(root)
            root.register_prehook(lambda *_: lines.set_stack_trace([named]))
            roots += [before for before, _ in root.next_functions]


_NAMED = "\t"  # between a line and the function that it calls


@cache
def name_of(func: Callable[..., Any]) -> str:
    """Name a function of torch's as a user writes it."""
    name = str(resolve_name(func) or getattr(func, "__name__", func))
    return name.removesuffix(".__get__")


def _dtype_among(arguments: Sequence[object], named: Mapping[str, object]) -> torch.dtype | None:
    every = (*arguments, *named.values())
    return next((argument for argument in every if isinstance(argument, torch.dtype)), None)


_TOPK = {torch.topk, Tensor.topk}
_INDEXED = (Tensor.__getitem__, Tensor.__setitem__)


def _by_places(index: Any) -> Any:  # noqa: ANN401
    """Replace each mask that a graph has as it is by its places: their number is fixed then."""
    parts: list[object] = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, Tensor) and part.dtype == torch.bool and _is_held(part):
            with _disable_current_modes():
                parts += part.nonzero(as_tuple=True)
        else:
            parts.append(part)
    return tuple(parts) if isinstance(index, tuple) or len(parts) > 1 else parts[0]


def _is_whole(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def _has_values(args: object, named: object) -> bool:
    """Return True if a graph is made, and has all of these tensors as they are."""
    if detect_fake_mode() is None:
        return False
    tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
    return bool(tensors) and all(map(_is_held, tensors))


def _is_held(x: Tensor) -> bool:
    """Return True if a tensor holds whole numbers that a graph has as they are."""
    return type(x) is Tensor and _is_whole(x) and not torch._is_functional_tensor(x)  # noqa: SLF001


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Floating-point tensors are made in this dtype where none is asked for.

    The default dtype is the whole process's. Two threads that change it in turn would leave one's
    behind, and later random numbers would be others: so one thread at a time is in here.
    """
    with _DEFAULT_DTYPE:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _place(reference: Reference) -> tuple[str, int]:
    code = getattr(inspect.unwrap(reference), "__code__", None)
    return ("", 0) if code is None else (code.co_filename, code.co_firstlineno)


def tensors_of(inputs: Mapping[str, object], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the arguments that are tensors, with floating-point ones cast to `dtype`.

    Example:
        >>> tensors_of({"x": torch.ones(2), "eps": 1e-5}, torch.float64)
        {'x': tensor([1., 1.], dtype=torch.float64)}
    """
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
        if isinstance(value, Tensor)
    }


def run(
    reference: Reference,
    inputs: Mapping[str, object],
    dtype: torch.dtype,
    *,
    turns: bool = False,
) -> tuple[Tensor, ...]:
    """Return the reference's outputs, computed in `dtype`; turns: as `Precision` has it.

    Example:
        >>> run(lambda x: 2 * x, {"x": torch.ones(1)}, torch.float64)
        (tensor([2.], dtype=torch.float64),)
    """
    with made_in(dtype), Precision(dtype, turns=turns):
        result = reference(**{**inputs, **tensors_of(inputs, dtype)})
    return result if isinstance(result, tuple) else (result,)


# These are compositions of operations that have rules. Softmax and its like have their own rules.
_LOWERED = (
    *(_aten.silu, _aten.silu_backward, _aten.gelu, _aten.gelu_backward, _aten.sigmoid_backward),
    *(_aten.tanh_backward, _aten.threshold_backward, _aten.softplus, _aten.softplus_backward),
    *(_aten.leaky_relu, _aten.leaky_relu_backward, _aten.elu, _aten.elu_backward),
    *(_aten.hardtanh, _aten.hardtanh_backward, _aten.mish),
    *(_aten.log_sigmoid_forward, _aten.log_sigmoid_backward, _aten.glu, _aten.glu_backward),
    *(_aten.native_layer_norm, _aten.native_layer_norm_backward, _aten.native_group_norm),
    *(_aten._fused_rms_norm, _aten._fused_rms_norm_backward),  # noqa: SLF001  # torch's own names
    _aten._log_softmax_backward_data,  # noqa: SLF001
    *(_aten.nll_loss_forward, _aten.nll_loss_backward, _aten.mse_loss, _aten.mse_loss_backward),
    *(_aten.std_mean, _aten.linalg_vector_norm, _aten.norm),
    *(_aten.addcmul, _aten.addcdiv, _aten.lerp, _aten.rsub, _aten.embedding, _aten.addmv),
    *(_aten.embedding_dense_backward, _aten.select_backward, _aten.slice_backward),
    *(_aten.native_batch_norm, _aten.native_batch_norm_backward, _aten.native_group_norm_backward),
    *(_aten._native_batch_norm_legit, _aten._native_batch_norm_legit_no_training),  # noqa: SLF001
    _aten._native_batch_norm_legit_functional,  # noqa: SLF001
    *(_aten.smooth_l1_loss, _aten.smooth_l1_loss_backward, _aten.huber_loss),
    *(_aten.huber_loss_backward, _aten.xlogy, _aten.special_xlog1py, _aten.binary_cross_entropy),
    *(_aten.heaviside, _aten.special_entr),
    *(_aten.binary_cross_entropy_backward, _aten.celu, _aten.selu, _aten.softshrink),
    *(_aten._prelu_kernel, _aten._prelu_kernel_backward, _aten.hardshrink, _aten.logit),  # noqa: SLF001
    *(_aten.hardsigmoid_backward, _aten.hardswish_backward, _aten.mish_backward, _aten.addr),
    *(_aten.threshold, _aten.dist, _aten.trace, _aten.aminmax, _aten.deg2rad, _aten.ldexp),
    *(_aten.soft_margin_loss, _aten.multi_margin_loss, _aten.nansum, _aten.linalg_cross),
    *(_aten.index_fill, _aten.diag_embed, _aten.sinc),
    *(_aten.nll_loss2d_forward, _aten.nll_loss2d_backward, _aten.sgn, _aten.logit_backward),
    *(_aten.unfold_backward, _aten._euclidean_dist, _aten._weight_norm_interface),  # noqa: SLF001
    _aten._safe_softmax,  # noqa: SLF001
    _aten._unsafe_masked_index_put_accumulate,  # noqa: SLF001
    *(_aten.count_nonzero, _aten.renorm, _aten.affine_grid_generator, _aten.block_diag),
    *(_aten.max_unpool2d, _aten.max_unpool3d, _aten.multilabel_margin_loss_forward, _aten.mvlgamma),
)

# Their shapes follow from masks alone, where there are some.
_BY_MASKS = {_aten.index.Tensor, _aten.masked_select.default}

LOWERED_PACKETS = frozenset({*_LOWERED, *(target.overloadpacket for target in LOWERED)})

_MOST_KEPT = 256  # graphs
_MOST_SAID = 400  # characters of an error of torch's
_kept: dict[object, GraphModule] = {}
_by_values: set[object] = set()
_on_their_device: set[object] = set()  # references that can't be traced on the CPU
_CPU = torch.device("cpu")


def trace(reference: Reference, inputs: Mapping[str, object]) -> GraphModule:
    """Return the reference in float64 as a graph of aten operations of the tensors in `inputs`.

    The reference is traced on the CPU, where its operations are the same on every machine. A GPU
    has fused operations of its own, such as cuDNN's batch norm. Tensors that the graph creates are
    on the inputs' device. A reference that holds tensors of a GPU itself is traced on that GPU.

    Where it does what depends on whole numbers' values, as on where pages lie, the graph is of
    these, and of the other tensors alone: `meta["names"]`. It is kept for other inputs of the same
    shapes: to make one takes longer than a small case.
    """
    tensors = [input_ for input_ in inputs.values() if isinstance(input_, Tensor)]
    device = next((input_.device for input_ in tensors if input_.device.type != "cpu"), _CPU)
    if device == _CPU:
        return _graph_on(_CPU, reference, inputs)
    if reference not in _on_their_device:
        try:
            return _moved(_graph_on(_CPU, reference, inputs), device)
        except NoRuleError:
            _note(reference, _on_their_device)
    return _graph_on(device, reference, inputs)


def _graph_on(
    device: torch.device, reference: Reference, inputs: Mapping[str, object]
) -> GraphModule:
    """Return the graph of a reference that is traced on a device."""
    forms = (
        (input_.shape, input_.stride(), input_.dtype.is_floating_point or input_.dtype)
        if isinstance(input_, Tensor)
        else input_
        for input_ in inputs.values()
    )
    key: tuple[object, ...] = device, reference, tuple(inputs), *forms
    whole = {
        name: input_
        for name, input_ in inputs.items()
        if isinstance(input_, Tensor) and _is_whole(input_)
    }
    traced = partial(_traced, device, reference, inputs)
    if key not in _kept and reference not in _by_values:
        try:
            _keep_graph(key, traced(frozenset()))
        except NoRuleError:  # it may go by values of whole numbers, in one of many ways
            if not (whole or goes_by_values(reference)):
                raise
            _note(reference, _by_values)
    if key not in _kept:
        key = *key, *(tuple(numbers.flatten().tolist()) for numbers in whole.values())
        if key not in _kept:
            try:
                _keep_graph(key, traced(frozenset(whole)))
            except NoRuleError:
                if not goes_by_values(reference):
                    raise
                return traced(frozenset(whole), by_values=True)
    return _kept[key]


def _moved(graph: GraphModule, device: torch.device) -> GraphModule:
    """Return a graph of the CPU on another device, with what it stores and creates."""
    kept: dict[torch.device, GraphModule] = graph.meta.setdefault("moved", {})
    if device in kept:
        return kept[device]
    result, copies = Graph(), dict[Node, Node]()
    result.output(result.graph_copy(graph.graph, copies))
    for node in result.nodes:
        node.args = tuple(device if isinstance(x, torch.device) else x for x in node.args)
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": device}
    stored = {name: tensor.to(device) for name, tensor in stored_by(graph).items()}
    kept[device] = GraphModule(stored, result)
    kept[device].meta.update({name: graph.meta[name] for name in ("names", "unordered")})
    return kept[device]


def stored_by(graph: GraphModule) -> dict[str, Tensor]:
    """Return the tensors that a graph stores, by name."""
    tensors = {**dict(graph.named_buffers()), **dict(graph.named_parameters())}
    return tensors | {
        name: value for name, value in vars(graph).items() if isinstance(value, Tensor)
    }


def _note(reference: Reference, references: set[object]) -> None:
    """Add a reference to a set that doesn't keep alive all functions that a test suite makes."""
    if len(references) >= _MOST_KEPT:
        references.clear()
    references.add(reference)


def _keep_graph(key: object, graph: GraphModule) -> None:
    if len(_kept) == _MOST_KEPT:
        del _kept[next(iter(_kept))]
    _kept[key] = graph


def _traced(
    device: torch.device,
    reference: Reference,
    inputs: Mapping[str, object],
    constant: frozenset[str],
    *,
    by_values: bool = False,
) -> GraphModule:
    """Trace a reference; raise NoRuleError, with the line, where that can't be done.

    It draws random numbers then, changes its inputs, or does what depends on values. constant:
    tensors that the graph has as they are. by_values: the graph is of these inputs' values, and
    marks what it goes by.
    """
    # Copies: torch 2.13 ends the process where a graph's function asks for the numbers of a view.
    tensors = {
        name: _with_form_of(input_, device, with_numbers=by_values)
        for name, input_ in inputs.items()
        if isinstance(input_, Tensor) and name not in constant
    }
    names = tuple(tensors)
    rest = {name: input_ for name, input_ in inputs.items() if name not in tensors}
    rest = tree_map_only(Tensor, lambda tensor: tensor.to(device), rest)

    def called(*values: Tensor) -> Tensor | tuple[Tensor, ...]:
        return reference(**{**rest, **dict(zip(names, values, strict=True))})

    values, table = tuple(tensors.values()), get_decompositions(_LOWERED)
    table = {**table, **LOWERED}
    by_operations = attention_by_operations()
    with made_in(torch.float64), lines.preserve_node_meta(), torch.enable_grad(), by_operations:
        kept = {operation: table[operation] for operation in table if operation not in _GELU}
        graph = _lowered(reference, called, values, kept, by_values=by_values)
        if not all(map(_stays, graph.graph.nodes)):
            graph = _lowered(reference, called, values, table, by_values=by_values)
    graph.meta["names"] = names
    for node in graph.graph.nodes:
        tags = getattr(node.target, "tags", ()) if node.op == "call_function" else ()
        if torch.Tag.nondeterministic_seeded in tags:
            raise NoRuleError(
                f"{line_of(node, reference)}: {function_of(node)} draws random numbers"
            )
        is_marked = by_values and torch.Tag.data_dependent_output in tags
        if (torch.Tag.data_dependent_output in tags and not is_marked) or _is_open(
            node.meta.get("val")
        ):
            raise NoRuleError(f"{line_of(node, reference)}: {function_of(node)} {_DEPENDS}")
        if node.target == _aten.copy_.default and node.args[0].op == "placeholder":
            name = names[list(graph.graph.find_nodes(op="placeholder")).index(node.args[0])]
            raise NoRuleError(f"{describe(reference)} changes its input {name}")
    return graph


def _with_form_of(tensor: Tensor, device: torch.device, *, with_numbers: bool) -> Tensor:
    """Return a tensor of its form on a device, in float64 if it has real numbers.

    with_numbers: it has the same numbers; whole numbers are always the same.
    """
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    if with_numbers or not tensor.is_floating_point():
        return tensor.to(device, dtype).clone()
    return torch.empty_like(tensor, dtype=dtype, device=device)


_DEPENDS = (
    "does what depends on a tensor's values, as a shape, a branch or a list may; write "
    "torch.where, or another operation whose shapes follow from those of its arguments"
)
_GELU = {_aten.gelu.default, _aten.gelu_backward.default}


def _is_open(value: object) -> bool:
    """Tell whether a shape in it follows from values alone, as that of `nonzero`."""
    tensors = [x for x in tree_leaves(value) if isinstance(x, Tensor)]
    return any(isinstance(size, torch.SymInt) for x in tensors for size in x.shape)


def _stays(node: Node) -> bool:
    """Return True if a node isn't lowered: a tanh GELU of an argument has a rule of its own."""
    if node.target not in _GELU:
        return True
    x: Any = node.args[-1]
    return node.kwargs.get("approximate") == "tanh" and x.op == "placeholder"


_SAME = {_aten.detach.default, _aten.alias.default}
_BY_NUMBERS = {_aten.mul.Scalar, _aten.div.Scalar, _aten.mul.Tensor, _aten.div.Tensor}


def _simplified(graph_module: GraphModule) -> GraphModule:
    """Take out what does nothing; what is expanded is multiplied by a number before that."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target in _SAME:
            node.replace_all_uses_with(node.all_input_nodes[0])
        elif node.target == _aten.as_strided.default and _is_reshape(*node.args):
            node.target, node.args = _aten.reshape.default, node.args[:2]
        elif node.target in _BY_NUMBERS and node.args[1] == 1 and _is_alike(node, node.args[0]):
            node.replace_all_uses_with(node.args[0])
        elif node.target in _BY_NUMBERS and _is_expanded(*node.args):
            (small, *sizes), numbers = node.args[0].args, node.args[1:]
            with graph.inserting_before(node):
                first = graph.call_function(node.target, (small, *numbers))
                after = graph.call_function(_aten.expand.default, (first, *sizes))
            first.meta = {**node.meta, "val": node.target(small.meta["val"], *numbers)}
            after.meta = node.meta
            node.replace_all_uses_with(after)
        elif node.target == _aten.copy_.default and node.args[0].target == _aten.clone.default:
            _take_copied(node)
    _merge(graph)
    graph.eliminate_dead_code()
    return graph_module


def _take_copied(node: Node) -> None:
    """Use what is written over a copy in the copy's place, from there on, where it fits."""
    copy, source = node.args[:2]
    assert isinstance(copy, Node)
    assert isinstance(source, Node)
    before, after = (node.meta["val"] for node in (copy, source))
    if before.shape != after.shape or before.dtype != after.dtype:
        return
    node.replace_all_uses_with(source)
    later = set[Node]()
    at = node.next
    while at.op != "root":
        later.add(at)
        at = at.next
    copy.replace_all_uses_with(source, delete_user_cb=later.__contains__)
    node.graph.erase_node(node)


# A product of a vector makes a shape of its result in place, which changes no number.
_RESHAPES_IN_PLACE = {
    _aten.squeeze_.dim: _aten.squeeze.dim,
    _aten.unsqueeze_.default: _aten.unsqueeze.default,
}


def _reshape_out_of_place(graph: Graph) -> None:
    """Use new shapes in the place of results, no arguments, whose shape is changed."""
    for node in graph.nodes:
        if node.target in _RESHAPES_IN_PLACE and node.args[0].op == "call_function":
            node.target = _RESHAPES_IN_PLACE[node.target]
            node.args[0].replace_all_uses_with(node, delete_user_cb=node.__lt__)


def _merge(graph: Graph) -> None:
    """Do once what is done twice element by element, as of a gradient what its function did.

    Not sums: a kernel may add up twice, in two orders, and each is one that the probable form
    holds for.
    """
    done: dict[tuple[object, str], Node] = {}
    for node in graph.nodes:
        if torch.Tag.pointwise in getattr(node.target, "tags", ()):
            first = done.setdefault((node.target, f"{node.args} {node.kwargs}"), node)
            if first is not node:
                node.replace_all_uses_with(first)


def _is_reshape(x: Any, shape: Any, stride: Any, offset: int | None = None) -> bool:  # noqa: ANN401
    """Ask if strides only give a tensor's numbers, all of them in their order, another shape."""
    before = x.meta["val"]
    after = torch.empty(shape, device="meta")
    whole = before.is_contiguous() and before.numel() == after.numel()
    return whole and not offset and after.stride() == tuple(stride)


def _is_alike(node: Node, x: object) -> bool:
    """Return True if a node's result has another's shape and dtype."""
    before = x.meta["val"] if isinstance(x, Node) else None
    after = node.meta["val"]
    return before is not None and (before.shape, before.dtype) == (after.shape, after.dtype)


def _is_expanded(x: object, *numbers: object) -> bool:
    """Return True if x is a tensor expanded from a smaller one, and the rest are numbers."""
    expanded = isinstance(x, Node) and x.target == _aten.expand.default
    return expanded and not any(isinstance(number, Node) for number in numbers)


def _lowered(
    reference: Reference,
    called: Callable[..., object],
    values: Sequence[Tensor],
    table: object,
    *,
    by_values: bool,
) -> GraphModule:
    """Lower in two steps where a reference asks for gradients, or a lowered operation writes."""
    if by_values:
        return _lowered_by_values(reference, called, values, table)
    with suppress(Exception), Precision(torch.float64, _place(reference)[0]) as mode:
        graph = _graph(torch.func.functionalize(called), *values, table=table)
        graph.meta["unordered"] = mode.unordered
        _reshape_out_of_place(graph.graph)
        if not any(map(_writes, graph.graph.nodes)):
            return _simplified(graph)
    try:
        with Precision(torch.float64, _place(reference)[0]) as mode:
            first = _graph(called, *values)
        lowered = torch.func.functionalize(lambda *arguments: Interpreter(first).run(*arguments))
        graph = _simplified(_graph(lowered, *values, table=table))
    except Exception as error:
        raise NoRuleError(f"{_told_of(error, reference)} {_why(error)}") from error
    graph.meta["unordered"] = mode.unordered
    return graph


def _lowered_by_values(
    reference: Reference, called: Callable[..., object], values: Sequence[Tensor], table: object
) -> GraphModule:
    """Lower a reference that goes by values, whose operations run on them."""

    def marked(*arguments: Tensor) -> object:
        with _Marks():  # type: ignore[no-untyped-call]
            return called(*arguments)

    try:
        with Precision(torch.float64, _place(reference)[0]) as mode:
            function = torch.func.functionalize(marked)
            graph = _graph(function, *values, table=table, tracing_mode="real")
        graph.meta["unordered"] = mode.unordered
    except Exception as error:
        raise NoRuleError(f"{_told_of(error, reference)} {_why(error)}") from error
    _reshape_out_of_place(graph.graph)
    if any(map(_writes, graph.graph.nodes)):
        raise NoRuleError(f"{describe(reference)} goes by values, and changes tensors in place")
    return _simplified(graph)


def _told_of(error: Exception, reference: Reference) -> str:
    """Name the reference, with the last of its lines that ran before an error."""
    file, _ = _place(reference)
    frames = walk_tb(error.__traceback__)
    ran = [str(line) for frame, line in frames if frame.f_code.co_filename == file]
    ran = ran or re.findall(rf"{re.escape(file)}:(\d+){_NAMED}", str(error))  # of a graph's node
    name = getattr(reference, "__name__", "the reference")
    return f"{file}:{ran[-1]}: {name}" if ran else describe(reference)


def _why(error: Exception) -> str:
    """Say why a reference can't be made a graph, on one line."""
    if isinstance(error, NoRuleError):
        return str(error)
    if "DataDependent" in type(error).__name__ or "SymInt" in str(error):
        return _DEPENDS
    if "mutating a non-functional tensor" in str(error):
        return (
            "changes a tensor that is none of its arguments, as a module's own state may be; pass "
            "the tensor as an argument, and return what it becomes"
        )
    first = next(iter(str(error).strip().splitlines()), "")
    return f"can't be traced: {type(error).__name__}: {first}"[:_MOST_SAID]


def _writes(node: Node) -> bool:
    """Return True if a node changes an argument."""
    return getattr(getattr(node.target, "_schema", None), "is_mutable", False)


def _graph(
    function: Callable[..., object],
    *values: Tensor,
    table: Any = None,  # noqa: ANN401
    tracing_mode: Literal["fake", "real"] = "fake",
) -> GraphModule:
    result: GraphModule = make_fx(
        function,
        decomposition_table=table,
        tracing_mode=tracing_mode,
        _allow_non_fake_inputs=True,
        _error_on_data_dependent_ops=tracing_mode == "fake",
    )(*values)
    return result


def describe(reference: Reference) -> str:
    """Return a reference's file, line and name: a sentence begins with them."""
    file, line = _place(reference)
    return f"{file}:{line}: {getattr(reference, '__name__', 'the reference')}"


def line_of(node: Node, reference: Reference) -> str:
    """file:line of the reference's that a node comes from, or that the reference begins in."""
    line = (node.stack_trace or "").partition(_NAMED)[0]
    return line or ":".join(map(str, _place(reference)))


def function_of(node: Node) -> str:
    """Name the function that a user wrote for a node; aten's operation where none is known."""
    return (node.stack_trace or "").partition(_NAMED)[2] or str(node.target)
