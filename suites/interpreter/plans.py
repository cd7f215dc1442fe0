"""Plans: what a call of triton.language comes to, taken down once and done again.

A function of triton.language that does arithmetic spends most of its time on types: to which one
its operands are cast, over which shape they are spread. All of that follows from the types of its
arguments and from the numbers among them, and never from what a block holds. So the first call with
such arguments is taken down: which operations of Triton's builder it came to, in which order, on
which operands. That is its plan. Later calls do these operations alone, and those of constants
aren't done again.

What a plan can't hold (an argument of another kind, a result that isn't one tensor) is called as
ever. So is a load whose `other` is a tensor: Triton asks whether it is true. Atomics, reductions
and what has an effect besides have no plans.
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
_PLANNED = frozenset([*(f"__{each}__" for each in _OPERATORS.split()), *_FUNCTIONS.split()])
# Operations that have no operands, and are no constants.
_OF_PROGRAMS = frozenset(["create_get_program_id", "create_get_num_programs"])
_OTHER = 2  # its place among the arguments of a load
_MOST = 2**14  # plans; a kernel makes more where ever new numbers stand beside its tensors
_LARGE = 2**20  # bytes of a constant, which is made each time


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
    """run: does it, given the builder, the operands and the constants.

    fields: of the tensor that it makes, but for its handle.
    """

    run: Callable[[Any, list[Any], list[Any]], Any]
    constants: list[Any]
    fields: dict[str, Any]


class _Plans:
    def __init__(self, builder: Any, handle: type) -> None:
        self.builder, self.handle = builder, handle
        self.semantic = TritonSemantic(builder)
        self.known: dict[Any, _Plan | None] = {}
        self.noting: TritonSemantic[Any] | None = None  # while a call is taken down

    def of(self, member: Any) -> Callable[..., Any]:
        """`member` of triton.language, planned."""
        known, builder, tensor, new = self.known, self.builder, tl.tensor, object.__new__

        def planned(*args: Any, **named: Any) -> Any:
            named.pop("_semantic", None)
            if self.noting is not None:
                return member(*args, **named, _semantic=self.noting)
            operands: list[Any] = []
            key = [member]
            for each in args:
                if type(each) is tensor:
                    operands.append(each.handle)
                    key.append(each.type.name)
                else:
                    key.append(_told_apart(each, operands))
            for name, each in named.items():
                key += name, _told_apart(each, operands)
            of_call = tuple(key)
            try:
                plan = known[of_call]
            except KeyError:
                return self._taken_down(of_call, args, named, operands)
            except TypeError:  # an argument of another kind
                plan = None
            if plan is None:
                return member(*args, **named, _semantic=self.semantic)
            made = new(tensor)
            made.__dict__ = {**plan.fields, "handle": plan.run(builder, operands, plan.constants)}
            return made

        return planned

    def of_load(self, member: Any) -> Callable[..., Any]:
        """tl.load, planned; the load is told whether it was given an `other`."""
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

    def _taken_down(
        self, key: tuple[Any, ...], args: Any, named: dict[str, Any], operands: list[Any]
    ) -> Any:
        """What the call makes, whose plan is kept."""
        if len({id(each) for each in operands}) < len(operands):
            # Of x + x it couldn't be told which of the two an operation takes.
            args = tuple([_copied(each) for each in args])
            operands = [each.handle for each in args if type(each) is tl.tensor]
        notes = _Notes(self.builder, self.handle)
        self.noting = TritonSemantic(notes)
        try:
            made = key[0](*args, **named, _semantic=self.noting)
        finally:
            self.noting = None
        if len(self.known) >= _MOST:
            self.known.clear()
        self.known[key] = notes.plan(operands, made)
        return made


def _copied(argument: Any) -> Any:
    if type(argument) is not tl.tensor:
        return argument
    return tl.tensor(copy(argument.handle), argument.type)


_PLAIN = frozenset([int, bool, str, type(None)])
_SERIES = frozenset([tuple, list, tl.tuple])


def _told_apart(argument: Any, operands: list[Any]) -> Any:
    """What of an argument a plan follows from; the tensors in it are added to `operands`.

    Of another kind a list, which is no key.
    """
    kind = type(argument)
    if kind is tl.tensor:
        operands.append(argument.handle)
        return argument.type.name
    if kind is tl.constexpr:
        return kind, _told_apart(argument.value, operands)
    if kind in _PLAIN:
        return kind, argument  # 1 and True are equal
    if kind is float:
        return kind, argument.hex()  # 0.0 and -0.0 are equal, and NaN is no key
    if kind in _SERIES:
        return kind, *[_told_apart(each, operands) for each in argument]
    if kind is slice:
        ends = argument.start, argument.stop, argument.step
        return kind, *[_told_apart(each, operands) for each in ends]
    if isinstance(argument, tl.dtype):
        return kind, argument.name
    return []


class _Notes:
    """Triton's builder, which takes down what it is asked to do."""

    def __init__(self, builder: Any, handle: type) -> None:
        self._builder, self._handle = builder, handle
        self._steps: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._builder, name)
        if not callable(found):
            return found

        def noted(*args: Any, **named: Any) -> Any:
            made = found(*args, **named)
            if self._is_handle(made) or name.startswith("create_"):
                self._steps.append((name, args, named, made))
            return made

        return noted

    def plan(self, operands: list[Any], made: Any) -> _Plan | None:
        """The plan of a call on `operands` that made this; None where there is none.

        Each operation is a line of Python. Those of constants are done already.
        """
        if type(made) is not tl.tensor or not all(map(self._is_handle, operands)):
            return None
        names = {id(each): f"h[{place}]" for place, each in enumerate(operands)}
        fixed: set[int] = set()
        constants: list[Any] = []
        lines: list[str] = []

        def name_of(value: Any) -> str:
            if self._is_handle(value) and id(value) in names:
                return names[id(value)]
            constants.append(value)
            return f"k[{len(constants) - 1}]"

        for name, args, named, out in self._steps:
            of = {id(each) for each in args if self._is_handle(each)}
            is_small = self._is_handle(out) and out.data.nbytes <= _LARGE
            if is_small and of <= fixed and name not in _OF_PROGRAMS:
                fixed.add(id(out))
                continue
            nested = [value for each in args if isinstance(each, tuple | list) for value in each]
            if named or not of <= fixed | names.keys() or any(map(self._is_handle, nested)):
                return None
            lines.append(f" x{len(lines)} = b.{name}({', '.join(map(name_of, args))})")
            names[id(out)] = f"x{len(lines) - 1}"
        if made.handle is not None:
            if id(made.handle) not in fixed | names.keys():
                return None
            lines.append(f" return {name_of(made.handle)}")
        fields = {name: each for name, each in vars(made).items() if name != "handle"}
        return _Plan(_function("\n".join(lines)), constants, fields)

    def _is_handle(self, value: Any) -> bool:
        return isinstance(value, self._handle)


@cache
def _function(lines: str) -> Any:
    scope: dict[str, Any] = {}
    # In this file, as what looks for a kernel's line on the stack sees it.
    exec(compile(f"def run(b, h, k):\n{lines}", __file__, "exec"), scope)  # noqa: S102
    return scope["run"]
