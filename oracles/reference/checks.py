"""Mistakes of a reference: each mistake is one sentence, with the file and the line.

It is a function of its arguments alone, which has one value and a rule for each operation: it draws
nothing, changes no argument, and takes no branch by a tensor's values.
"""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernel_workbench.oracles.analysis import NoRuleError, bounds, truth
from kernel_workbench.oracles.analysis.trace import (
    attention_by_operations,
    goes_by_values,
    name_of,
)
from kernel_workbench.oracles.op import Argument, Numerics
from kernel_workbench.oracles.reference.signature import (
    Array,
    Function,
    OpError,
    Signature,
    place_of,
)

# The bits of these mean nothing once an error is added; a code of 8 bits may be read as it is.
_NUMBERS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


class _Watch(TorchDispatchMode):
    """Refuses what a reference mustn't do, as it does it."""

    def __init__(
        self,
        function: Function,
        inputs: Mapping[str, Argument],
        inside: _Inside,
        *,
        by_values: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.function, self.inside, self.by_values = function, inside, by_values
        # Whole numbers that follow from those given, which branches may go by.
        self.whole = {id(input_): input_ for input_ in inputs.values() if _is_whole(input_)}
        self.names = {
            tensor.untyped_storage().data_ptr(): name
            for name, tensor in inputs.items()
            if isinstance(tensor, Tensor) and tensor.numel()  # every empty one lies at 0
        }

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._refuse(
                f"it draws random numbers ({self._called(func)}); pass them as an argument"
            )
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_whole = bool(tensors) and all(id(tensor) in self.whole for tensor in tensors)
        if torch.Tag.data_dependent_output in func.tags and not (is_whole or self.by_values):
            self._refuse(
                f"it goes by a tensor's values ({self._called(func)}); write torch.where for a "
                "branch by values"
            )
        if func is torch.ops.aten.view.dtype and _NUMBERS & {args[0].dtype, args[1]}:
            self._refuse(
                f"it reads a number's bits, from {args[0].dtype} to {args[1]}, where errors "
                "can't be followed; compute with the number itself"
            )
        for argument, passed in zip(func._schema.arguments, args, strict=False):  # noqa: SLF001
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(passed, Tensor):
                name = self.names.get(passed.untyped_storage().data_ptr())
                if name is not None:
                    self._refuse(f"it changes its argument {name}; compute a new tensor")
        result = func(*args, **(kwargs or {}))
        if is_whole:
            self.whole |= {id(leaf): leaf for leaf in tree_leaves(result) if _is_whole(leaf)}
        return result

    def _called(self, operation: object) -> object:
        """Name what the reference called that made an operation."""
        return operation if self.inside.calls is None else name_of(self.inside.calls)

    def _refuse(self, message: str) -> None:
        raise OpError(f"{_line(self.function, traceback.extract_stack())}: {message}")


class _Inside(TorchFunctionMode):
    """Refuses what takes numbers out of PyTorch: no operation shows what becomes of them."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.calls: Any = None  # the function of torch's that the reference called last

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LEAVES and args[0].is_floating_point():
            where = _line(self.function, traceback.extract_stack())
            message = "where errors can't be followed; write it in operations of torch"
            raise OpError(f"{where}: it leaves PyTorch by {func.__name__}, {message}")
        self.calls = func
        return func(*args, **(kwargs or {}))


_LEAVES = {Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr, Tensor.tolist}
_MOST_SAID = 300  # characters of an error of torch's
_MOST_REPLAYED = 2**20  # elements of a case on which a check also tries the replays' roundings


def _is_whole(x: object) -> bool:
    return isinstance(x, Tensor) and not x.is_floating_point()


def _line(function: Function, frames: traceback.StackSummary) -> str:
    """Return `file:line` of the last frame in the reference's file, else of the reference."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = None if code is None else code.co_filename
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else place_of(function)


@contextmanager
def one_sentence(function: Function, fails: str) -> Iterator[None]:
    """Turn whatever is raised inside into an OpError that names a line of the function.

    fails: what failed, as "it fails in float64". Warnings say nothing of a reference, and are
    ignored, since a suite takes them for errors. An error of memory or of the GPU passes through.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (OpError, MemoryError, *_OF_THE_DEVICE):
        raise
    except NoRuleError as error:
        raise OpError(str(error)) from error
    except (Exception, SystemExit) as error:
        where = _line(function, traceback.extract_tb(error.__traceback__))
        message = " ".join(str(error).split())[:_MOST_SAID]
        raise OpError(f"{where}: {fails}: {type(error).__name__}: {message}") from error


def check_shape(
    written: Function, array: Array, value: Tensor, sizes: Mapping[str, int], where: str = ""
) -> None:
    """Raise OpError where an output hasn't the shape that its annotation says.

    where: what the sentence ends with.
    """
    if tuple(value.shape) != array.shape(sizes):
        raise OpError(
            f"{place_of(written)}: {array.name} has shape {tuple(value.shape)} where its "
            f"annotation says {array.shape(sizes)}{where}"
        )


_OF_THE_DEVICE = torch.OutOfMemoryError, torch.AcceleratorError


def watched_truth(
    written: Function,
    function: Callable[..., Any],
    inputs: Mapping[str, Argument],
    where: str = "",
) -> tuple[Tensor, ...]:
    """Return a reference's outputs in float64, after a run that refuses what no reference may do.

    Args:
        written: what a user wrote.
        function: what is computed, the same or its gradients.
        inputs: its arguments by name.
        where: what a sentence about a failure ends with.

    Raises:
        OpError: the function fails, draws random numbers, changes an argument, or goes by values.
    """
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_complex():
            message = f"{name} is complex, where errors can't be followed; pass real numbers"
            raise OpError(f"{place_of(written)}: {message}")
    wide = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    with one_sentence(written, f"it fails in float64{where}"):
        inside = _Inside(written)
        watch = _Watch(written, wide, inside, by_values=goes_by_values(function))
        with attention_by_operations(), inside, watch:
            function(**wide)
        return truth(function, inputs)


def check(
    written: Function,
    function: Callable[..., Any],
    signature: Signature,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Argument],
) -> None:
    """Check a reference; raise OpError for its first mistake.

    written: what a user wrote. function: what is computed, the same or its gradients. sizes and
    inputs: of a small case.
    """
    where_empty = "".join(
        f" where {name} is 0, a size that a Sizes without 0 leaves out"
        for name, size in sizes.items()
        if not size
    )
    exact = watched_truth(written, function, inputs, where_empty)
    if len(exact) != len(signature.outputs):
        message = (
            f"it returns {len(exact)} tensors, and its annotation says {len(signature.outputs)}"
        )
        raise OpError(f"{place_of(written)}: {message}")
    for array, value in zip(signature.outputs, exact, strict=True):
        if not isinstance(value, Tensor):
            raise OpError(
                f"{place_of(written)}: {array.name} is of type {type(value).__name__}, where its "
                "annotation says a tensor; return a tensor, or a tuple of tensors"
            )
        if array.is_real and value.dtype != torch.float64:
            raise OpError(
                f"{place_of(written)}: {array.name} isn't float64 where all arguments are; "
                "a tensor is made in another dtype: take an argument's"
            )
        if not array.is_real and value.is_floating_point():
            raise OpError(
                f"{place_of(written)}: {array.name} holds real numbers, where its annotation says "
                f"{array.kind}; cast it, as by .to({array.kind})"
            )
        check_shape(written, array, value, sizes, where_empty)
    with one_sentence(written, f"its errors can't be followed{where_empty}"):
        tensors = (*exact, *(value for value in inputs.values() if isinstance(value, Tensor)))
        is_small = sum(tensor.numel() for tensor in tensors) <= _MOST_REPLAYED
        dtypes = tuple(torch.float32 for _ in exact)
        bounds(function, inputs, Numerics(), dtypes, with_replays=is_small)
