"""Ops of modules: a `torch.nn.Module` is a reference, whose parameters and buffers are arguments.

    swish_linear = op_of(SwishLinear(64, 32), [torch.rand(128, 64)])

The example inputs say the op's own sizes. An axis of theirs varies where the module takes another
length, which a run without values tells; axes that vary together are one size. Parameters keep the
module's shapes, and have its values, spread by a part of their own spread, so that a weight of
ones or a bias of zeros doesn't hide a kernel that leaves it out. A buffer that the module changes
is an output, too: its value after the call.

Inputs are drawn from N(0, 1), as those of any op, where the module is finite there. Others have the
example's values, of which a smaller case takes the first along each axis: labels stay valid, and a
triangle of zeros stays one.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache, partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kernel_workbench.oracles.cases.sizes import Sizes
from kernel_workbench.oracles.op import Case, Workloads
from kernel_workbench.oracles.reference import (
    Reference,
    ReferenceOp,
    op_of_reference,
    small_sizes,
)
from kernel_workbench.oracles.reference.cases import case_of, cases_of
from kernel_workbench.oracles.reference.checks import one_sentence
from kernel_workbench.oracles.reference.signature import (
    Array,
    Axis,
    Extent,
    Function,
    Kind,
    OpError,
    Signature,
    place_of,
)

Inputs = Sequence[Any] | Mapping[str, Any] | Tensor
_SHORT = (2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 160, 224, 256)
_SEVERAL = 4  # of the lengths that a module takes
_SEVERAL_TRIED = 6  # of these, to see what an output's shape follows from
_SPREAD = 0.25  # of a parameter's own spread, or of its size
_MOST_EXAMPLE = 2**31  # bytes of example inputs that are made for their values
_MOST_SMALL = 2**20  # bytes of a case, and operations, above which pairs of levels needn't meet
_MOST_FLOPS = 3e7
_NAMES = "mnkpqrst"  # of sizes
_LOOKED_AT = 2**20  # of an example's numbers
_FEW_NUMBERS, _FEWEST_NUMBERS = 8, 64  # different ones; of so many
_ZEROS = 0.02  # of them: random numbers have none
_MOST_WRONG = 2  # sizes that a run without values takes, and one with values doesn't
_SINGLE = (torch.float32, torch.float32)


def op_of(module: nn.Module, inputs: Inputs | Callable[[], Inputs], name: str = "") -> ModuleOp:
    """Make an op of a module, called NAME_forward.

    Args:
        module: what computes the op, in the mode, training or evaluation, that it is in.
        inputs: examples of what its forward takes, in order or by name; or a function that makes
            them, which is called again for other values.
        name: the op's whole name; by default that of the module's class, with _forward.

    Raises:
        OpError: the module can't be a reference.
    """
    example = inputs if callable(inputs) else lambda: inputs
    return _Module.of(module, example, name or f"{type(module).__name__}_forward").op()


def op_of_problem(content: Mapping[str, Any], name: str) -> ModuleOp:
    """Make the op of a KernelBench problem: the content of its file. Dropout drops nothing.

    Raises OpError.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = content["Model"](*content["get_init_inputs"]())
    for item in model.modules():
        if isinstance(item, nn.modules.dropout._DropoutNd):  # noqa: SLF001  # torch's own name
            item.eval()
        elif isinstance(item, nn.RNNBase | nn.MultiheadAttention):
            item.dropout = 0.0
    result = op_of(model, content["get_inputs"], re.sub(r"\W+", "_", name))
    return replace(result, initial=content["get_init_inputs"])


def solution_of(op: ModuleOp, content: Mapping[str, Any]) -> Callable[..., Any]:
    """The kernel that a KernelBench solution is: its ModelNew, on the arguments of the op.

    A parameter of ModelNew is the one of Model of its name, else of its place. Raises OpError.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = content["ModelNew"](*op.initial())
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    theirs = op.module.state
    if set(names) <= set(theirs.values()):
        of_name = {name: argument for argument, name in theirs.items()}
        state = {name: of_name[name] for name in names}
    elif len(names) == len(theirs):
        state = dict(zip(names, theirs, strict=True))
    else:
        raise OpError(
            f"{place_of(type(model).forward)}: ModelNew has {len(names)} parameters and buffers, "
            f"and Model {len(theirs)}; give it the same"
        )
    return partial(replace(op.module, module=model).solve, state)


def is_problem(content: Mapping[str, Any]) -> bool:
    """Say whether a file is a KernelBench problem."""
    return {"Model", "get_inputs", "get_init_inputs"} <= content.keys()


class _Caller(nn.Module):
    """Calls a module and returns, beside its outputs, some buffers as they are then."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, inputs: Mapping[str, Any] | tuple[Any, ...], changed: Sequence[str]
    ) -> tuple[Any, list[Tensor]]:
        for item in self.module.modules():
            if isinstance(item, nn.RNNBase):  # which keeps a list of its weights
                names = item._flat_weights_names  # noqa: SLF001
                item.__dict__["_flat_weights"] = [getattr(item, name) for name in names]
        positional = isinstance(inputs, tuple)
        result = self.module(*inputs) if positional else self.module(**dict(inputs))
        return result, [self.module.get_buffer(name) for name in changed]


class _Writes(TorchDispatchMode):
    """Notes the tensors that operations write to, whether their schema says so or not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        statistics = "batch_norm" in func.__name__ and any(item is True for item in args)
        for argument, passed in zip(func._schema.arguments, args, strict=False):  # noqa: SLF001
            says = argument.alias_info is not None and argument.alias_info.is_write
            if isinstance(passed, Tensor) and (says or (statistics and "running" in argument.name)):
                self.written.add(id(passed))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True, eq=False)
class _Measured(Extent):
    """An axis of an output, as long as a run without values says."""

    measure: Callable[[Mapping[str, int]], int] = field(kw_only=True)

    def of(self, sizes: Mapping[str, int]) -> int:
        """Its length."""
        return self.measure(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class _Module:
    """A module, and what is known of its arguments.

    form       its inputs, with names in the places of tensors
    shapes     of each input tensor the example's shape and dtype
    state      of each parameter and buffer, by argument, its name in the module
    own_axes   of each size the axes of inputs that have it, as (input, place), and its own length
    changed    arguments that are buffers which the module changes
    """

    module: nn.Module
    name: str
    example: Callable[[], Inputs]
    form: dict[str, Any]
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    state: Mapping[str, str]
    changed: tuple[str, ...] = ()
    own_axes: Mapping[str, tuple[frozenset[tuple[str, int]], int]] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, example: Callable[[], Inputs], name: str) -> _Module:
        """Find out what a module takes. Raises OpError."""
        written = type(module).forward
        with one_sentence(written, f"{name}: to make its inputs failed"), torch.device("meta"):
            form, tensors = _named(module, example())
        state: dict[str, str] = {}
        for key, _ in (*module.named_parameters(), *module.named_buffers()):
            argument = key.replace(".", "_")
            while argument in tensors or argument in state:  # as a.b_c beside a_b.c
                argument = f"own_{argument}"
            state[argument] = key
        shapes = {key: (tuple(item.shape), item.dtype) for key, item in tensors.items()}
        result = cls(module, name, example, form, shapes, state)
        with one_sentence(written, f"{name}: it fails on its own inputs"):
            _, written_to = result.traced({})
        result = replace(result, changed=written_to)
        return replace(result, own_axes=result.varying()).validated()

    def traced(
        self, axes: Mapping[tuple[str, int], int]
    ) -> tuple[list[tuple[tuple[int, ...], torch.dtype]], tuple[str, ...]]:
        """Run it without values, some axes having these lengths; shapes, and what it writes to."""
        with torch.device("meta"), torch.no_grad():
            tensors = {
                name: torch.empty(
                    [axes.get((name, place), size) for place, size in enumerate(shape)], dtype=dtype
                )
                for name, (shape, dtype) in self.shapes.items()
            }
            own = {name: self.own_tensor(name) for name in self.state}
            state = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in own.items()}
            with _Writes() as writes:
                result, after = self._called(tensors | state, tuple(self.state))
        changed = tuple(
            name
            for (name, before), item in zip(state.items(), after, strict=True)
            if id(before) in writes.written or item is not before
        )
        leaves = [item for item in tree_leaves(result) if isinstance(item, Tensor)]
        return [(tuple(item.shape), item.dtype) for item in leaves], changed

    def own_tensor(self, argument: str) -> Tensor:
        key = self.state[argument]
        home, _, last = key.rpartition(".")
        own = getattr(self.module.get_submodule(home), last)
        assert isinstance(own, Tensor)
        return own.detach()

    def _called(
        self, tensors: Mapping[str, Tensor], wanted: Sequence[str]
    ) -> tuple[Any, list[Any]]:
        """Call it on tensors by argument; what it returns, and these of its state afterwards."""
        arguments = tree_map(
            lambda item: tensors[item.name] if isinstance(item, _Name) else item, self.form
        )
        state = {f"module.{key}": tensors[name] for name, key in self.state.items()}
        buffers = {name for name, _ in self.module.named_buffers()}
        requested = [self.state[item] for item in wanted if self.state[item] in buffers]
        result, after = torch.func.functional_call(
            _Caller(self.module), state, (arguments, requested), tie_weights=False
        )
        afterwards = dict(zip(requested, after, strict=True))
        return result, [afterwards.get(self.state[item], tensors[item]) for item in wanted]

    def _takes(self, axes: frozenset[tuple[str, int]], length: int) -> bool:
        try:
            self.traced(dict.fromkeys(axes, length))
        except Exception:  # noqa: BLE001  # whatever a module raises of another shape
            return False
        return True

    def varying(self) -> dict[str, tuple[frozenset[tuple[str, int]], int]]:
        """Axes of inputs that can have another length, those together that vary together."""
        lengths = {
            (name, place): size
            for name, (shape, _) in self.shapes.items()
            for place, size in enumerate(shape)
            if size > 1  # an axis of one is there to be broadcast
        }
        size_groups: list[tuple[frozenset[tuple[str, int]], int]] = []
        left = dict(lengths)
        for alike in ("alone", "same place", "same length"):
            groups: dict[object, set[tuple[str, int]]] = {}
            for at, size in left.items():
                kinds: dict[str, object] = {"alone": at, "same place": at[1], "same length": None}
                groups.setdefault((kinds[alike], size), set()).add(at)
            for group in groups.values():
                axes, size = frozenset(group), lengths[next(iter(group))]
                other = next((n for n in (size + 1, size - 1, 2 * size, size // 2) if n > 0), 0)
                tried = (other, 2 * size, size // 2)
                if axes <= left.keys() and any(n and self._takes(axes, n) for n in tried):
                    size_groups.append((axes, size))
                    left = {at: n for at, n in left.items() if at not in axes}
        size_groups.sort(key=lambda item: min((list(self.shapes).index(n), p) for n, p in item[0]))
        return dict(zip(_size_names(), size_groups, strict=False))

    def solve(self, state: Mapping[str, str], /, **arguments: Any) -> Any:
        """Call it on arguments, of which `state` says which parameter each is; its outputs."""
        tensors = {name: arguments[name] for name in self.shapes}
        inputs = tree_map(
            lambda item: tensors[item.name] if isinstance(item, _Name) else item, self.form
        )
        own = {f"module.{name}": arguments[argument].clone() for name, argument in state.items()}
        with torch.no_grad():
            result, _ = torch.func.functional_call(
                _Caller(self.module), own, (tuple(inputs.values()), ()), tie_weights=False
            )
        leaves = [item for item in tree_leaves(result) if isinstance(item, Tensor)]
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    def validated(self) -> _Module:
        """Without the sizes that a run with values doesn't take: operations without check less.

        As few as are to go: one, or two, or all.
        """
        names = list(self.own_axes)
        for count in range(min(len(names), _MOST_WRONG) + 1):
            for dropped in combinations(names, count):
                left = [axes for name, axes in self.own_axes.items() if name not in dropped]
                result = replace(self, own_axes=dict(zip(_size_names(), left, strict=False)))
                if result.runs():
                    return result
        return replace(self, own_axes={})

    def runs(self) -> bool:
        """Say whether it runs on small tensors, whose whole numbers are the example's first."""
        sizes = {
            name: next((n for n in _SHORT if n <= own and self._takes(axes, n)), own)
            for name, (axes, own) in self.own_axes.items()
        }
        draw = torch.Generator().manual_seed(0)
        tensors = {name: self.own_tensor(name).clone() for name in self.state}
        try:
            for name, (_, dtype) in self.shapes.items():
                shape = self._array(name).shape(sizes)
                values = torch.randn(shape, generator=draw)
                if not (dtype.is_floating_point or dtype == torch.bool):
                    values = self.value(name, sizes, 0)
                tensors[name] = values.to(dtype)
            with torch.no_grad():
                self._called(tensors, ())
        except Exception:  # noqa: BLE001  # whatever a module raises of another shape
            return False
        return True

    def op(self) -> ModuleOp:
        """Make the op. Raises OpError."""
        written = type(self.module).forward
        sizes = {}
        for name, (axes, own) in self.own_axes.items():
            short = [n for n in _SHORT if n < own and self._takes(axes, n)]
            few = short[: _SEVERAL - 1] + short[-1:] if own > _SHORT[-1] else short[:_SEVERAL]
            levels = {"small": tuple(dict.fromkeys(few)) or (own,)}
            if short and own <= _SHORT[-1]:
                levels["own"] = (own,)
            sizes[name] = Sizes("extent", levels, partial(_level, own=own), (own,), (own,))
        outputs = self._outputs()
        numbers = {
            name: item for name, item in self.form.items() if isinstance(item, bool | int | float)
        }
        arrays = tuple(self._array(name) for name in (*self.shapes, *self.state))
        reference = Reference(
            name=self.name,
            written=written,
            function=self._function(),
            signature=Signature(arrays, numbers, outputs),
            sizes=sizes,
            labels=dict,
            without=frozenset({"inf"}),
            problem=self._problem,
            own={name: partial(self._parameter, name) for name in self.state},
        )
        reference = self._with_values(reference)
        if not reference.signature.real:
            raise OpError(f"{place_of(written)}: {self.name} takes no tensor of real numbers")
        result = op_of_reference(reference)
        plain = case_of(self.name, self._own_sizes(), _SINGLE, "ci")
        case = replace(plain, why="the module's own sizes")
        parts = {item.name: getattr(result, item.name) for item in fields(result)}
        parts["cases"] = cache(partial(_cases, result, case))
        parts["workloads"] = Workloads(anchors=(case,), on_cpu=(case,), profiled=(case,))
        return ModuleOp(**parts, module=self)

    def _own_sizes(self) -> dict[str, int]:
        return {name: own for name, (_, own) in self.own_axes.items()}

    def _array(self, name: str, *, fixed: bool = True) -> Array:
        """One argument; fixed: it has values of its own."""
        if name in self.state:
            own = self.own_tensor(name)
            kind: Kind | torch.dtype = "weight" if own.is_floating_point() else own.dtype
            return Array(name, tuple(own.shape), kind, fixed=True)
        shape, dtype = self.shapes[name]
        named = {at: size for size, (axes, _) in self.own_axes.items() for at in axes}
        axes = tuple(named.get((name, place), size) for place, size in enumerate(shape))
        return Array(name, axes, "activation" if dtype.is_floating_point else dtype, fixed=fixed)

    def _function(self) -> Function:
        def function(**arguments: Any) -> tuple[Tensor, ...]:
            # Whatever a module changes are copies: an op's arguments stay as they are.
            tensors = {
                name: arguments[name].clone() if name in self.changed else arguments[name]
                for name in (*self.shapes, *self.state)
            }
            result, after = self._called(tensors, self.changed)
            leaves = [item for item in tree_leaves(result) if isinstance(item, Tensor)]
            return (*leaves, *after)

        function.__wrapped__ = type(self.module).forward  # type: ignore[attr-defined]
        function.__name__ = self.name
        return function

    def _problem(self, sizes: Mapping[str, int]) -> str | None:
        try:
            _shapes_of(self, sizes)
        except Exception as error:  # noqa: BLE001  # whatever a module raises of another shape
            text = " ".join(str(error).split())[:200]
            return f"the module doesn't take these sizes ({type(error).__name__}: {text})"
        return None

    def _outputs(self) -> tuple[Array, ...]:
        own = self._own_sizes()
        forms, _ = self.traced({})
        names = ["y"] if len(forms) == 1 else [f"y{place}" for place in range(len(forms))]
        names += [f"new_{name}" for name in self.changed]
        kinds: list[Kind | torch.dtype] = [
            "activation" if dtype.is_floating_point else dtype for _, dtype in forms
        ]
        for name in self.changed:
            dtype = self.own_tensor(name).dtype
            kinds.append("weight" if dtype.is_floating_point else dtype)
        shapes = _shapes_of(self, own)
        rest = [dict(item) for item in self._other_sizes(own)]
        tried = [(sizes, _shapes_of(self, sizes)) for sizes in rest]
        result = []
        for index, (name, kind, shape) in enumerate(zip(names, kinds, shapes, strict=True)):
            axes: list[Axis] = []
            for place, length in enumerate(shape):
                moved = {
                    key
                    for sizes, item in tried
                    for key, size in sizes.items()
                    if size != own[key] and item[index][place] != length
                }
                axes.append(self._axis(index, place, moved, length, own, tried))
            result.append(Array(name, tuple(axes), kind))
        return tuple(result)

    def _other_sizes(self, own: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
        """Sizes of which one isn't the own one: even and odd, since a stride may follow either."""
        for name, (axes, size) in self.own_axes.items():
            accepted = [
                n for n in (*_SHORT, size + 1, 2 * size) if n != size and self._takes(axes, n)
            ]
            for other in (*accepted[:_SEVERAL_TRIED], *accepted[-1:]):
                yield {**own, name: other}

    def _axis(
        self,
        index: int,
        place: int,
        moved: set[str],
        length: int,
        own: Mapping[str, int],
        tried: Sequence[tuple[Mapping[str, int], list[Any]]],
    ) -> Axis:
        if not moved:
            return length
        (name, *more) = sorted(moved)
        follows = all(shapes[index][place] == sizes[name] for sizes, shapes in tried)
        if not more and own[name] == length and follows:
            return name

        def measure(sizes: Mapping[str, int]) -> int:
            return int(_shapes_of(self, sizes)[index][place])

        return _Measured(" * ".join(sorted(moved)), {}, measure=measure)

    def _parameter(
        self, name: str, _sizes: Mapping[str, int], _seed: int, draw: torch.Generator
    ) -> Tensor:
        """The module's own values, each changed by a part of their spread."""
        own = self.own_tensor(name).to(draw.device)
        if not own.is_floating_point() or not own.numel():
            return own.clone()
        own = own.float()
        least, most = (float(item) for item in own.aminmax())
        if least == most:
            spread = abs(most) or 1.0
        elif self.state[name] in {key for key, _ in self.module.named_buffers()}:
            return own.clone()  # a mask, say, or angles
        else:
            spread = float(own.std())
        noise = torch.empty_like(own).normal_(generator=draw)
        if least == most and most > 0:  # as a variance, which stays above 0
            noise.clamp_(-3, 3)
        return own + _SPREAD * spread * noise

    def examples(self, seed: int) -> dict[str, Tensor]:
        """The example inputs, drawn from a seed where a function makes them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _, tensors = _named(self.module, self.example())
        return tensors

    def value(self, name: str, sizes: Mapping[str, int], seed: int) -> Tensor:
        """The first of the example's values along each axis."""
        own = dict(sizes) == self._own_sizes()
        whole = self.examples(seed)[name] if own else _first_of(self, seed)[name]
        for place, length in enumerate(self._array(name).shape(sizes)):
            whole = _longer(whole, place, length).narrow(place, 0, length)
        return whole.clone()

    def _example_or_none(
        self,
        name: str,
        sizes: Mapping[str, int],
        seed: int,
        draw: torch.Generator,
        *,
        always: bool,
    ) -> Tensor | None:
        """The example's values, where they are needed, or at the own sizes; None: drawn as any."""
        if not always and dict(sizes) != self._own_sizes():
            return None
        return self.value(name, sizes, seed).to(draw.device)

    def _with_values(self, reference: Reference) -> Reference:
        """Say of which inputs the example's values are needed: without them it isn't finite."""
        written = type(self.module).forward
        nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.shapes.values())
        with one_sentence(written, f"{self.name}: to make its inputs failed"):
            examples = {} if nbytes > _MOST_EXAMPLE else _first_of(self, 0)
        fixed = {
            name
            for name, (_, dtype) in self.shapes.items()
            if not (dtype.is_floating_point or dtype == torch.bool)
            or (dtype != torch.bool and name in examples and _is_structured(examples[name]))
        }
        del examples
        free = [name for name in self.shapes if name not in fixed]
        attempts = [set[str](), *({name} for name in free), set(free)]
        tried: Reference | None = None
        for more in attempts:
            tried = self._valued(reference, fixed | more)
            if nbytes > _MOST_EXAMPLE or _is_finite(tried, written):
                return tried
        return self._valued(reference, fixed)

    def _valued(self, reference: Reference, fixed: set[str]) -> Reference:
        arrays = tuple(
            self._array(item.name, fixed=item.name in fixed or item.name in self.state)
            for item in reference.signature.arrays
        )
        values = {
            name: partial(self._example_or_none, name, always=name in fixed) for name in self.shapes
        }
        return replace(
            reference,
            signature=replace(reference.signature, arrays=arrays),
            own={**reference.own, **values},
        )


@dataclass(frozen=True, slots=True)
class ModuleOp(ReferenceOp):
    """An op of a module. initial: of a KernelBench problem, what Model is made of."""

    module: _Module = field(kw_only=True)
    initial: Callable[[], Sequence[Any]] = field(kw_only=True, default=tuple)

    @property
    def computed(self) -> tuple[str, ...]:
        """The outputs that the module returns, without the buffers that it changes."""
        return self.outputs[: len(self.outputs) - len(self.module.changed)]


def _shapes_of(module: _Module, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    return _kept_shapes(module, tuple(sizes.items()))


@cache
def _kept_shapes(module: _Module, sizes: tuple[tuple[str, int], ...]) -> list[tuple[int, ...]]:
    """Shapes of the outputs and of the buffers that change. Raises whatever the module does."""
    axes = {at: n for name, n in sizes for at in module.own_axes[name][0]}
    shapes = [shape for shape, _ in module.traced(axes)[0]]
    return [*shapes, *(tuple(module.own_tensor(name).shape) for name in module.changed)]


@lru_cache(maxsize=4)
def _first_of(module: _Module, seed: int) -> dict[str, Tensor]:
    """The first of the example's values along axes that vary, which small cases have."""
    varying = {at for axes, _ in module.own_axes.values() for at in axes}
    result = module.examples(seed)
    for name, whole in result.items():
        part = whole
        for place, length in enumerate(whole.shape):
            if (name, place) in varying:
                part = part.narrow(place, 0, min(length, _SHORT[-1]))
        result[name] = part.clone()
    return result


@dataclass(frozen=True, slots=True)
class _Name:
    """Stands for a tensor among a module's inputs."""

    name: str


def _named(module: nn.Module, inputs: Inputs) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Inputs by the names of forward's parameters, with `_Name` for tensors, and these tensors."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    if isinstance(inputs, Mapping):
        arguments = dict(inputs)
    else:
        listed = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        existing = [item.name for item in parameters if item.kind != item.VAR_KEYWORD]
        if len(listed) > len(existing) or any(
            item.kind == item.VAR_POSITIONAL for item in parameters
        ):
            raise TypeError(f"forward names {len(existing)} arguments, and there are {len(listed)}")
        arguments = dict(zip(existing, listed, strict=False))
    tensors: dict[str, Tensor] = {}

    def placed(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value.detach()
            return _Name(name)
        if isinstance(value, list | tuple):
            several = (placed(f"{name}_{place}", item) for place, item in enumerate(value))
            return type(value)(several) if type(value) in {list, tuple} else value
        return value

    return {name: placed(name, value) for name, value in arguments.items()}, tensors


def _longer(tensor: Tensor, place: int, length: int) -> Tensor:
    """The tensor, beside itself along an axis until it is so long."""
    times = -(-length // max(tensor.shape[place], 1))
    return torch.cat([tensor] * times, place) if times > 1 else tensor


def _is_structured(example: Tensor) -> bool:
    """Say whether numbers follow a rule: few of them, zeros among them, or equal ones mirrored."""
    if example.dim() == 0:
        return True
    if not example.numel():
        return False
    first = example.flatten()[:_LOOKED_AT]
    if len(first) >= _FEWEST_NUMBERS and len(first.unique()) <= _FEW_NUMBERS:
        return True
    zeros = int((first == 0).sum())
    if zeros > len(first) * _ZEROS:
        return True
    square = example.dim() > 1 and example.shape[-1] == example.shape[-2] > 1
    return square and torch.equal(example, example.mT)


def _is_finite(reference: Reference, written: Function) -> bool:
    """Say whether all outputs are finite on a small case."""
    inputs = reference.plain_inputs(small_sizes(reference))
    with one_sentence(written, f"{reference.name}: it fails in float64"), torch.no_grad():
        outputs = reference.function(**inputs)
    return all(bool(item.isfinite().all()) for item in outputs if item.is_floating_point())


def _level(size: int, own: int) -> str:
    return "own" if size == own else "small"


def _size_names() -> Iterator[str]:
    yield from _NAMES
    yield from (f"{letter}{letter}" for letter in _NAMES)


def _cases(op: ReferenceOp, own: Case) -> tuple[Case, ...]:
    """Cases of small sizes, then the module's own: pairs of levels meet where that is quick."""
    sizes = op.reference.sizes
    least = case_of(op.name, small_sizes(op.reference), _SINGLE, "ci")
    if sizes and op.bytes(least) <= _MOST_SMALL and op.flops(least) <= _MOST_FLOPS:
        result = cases_of(op, sizes)
    else:
        result = tuple(_in_turn(op))
    return (*(item for item in result if item.id() != own.id()), own)


def _in_turn(op: ReferenceOp) -> Iterator[Case]:
    """Each distribution, layout and pair of dtypes once, and of each size each value."""
    allowed, sizes = op.allowed, op.reference.sizes
    layouts, pairs = list(allowed.layouts.values()), [_SINGLE]
    pairs += [(item, item) for item in (torch.float16, torch.bfloat16)]
    values = {name: [n for of in item.levels.values() for n in of] for name, item in sizes.items()}
    values = {
        name: [n for n in of if n != sizes[name].large[0]] or of for name, of in values.items()
    }
    count = max(len(allowed.distributions), len(layouts), *map(len, values.values()), len(pairs))
    for turn in range(count):
        drawn = {name: of[turn % len(of)] for name, of in values.items()}
        distribution = allowed.distributions[turn % len(allowed.distributions)]
        dtypes = pairs[1] if distribution == "near_overflow" else _SINGLE
        case = case_of(op.name, drawn, dtypes, "ci", distribution)
        if layouts:
            case = replace(case, layout=layouts[turn % len(layouts)])
        if allowed.objection(case) is None:
            yield case
    for dtypes in pairs:
        case = case_of(op.name, small_sizes(op.reference), dtypes, "ci")
        if allowed.objection(case) is None:
            yield case
