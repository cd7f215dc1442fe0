"""Do repeated work of the interpreter once; the stock interpreter does it at every operation.

A program in Triton's interpreter spends nearly all of its time in Triton's own Python, hardly any
in numpy. This module keeps repeated results: triton.language as patched (the stock interpreter
patches it again for each launch, and for each call of a device function such as tl.sum), and the
shapes of blocks. It leaves out the check for integer overflow (five operations on int64 for each
addition, for a device_assert that is compiled out), and copies of arguments that are on the host
already. plans.py keeps the calls of triton.language. docs/measured.md has the savings.

Autotuning, which needs a GPU to time on, takes the first configuration.
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

    No change alters a result, so parts that a version of Triton lacks are skipped.
    """
    for part, names in _PARTS.items():
        if all(hasattr(interpreter, name) for name in names):
            part(interpreter)
    _keep_shapes()
    # Timing needs a driver. With every time equal, the first configuration left after pruning runs.
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]


def _leave_overflow_out(interpreter: Any) -> None:
    """Leave out the computation for a device_assert that is never evaluated."""
    builder = interpreter.interpreter_builder
    if hasattr(builder.options, "sanitize_overflow"):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _keep_the_language(interpreter: Any) -> None:
    """Patch triton.language with the attributes that the stock interpreter set at first."""
    stock_patch, stock_patch_tensor = interpreter._patch_lang, interpreter._patch_lang_tensor
    changes: dict[tuple[bool, bool], list[tuple[Any, str, Any]]] = {}
    seen: dict[Any, tuple[bool, bool]] = {}

    def visible_from(function: Any) -> tuple[bool, bool]:
        """Return True, True if the function's module has tl, and tl.core, among its globals."""
        if function not in seen:
            # Compare by identity: a tensor can't be compared with a module.
            values = function.__globals__.values()
            seen[function] = (
                any(value is tl for value in values),
                any(value is tl.core for value in values),
            )
        return seen[function]

    def patch(function: Any) -> Any:
        visible = visible_from(function)
        if visible not in changes:
            scope = stock_patch(function)
            changes[visible] = [(of, name, vars(of)[name]) for of, name, _ in scope._changes]
            return scope
        scope = interpreter._LangPatchScope()
        for of, name, value in changes[visible]:
            scope.set_attr(of, name, value)
        return scope

    def patch_tensor(tensor: Any, *scope: Any) -> None:
        """Patch as stock; an index is one element, while Triton 3.6 passes an array to int()."""
        stock_patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    def device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a jit function from a kernel, whose launch has patched the language already."""
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
    """Create the shape of blocks and tensors of the same extents once."""
    stock_block: Callable[..., None] = tl.block_type.__init__
    stock_tensor: Callable[..., None] = tl.tensor.__init__
    blocks: dict[tuple[int, ...], tuple[Any, int, str]] = {}
    tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        extents = tuple([getattr(extent, "value", extent) for extent in shape])
        shape_parts = blocks.get(extents)
        if shape_parts is None:
            stock_block(self, element_ty, shape)
            blocks[extents] = self.shape, self.numel, str(self.shape)
            return
        self.element_ty = element_ty
        self.shape, self.numel, text = shape_parts
        self.name = f"<{text}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 (passed by this name)
        extents = tuple(type.shape) if type.is_block() else ()
        shape_parts = tensors.get(extents)
        if shape_parts is None:
            stock_tensor(self, handle, type)
            tensors[extents] = self.shape, self.numel
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shape_parts

    tl.block_type.__init__ = block
    tl.tensor.__init__ = tensor


def _shape_blocks(interpreter: Any) -> None:
    """Broadcast blocks, and add axes, by numpy's C functions: its Python functions are slow."""
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
    """Pass tensors on the CPU unchanged; the stock interpreter creates aliases."""
    executor = interpreter.GridExecutor
    stock_take, stock_restore = executor._init_args_hst, executor._restore_args_dev

    def take(self: Any, args: Any, kwargs: Any) -> Any:
        if all(_is_on_host(argument) for argument in (*args, *kwargs.values())):
            return list(args), kwargs
        return stock_take(self, args, kwargs)

    def restore(self: Any, args: Any, host_args: Any, kwargs: Any, host_kwargs: Any) -> None:
        if host_kwargs is not kwargs:
            stock_restore(self, args, host_args, kwargs, host_kwargs)

    executor._init_args_hst, executor._restore_args_dev = take, restore


def _is_on_host(argument: Any) -> bool:
    """Return True if `argument` has no memory or a CPU's; a descriptor has it in `base`."""
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
