"""Run loops, min, max, `and`, `or` and `not` of jit functions as compiled code does.

The stock interpreter counts a loop with Python's own integers: arithmetic between two of them is
exact and has no width, and next to a tensor an integer is as narrow as its value allows, for
example 32 bits between two bounds of 64 bits. A compiled loop has one type, promoted from start,
end and step; they are extended by that type's sign, not by their own; they are compared as signed
integers; and only a constant step counts down. Triton 3.6 to 3.9 agree (`visit_For`;
tests/suites/interpreter/test_loops.py compares this module with compiled code).

`tl.static_range` is unrolled, and its numbers are Python's constants, also in compiled code.

Python's `min` and `max` return one of their arguments unchanged; compiled code uses `tl.minimum`
and `tl.maximum` for tensors, in the promoted type.

Python's `and` and `or` return one of their operands, and don't evaluate the rest; `not` of a block
is False. Compiled code evaluates all operands that are tensors, even a load past the end, and
combines blocks lane by lane.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton.language as tl

# Names that a rewritten kernel calls; the stock rewriter puts them into the kernel's globals.
_ENTRY = "interpreter_builtin"
_LOGICAL, _NEGATED = "interpreter_logical", "interpreter_negated"


def mend(interpreter: Any) -> None:
    """Make `range`, `tl.range`, `min` and `max` behave as in compiled code, from here on."""
    counted, semantic = _counting(interpreter), interpreter.interpreter_semantic
    stock_patch = interpreter._patch_lang_core
    ours = {
        builtins.range: counted,
        builtins.min: _of_tensors(builtins.min, tl.core.builtin_min, semantic),
        builtins.max: _of_tensors(builtins.max, tl.core.builtin_max, semantic),
    }

    def builtin(function: Any) -> Any:
        """Return the replacement of a Python function; a user's own function stays."""
        return next((own for of, own in ours.items() if of is function), function)

    def patch(language: Any, scope: Any) -> None:
        stock_patch(language, scope)
        scope.set_attr(language, "range", counted)

    # Triton's own class has no type.
    class Transformer(interpreter.ASTTransformer):  # type: ignore[misc]
        """The stock rewriting of a jit function, and of Python's operators and functions."""

        def visit_For(self, node: ast.For) -> ast.For:  # noqa: N802 (ast's name)
            self.generic_visit(node)
            if isinstance(node.iter, ast.Call):
                node.iter.func = _looked_up(node.iter.func)
            return node

        def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802
            self.generic_visit(node)  # the stock method ignores the value
            return super().visit_Assign(node)

        def visit_AugAssign(self, node: ast.AugAssign) -> Any:  # noqa: N802
            """Rewrite as an assignment, which makes a tensor of a constant, as when compiled."""
            if not isinstance(node.target, ast.Name):
                return self.generic_visit(node)
            before = ast.Name(node.target.id, ast.Load())
            value = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
            return self.visit_Assign(ast.copy_location(ast.Assign([node.target], value), node))

        def visit_Call(self, node: ast.Call) -> ast.Call:  # noqa: N802
            self.generic_visit(node)
            if isinstance(node.func, ast.Name) and node.func.id in {"min", "max"}:
                node.func = _looked_up(node.func)
            return node

        def visit_BoolOp(self, node: ast.BoolOp) -> ast.Call:  # noqa: N802
            self.generic_visit(node)
            nothing = ast.arguments([], [], None, [], [], None, [])
            operands: list[ast.expr] = [ast.Lambda(nothing, operand) for operand in node.values]
            conjunction = ast.Constant(isinstance(node.op, ast.And))
            return ast.Call(ast.Name(_LOGICAL, ast.Load()), [conjunction, *operands], [])

        def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802
            self.generic_visit(node)
            if not isinstance(node.op, ast.Not):
                return node
            return ast.Call(ast.Name(_NEGATED, ast.Load()), [node.operand], [])

    setattr(interpreter, _ENTRY, builtin)
    setattr(interpreter, _LOGICAL, _logical(semantic))
    setattr(interpreter, _NEGATED, _negated(semantic))
    interpreter._patch_lang_core = patch
    interpreter.FunctionRewriter.ast_transformer = Transformer()
    interpreter.InterpretedFunction.rewritten_fn.clear()


def _looked_up(function: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_ENTRY, ast.Load()), [function], [])


def _of_tensors(python: Any, compiled: Any, semantic: Any) -> Any:
    """Return a function that calls `compiled` if an argument is a tensor, else `python`."""

    def call(*arguments: Any, **named: Any) -> Any:
        if any(isinstance(argument, tl.tensor) for argument in arguments):
            return compiled(*arguments, **named, _semantic=semantic)
        return python(*arguments, **named)

    return call


def _logical(semantic: Any) -> Any:
    """Return `and` or `or` as compiled: operands are evaluated one by one."""

    def call(conjunction: Any, *operands: Any) -> Any:
        tensors, value = [], None
        for operand in operands:
            value = operand()
            if isinstance(value, tl.tensor):
                tensors.append(_truth(semantic, value))
            elif bool(value) is not conjunction:  # this constant decides
                return value
        if not tensors:
            return value
        combine = semantic.logical_and if conjunction else semantic.logical_or
        return functools.reduce(combine, tensors)

    return call


def _negated(semantic: Any) -> Any:
    def call(value: Any) -> Any:
        return semantic.not_(_truth(semantic, value)) if isinstance(value, tl.tensor) else not value

    return call


def _truth(semantic: Any, value: Any) -> Any:
    return value if value.dtype.is_int1() else semantic.not_equal(value, semantic.to_tensor(0))


def _counting(interpreter: Any) -> Any:
    """Return `range` for jit functions of `triton.runtime.interpreter`."""
    semantic, builder = interpreter.interpreter_semantic, interpreter.interpreter_builder

    def counted(first: Any, second: Any = None, step: Any = None, **_: Any) -> Iterator[Any]:
        """Yield the numbers of a loop as scalars; options for the compiler are ignored."""
        start, end = (0, first) if second is None else (first, second)
        step = 1 if step is None else getattr(step, "value", step)  # a tl.constexpr has a value
        down = isinstance(step, int) and step < 0
        bounds = [semantic.to_tensor(bound) for bound in (start, end, -step if down else step)]
        for bound in bounds:
            if not bound.dtype.is_int():
                raise TypeError(f"a loop's bounds and its step are integers, not {bound.dtype}")
        kind = semantic.integer_promote_impl(bounds[0].dtype, bounds[1].dtype)
        kind = semantic.integer_promote_impl(kind, bounds[2].dtype)
        handles = [_extended(builder, bound, kind) for bound in bounds]
        low, high, by = (_signed(handle) for handle in handles)
        if not down and by <= 0 and low < high:
            raise ValueError(
                f"a loop from {low} to {high} by {by} doesn't end when compiled; give a step above "
                "0, or a negative one that is a constant"
            )
        number = handles[0]
        # A step of 0 or less that gets here has an empty loop.
        for value in range(low, high, -by) if down else range(low, high, max(by, 1)):
            if value != low:  # computed from the number before, so that marks are passed on
                advance = builder.create_sub if down else builder.create_add
                number = advance(number, handles[2])
            yield tl.tensor(number, kind)

    return counted


def _extended(builder: Any, bound: Any, kind: Any) -> Any:
    """Return the handle of a loop's bound in the loop's type, extended by that type's sign."""
    handle, own, signed = bound.handle, bound.dtype, kind.is_int_signed()
    if own.is_int1() and signed:  # its one bit is the sign: a loop to True counts to -1
        return type(handle)(-handle.data.astype(f"i{kind.int_bitwidth // 8}"), kind)
    if not own.is_int1() and own.is_int_signed() != signed:
        own = getattr(tl, f"{'int' if signed else 'uint'}{own.int_bitwidth}")
        handle = builder.create_int_cast(handle, own, signed)
    return handle if own == kind else builder.create_int_cast(handle, kind, signed)


def _signed(handle: Any) -> int:
    """Return a scalar's bits as a signed integer, as compiled loops compare it."""
    return int(handle.data.astype(np.dtype(f"i{handle.data.dtype.itemsize}")).item())
