"""Loops that count in the type they count in when compiled; min, max, `and`, `or` and `not`.

The stock interpreter counts a jit function's loop with Python's own integers: arithmetic between
two of them is exact and has no width, and next to a tensor each is as narrow as its value allows,
32 bits for a row's number between two bounds of 64. A compiled loop has one type, that of start,
end and step promoted; they are extended by its sign, not by their own; compared as signed integers
whatever the type; and only a constant step counts down. Triton 3.6 to 3.9 do the
same (`visit_For`; tests/suites/interpreter/test_loops.py holds it against what is compiled).

`tl.static_range` is unrolled, and its number a constant of Python's, also when compiled.

Python's `min` and `max` give one of their arguments as it is; of tensors a compiled kernel gets
`tl.minimum` and `tl.maximum`, in the type of all of them promoted.

Python's `and` and `or` give one of their operands, and don't look at the rest; `not` of a block is
False. A compiled kernel looks at all operands that are tensors, a load past the end among them, and
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

# What a rewritten kernel calls; the stock rewriter gives it to the kernel's globals.
_ENTRY = "interpreter_builtin"
_LOGICAL, _NEGATED = "interpreter_logical", "interpreter_negated"


def mend(interpreter: Any) -> None:
    """Make `range`, `tl.range`, `min` and `max` what they are when compiled, from here on."""
    counted, semantic = _counting(interpreter), interpreter.interpreter_semantic
    stock_patch = interpreter._patch_lang_core
    ours = {
        builtins.range: counted,
        builtins.min: _of_tensors(builtins.min, tl.core.builtin_min, semantic),
        builtins.max: _of_tensors(builtins.max, tl.core.builtin_max, semantic),
    }

    def builtin(function: Any) -> Any:
        """What a jit function calls for one of Python's, if it is one and not the user's own."""
        return next((own for of, own in ours.items() if of is function), function)

    def patch(language: Any, scope: Any) -> None:
        stock_patch(language, scope)
        scope.set_attr(language, "range", counted)

    # Triton's own has no type.
    class Transformer(interpreter.ASTTransformer):  # type: ignore[misc]
        """The stock rewriting of a jit function, and of what isn't Triton's to patch."""

        def visit_For(self, node: ast.For) -> ast.For:  # noqa: N802 (ast's name)
            self.generic_visit(node)
            if isinstance(node.iter, ast.Call):
                node.iter.func = _looked_up(node.iter.func)
            return node

        def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802
            self.generic_visit(node)  # the stock one looks at no value
            return super().visit_Assign(node)

        def visit_AugAssign(self, node: ast.AugAssign) -> Any:  # noqa: N802
            """As an assignment, which makes a tensor of a constant; compiled it is one too."""
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
            operands: list[ast.expr] = [ast.Lambda(nothing, each) for each in node.values]
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
    """Python's function, and of arguments with a tensor among them what it is when compiled."""

    def call(*arguments: Any, **named: Any) -> Any:
        if any(isinstance(each, tl.tensor) for each in arguments):
            return compiled(*arguments, **named, _semantic=semantic)
        return python(*arguments, **named)

    return call


def _logical(semantic: Any) -> Any:
    """`and`, or `or`, of operands that are looked at one by one, as compiled."""

    def call(conjunction: Any, *operands: Any) -> Any:
        tensors, value = [], None
        for each in operands:
            value = each()
            if isinstance(value, tl.tensor):
                tensors.append(_truth(semantic, value))
            elif bool(value) is not conjunction:  # a constant that decides
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
    """`range` for jit functions of `triton.runtime.interpreter`."""
    semantic, builder = interpreter.interpreter_semantic, interpreter.interpreter_builder

    def counted(first: Any, second: Any = None, step: Any = None, **_: Any) -> Iterator[Any]:
        """The numbers of a loop, each a scalar; what steers the compiler is ignored."""
        start, end = (0, first) if second is None else (first, second)
        step = 1 if step is None else getattr(step, "value", step)  # of a tl.constexpr
        down = isinstance(step, int) and step < 0
        bounds = [semantic.to_tensor(each) for each in (start, end, -step if down else step)]
        for each in bounds:
            if not each.dtype.is_int():
                raise TypeError(f"a loop's bounds and its step are integers, not {each.dtype}")
        kind = semantic.integer_promote_impl(bounds[0].dtype, bounds[1].dtype)
        kind = semantic.integer_promote_impl(kind, bounds[2].dtype)
        handles = [_extended(builder, each, kind) for each in bounds]
        low, high, by = (_signed(each) for each in handles)
        if not down and by <= 0 and low < high:
            raise ValueError(
                f"a loop from {low} to {high} by {by} doesn't end when compiled; give a step above "
                "0, or a negative one that is a constant"
            )
        number = handles[0]
        # A step of 0 and less that gets here leaves nothing to count.
        for value in range(low, high, -by) if down else range(low, high, max(by, 1)):
            if value != low:  # one number from the other, so that what is known of it is passed on
                advance = builder.create_sub if down else builder.create_add
                number = advance(number, handles[2])
            yield tl.tensor(number, kind)

    return counted


def _extended(builder: Any, bound: Any, kind: Any) -> Any:
    """The handle of a loop's bound in the loop's type: extended by that type's sign."""
    handle, own, signed = bound.handle, bound.dtype, kind.is_int_signed()
    if own.is_int1() and signed:  # its one bit is the sign: a loop to True counts to -1
        return type(handle)(-handle.data.astype(f"i{kind.int_bitwidth // 8}"), kind)
    if not own.is_int1() and own.is_int_signed() != signed:
        own = getattr(tl, f"{'int' if signed else 'uint'}{own.int_bitwidth}")
        handle = builder.create_int_cast(handle, own, signed)
    return handle if own == kind else builder.create_int_cast(handle, kind, signed)


def _signed(handle: Any) -> int:
    """A scalar as compiled loops compare it: its bits as a signed integer's."""
    return int(handle.data.astype(np.dtype(f"i{handle.data.dtype.itemsize}")).item())
