"""Plans: record the builder's operations of a call of triton.language once, and repeat them.

A function of triton.language that does arithmetic spends most of its time on types: it casts its
operands and broadcasts them. Types and shapes depend only on the types of its arguments and on the
numbers among them, never on the values of a block. So the first call with such arguments records a
plan: the operations of Triton's builder in order, with their operands. Later calls do only these
operations, without those on constants, whose results are kept.

A call that doesn't fit a plan (an argument of another kind, a result that isn't one tensor) runs as
before. So does a load whose `other` is a tensor: Triton tests if it is true. Atomics, reductions
and functions with side effects have no plans.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic

from kernel_workbench.suites.interpreter.operations import GIVEN

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod neg invert and rand "
    "or ror xor rxor lshift rlshift rshift rrshift gt rgt ge rge lt rlt le rle eq req ne rne not "
    "getitem"
)
_FUNCTIONS = (
    "abs add arange broadcast broadcast_to cast ceil clamp cos div_rn dot erf exp exp2 expand_dims "
    "fdiv floor fma full log log2 logical_and logical_or maximum minimum mul num_programs permute "
    "program_id reshape rsqrt sin sqrt sqrt_rn store sub to trans umulhi where"
)
_PLANNED = frozenset([*(f"__{name}__" for name in _OPERATORS.split()), *_FUNCTIONS.split()])
# Operations that have no operands, and whose results aren't constant.
_OF_PROGRAMS = frozenset(["create_get_program_id", "create_get_num_programs"])
_OTHER = 2  # the place of `other` among the arguments of a load
_MOST = 2**14  # plans; a kernel needs more if new numbers appear beside its tensors all the time
_LARGE = 2**20  # bytes; a larger constant isn't kept


def mend(interpreter: Any) -> None:
    """Plan the calls of `triton.runtime.interpreter` from here on."""
    stock = interpreter._patch_attr
    plans = _Plans(interpreter.interpreter_builder, interpreter.TensorHandle)

    def patch(of: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        if name == "load":
            scope.set_attr(of, name, plans.of_load(member))
        elif name in _PLANNED:
            scope.set_attr(of, name, plans.of(member))
        else:
            stock(of, name, member, builder, scope)

    interpreter._patch_attr = patch


@dataclass(slots=True)
class _Plan:
    """A plan: `run` does it with the builder, the operands and the constants.

    `fields` are the attributes of the result, without its handle.
    """

    run: Callable[[Any, list[Any], list[Any]], Any]
    constants: list[Any]
    fields: dict[str, Any]


class _Plans:
    def __init__(self, builder: Any, handle: type) -> None:
        self.builder, self.handle = builder, handle
        self.semantic = TritonSemantic(builder)
        self.plans: dict[Any, _Plan | None] = {}
        self.noting: TritonSemantic[Any] | None = None  # set while a call is recorded

    def of(self, member: Any) -> Callable[..., Any]:
        """Return `member` of triton.language with plans."""
        plans, builder, tensor, new = self.plans, self.builder, tl.tensor, object.__new__

        def planned(*args: Any, **named: Any) -> Any:
            named.pop("_semantic", None)
            if self.noting is not None:
                return member(*args, **named, _semantic=self.noting)
            operands: list[Any] = []
            key = [member]
            for argument in args:
                if type(argument) is tensor:
                    operands.append(argument.handle)
                    key.append(argument.type.name)
                else:
                    key.append(_key_of(argument, operands))
            for name, argument in named.items():
                key += name, _key_of(argument, operands)
            of_call = tuple(key)
            try:
                plan = plans[of_call]
            except KeyError:
                return self._recorded(of_call, args, named, operands)
            except TypeError:  # an argument of another kind
                plan = None
            if plan is None:
                return member(*args, **named, _semantic=self.semantic)
            result = new(tensor)
            result.__dict__ = {**plan.fields, "handle": plan.run(builder, operands, plan.constants)}
            return result

        return planned

    def of_load(self, member: Any) -> Callable[..., Any]:
        """Return tl.load with plans; `GIVEN` tells the builder if the load has an `other`."""
        planned = self.of(member)

        def load(*args: Any, **named: Any) -> Any:
            other = named["other"] if "other" in named else (*args, None, None)[_OTHER]
            GIVEN.append(getattr(other, "value", other) is not None)
            try:
                if type(other) is not tl.tensor:
                    return planned(*args, **named)
                named["_semantic"] = self.noting or self.semantic
                return member(*args, **named)
            finally:
                GIVEN.pop()

        return load

    def _recorded(
        self, key: tuple[Any, ...], args: Any, named: dict[str, Any], operands: list[Any]
    ) -> Any:
        """Make the call, keep its plan, and return the result."""
        if len({id(handle) for handle in operands}) < len(operands):
            # Copies make the two operands of x + x distinguishable.
            args = tuple([_copied(argument) for argument in args])
            operands = [argument.handle for argument in args if type(argument) is tl.tensor]
        notes = _Notes(self.builder, self.handle)
        self.noting = TritonSemantic(notes)
        try:
            result = key[0](*args, **named, _semantic=self.noting)
        finally:
            self.noting = None
        if len(self.plans) >= _MOST:
            self.plans.clear()
        self.plans[key] = notes.plan(operands, result)
        return result


def _copied(argument: Any) -> Any:
    if type(argument) is not tl.tensor:
        return argument
    return tl.tensor(copy(argument.handle), argument.type)


_PLAIN = frozenset([int, bool, str, type(None)])
_SERIES = frozenset([tuple, list, tl.tuple])


def _key_of(argument: Any, operands: list[Any]) -> Any:
    """Return the part of an argument that decides the plan; append its tensors to `operands`.

    An argument of another kind gives a list, which can't be a key.
    """
    kind = type(argument)
    if kind is tl.tensor:
        operands.append(argument.handle)
        return argument.type.name
    if kind is tl.constexpr:
        return kind, _key_of(argument.value, operands)
    if kind in _PLAIN:
        return kind, argument  # 1 and True are equal
    if kind is float:
        return kind, argument.hex()  # 0.0 and -0.0 are equal, and NaN is no key
    if kind in _SERIES:
        return kind, *[_key_of(element, operands) for element in argument]
    if kind is slice:
        ends = argument.start, argument.stop, argument.step
        return kind, *[_key_of(end, operands) for end in ends]
    if isinstance(argument, tl.dtype):
        return kind, argument.name
    return []


class _Notes:
    """Triton's builder, which also records its operations."""

    def __init__(self, builder: Any, handle: type) -> None:
        self._builder, self._handle = builder, handle
        self._steps: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._builder, name)
        if not callable(operation):
            return operation

        def noted(*args: Any, **named: Any) -> Any:
            result = operation(*args, **named)
            if self._is_handle(result) or name.startswith("create_"):
                self._steps.append((name, args, named, result))
            return result

        return noted

    def plan(self, operands: list[Any], result: Any) -> _Plan | None:
        """Return the plan of a call on `operands` with this result, or None.

        An operation becomes a line of Python; operations on constants are done already.
        """
        if type(result) is not tl.tensor or not all(map(self._is_handle, operands)):
            return None
        names = {id(handle): f"h[{place}]" for place, handle in enumerate(operands)}
        fixed: set[int] = set()
        constants: list[Any] = []
        lines: list[str] = []

        def name_of(value: Any) -> str:
            if self._is_handle(value) and id(value) in names:
                return names[id(value)]
            constants.append(value)
            return f"k[{len(constants) - 1}]"

        for name, args, named, out in self._steps:
            of = {id(argument) for argument in args if self._is_handle(argument)}
            is_small = self._is_handle(out) and out.data.nbytes <= _LARGE
            if is_small and of <= fixed and name not in _OF_PROGRAMS:
                fixed.add(id(out))
                continue
            nested = [value for group in args if isinstance(group, tuple | list) for value in group]
            if named or not of <= fixed | names.keys() or any(map(self._is_handle, nested)):
                return None
            lines.append(f" x{len(lines)} = b.{name}({', '.join(map(name_of, args))})")
            names[id(out)] = f"x{len(lines) - 1}"
        if result.handle is not None:
            if id(result.handle) not in fixed | names.keys():
                return None
            lines.append(f" return {name_of(result.handle)}")
        fields = {name: value for name, value in vars(result).items() if name != "handle"}
        return _Plan(_function("\n".join(lines)), constants, fields)

    def _is_handle(self, value: Any) -> bool:
        return isinstance(value, self._handle)


@cache
def _function(lines: str) -> Any:
    scope: dict[str, Any] = {}
    # The code claims to be in this file, so that the search for a kernel's line skips it.
    exec(compile(f"def run(b, h, k):\n{lines}", __file__, "exec"), scope)  # noqa: S102
    return scope["run"]
