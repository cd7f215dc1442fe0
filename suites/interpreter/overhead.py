"""What the interpreter does around the arithmetic, done once where the stock one does it each time.

A program of Triton's interpreter spends nearly all of its time in Triton's own Python, hardly any
in numpy. What of that says the same again at every operation is kept: triton.language as patched
(the stock interpreter patches it anew for each launch, and for each call of a device function, of
which tl.sum is one), the shapes of blocks, the check for integer overflow (five operations on
int64 for each addition, for a device_assert that is compiled out), the host's copies of arguments
that lie there already. What a call of triton.language comes to is kept in plans.py.
docs/measured.md has how much.

Besides: autotuning, which needs a GPU to time on, takes the first configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.autotuner import Autotuner


def mend(interpreter: Any) -> None:
    """Mend `triton.runtime.interpreter`, for every kernel launched from here on.

    Nothing of it changes a result, so what a version doesn't have is left as it is.
    """
    for part, names in _PARTS.items():
        if all(hasattr(interpreter, each) for each in names):
            part(interpreter)
    _keep_shapes()
    # Timing needs a driver. With every time equal, the first configuration left after pruning runs.
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]


def _leave_overflow_out(interpreter: Any) -> None:
    """Leave out what Triton computes for a device_assert that nothing asks for."""
    builder = interpreter.interpreter_builder
    if hasattr(builder.options, "sanitize_overflow"):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _keep_the_language(interpreter: Any) -> None:
    """Patch triton.language with what the stock interpreter patched it with at the first launch."""
    stock_patch, stock_patch_tensor = interpreter._patch_lang, interpreter._patch_lang_tensor
    known: dict[tuple[bool, bool], list[tuple[Any, str, Any]]] = {}
    seen: dict[Any, tuple[bool, bool]] = {}

    def visible_from(function: Any) -> tuple[bool, bool]:
        """Whether the function's module has tl among its globals, and tl.core."""
        if function not in seen:
            # By identity: comparing a tensor among them with a module fails.
            values = function.__globals__.values()
            seen[function] = (
                any(each is tl for each in values),
                any(each is tl.core for each in values),
            )
        return seen[function]

    def patch(function: Any) -> Any:
        visible = visible_from(function)
        if visible not in known:
            scope = stock_patch(function)
            known[visible] = [(of, name, vars(of)[name]) for of, name, _ in scope._changes]
            return scope
        scope = interpreter._LangPatchScope()
        for of, name, value in known[visible]:
            scope.set_attr(of, name, value)
        return scope

    def patch_tensor(tensor: Any, *scope: Any) -> None:
        """As stock; an index is one element of an array, which Triton 3.6 passes to int() whole."""
        stock_patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    def device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A jit function called from a kernel, whose launch has patched what it sees already."""
        sees_tl, sees_core = visible_from(self.fn)
        stock = tl.core.is_builtin
        if (sees_tl and stock(tl.load)) or (sees_core and stock(tl.core.load)):
            interpreter._patch_lang(self.fn)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter._patch_lang = patch
    interpreter._patch_lang_tensor = patch_tensor
    interpreter.InterpretedFunction.__call__ = device_function


def _keep_shapes() -> None:
    """Make the shape of a block, and of a tensor, once for all blocks of the same extents."""
    stock_block: Callable[..., None] = tl.block_type.__init__
    stock_tensor: Callable[..., None] = tl.tensor.__init__
    blocks: dict[tuple[int, ...], tuple[Any, int, str]] = {}
    tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        extents = tuple([getattr(each, "value", each) for each in shape])
        found = blocks.get(extents)
        if found is None:
            stock_block(self, element_ty, shape)
            blocks[extents] = self.shape, self.numel, str(self.shape)
            return
        self.element_ty = element_ty
        self.shape, self.numel, text = found
        self.name = f"<{text}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 (passed by this name)
        extents = tuple(type.shape) if type.is_block() else ()
        found = tensors.get(extents)
        if found is None:
            stock_tensor(self, handle, type)
            tensors[extents] = self.shape, self.numel
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = found

    tl.block_type.__init__ = block
    tl.tensor.__init__ = tensor


def _shape_blocks(interpreter: Any) -> None:
    """Spread blocks, and give them axes, by the C of numpy: its own Python is slow."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle

    def broadcast(_: Any, block: Any, shape: Any) -> Any:
        spread = np.empty(shape, block.data.dtype)
        spread[...] = block.data
        return handle(spread, block.dtype.scalar)

    def expand_dims(_: Any, block: Any, axis: int) -> Any:
        extents = list(block.data.shape)
        extents.insert(axis, 1)
        return handle(block.data.reshape(extents), block.dtype.scalar)

    builder.create_broadcast, builder.create_expand_dims = broadcast, expand_dims


def _keep_arguments(interpreter: Any) -> None:
    """Pass tensors on the CPU as they are; the stock interpreter makes an alias of each."""
    executor = interpreter.GridExecutor
    stock_take, stock_restore = executor._init_args_hst, executor._restore_args_dev

    def take(self: Any, args: Any, kwargs: Any) -> Any:
        if all(_is_on_host(each) for each in (*args, *kwargs.values())):
            return list(args), kwargs
        return stock_take(self, args, kwargs)

    def restore(self: Any, args: Any, taken: Any, kwargs: Any, taken_kwargs: Any) -> None:
        if taken_kwargs is not kwargs:
            stock_restore(self, args, taken, kwargs, taken_kwargs)

    executor._init_args_hst, executor._restore_args_dev = take, restore


def _is_on_host(argument: Any) -> bool:
    """Whether `argument` holds no memory, or a CPU's; a descriptor has it in `base`."""
    if isinstance(argument, tuple):
        return all(map(_is_on_host, argument))
    base = getattr(argument, "base", argument)
    return not hasattr(base, "data_ptr") or getattr(base, "is_cpu", False)


_PARTS: dict[Callable[[Any], None], tuple[str, ...]] = {
    _leave_overflow_out: ("interpreter_builder",),
    _keep_the_language: (
        "_patch_lang",
        "_patch_lang_tensor",
        "_LangPatchScope",
        "InterpretedFunction",
        "InterpreterError",
    ),
    _keep_arguments: ("GridExecutor",),
    _shape_blocks: ("InterpreterBuilder", "TensorHandle"),
}
