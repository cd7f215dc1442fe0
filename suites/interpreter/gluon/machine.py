"""The machine that a kernel in Gluon runs on; __init__.py describes the model."""

from __future__ import annotations

import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernel_workbench.suites.interpreter.gluon.blocks import (
    GLUON_OF,
    TORCH_OF,
    GluonBlock,
    MachineError,
    Pointer,
    Product,
    Written,
    check_written,
    elementwise,
    joined,
    tensor_of,
)
from kernel_workbench.suites.interpreter.operations import INSTEAD, NotInterpretedError
from kernel_workbench.suites.interpreter.strict.initialisation import Array

_TMA_BYTES = 16
_TRITON = str(Path(triton.__file__).parent)


def _within(place: Any, count: int) -> int:
    """Return a place as a number. Raises MachineError if it isn't one of `count` places."""
    number = int(tensor_of(place))
    if not 0 <= number < count:
        raise MachineError(f"place {number} of {count} places in shared memory is used")
    return number


class Shared:
    """Shared memory, or a view of it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    @property
    def shape(self) -> list[int]:
        """The memory's extents."""
        return list(self.value.shape)

    @property
    def dtype(self) -> gl.dtype:
        """The memory's dtype in Triton."""
        return GLUON_OF[self.value.dtype]

    def index(self, place: Any) -> Shared:
        """Return the view at one place of the first axis. Raises MachineError."""
        return Shared(self.value[_within(place, len(self.value))])

    def reshape(self, shape: Sequence[int]) -> Shared:
        """Return a view in another shape."""
        return Shared(self.value.view(tuple(shape)))

    def permute(self, order: Sequence[int]) -> Shared:
        """Return a view with its axes in another order."""
        return Shared(self.value.permute(tuple(order)))

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        """Return a view of a part of one axis."""
        return Shared(self.value.narrow(dim, start, length))

    def load(self, _: object = None) -> GluonBlock:
        """Read a block."""
        return GluonBlock(self.value.clone())

    def store(self, block: GluonBlock) -> None:
        """Write a block."""
        self.value.copy_(block.value)


class Barrier:
    """One barrier: a phase ends when all have arrived and all expected bytes have come."""

    def __init__(self) -> None:
        self.phase = 0
        self._count = self._missing = self._bytes = 0
        self._copies: list[tuple[int, Callable[[], None]]] = []

    def init(self, count: int) -> None:
        """Set the number of arrivals of a phase."""
        self._count = self._missing = count

    def arrive(self, count: int = 1, size: int = 0) -> None:
        """Arrive `count` times, and expect `size` more bytes in this phase."""
        self._missing -= count
        self._bytes += size
        if self._missing < 0:
            raise MachineError(f"a barrier gets more arrivals than the {self._count} it expects")
        if not self._bytes:  # else a wait settles the barrier
            self.settle()

    def bring(self, size: int, copy: Callable[[], None]) -> None:
        """Add a copy of `size` bytes that this barrier waits for."""
        self._copies.append((size, copy))

    def settle(self) -> None:
        """End the phase and do its copies, if all arrivals and bytes have come."""
        if self._missing or self._bytes != sum(size for size, _ in self._copies):
            return
        for _, copy in self._copies:
            copy()
        self._copies, self._bytes, self._missing = [], 0, self._count
        self.phase ^= 1


class BarrierArray:
    """An array of barriers."""

    def __init__(self, number: int) -> None:
        self._all = [Barrier() for _ in range(number)]

    def index(self, place: Any) -> Barrier:
        """Return one of the barriers. Raises MachineError."""
        return self._all[_within(place, len(self._all))]


class Descriptor:
    """Boxes of a tensor, as in TMA: elements outside are read as 0 and never written.

    An H100 ends a program with an illegal instruction if a swizzled box begins at a byte of its
    rows that is no multiple of 16, or if a stored one begins before the tensor.
    """

    def __init__(self, described: TensorDescriptor, name: str, written: Written) -> None:
        base, box = described.base, list(described.block_shape)
        self._name, self._written = name, written
        self._view = base.as_strided(described.shape, described.strides)
        self.dtype, self.layout = GLUON_OF[base.dtype], described.layout
        self._is_swizzled = getattr(described.layout, "swizzle_byte_width", 0) > 0
        nbytes = math.prod(box) * base.itemsize
        self.block_type = SimpleNamespace(shape=box, nbytes=nbytes)

    def _places(self, place: Sequence[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return where a box from `place` on lies in the tensor, and which part of the box does."""
        at = int(tensor_of(place[-1])) * self._view.element_size()
        if self._is_swizzled and at % _TMA_BYTES:
            raise MachineError(
                f"a box of {self._name} begins at byte {at} of its rows; TMA takes multiples of 16"
            )
        there, here = [], []
        for start, extent, length in zip(
            map(int, map(tensor_of, place)), self.block_type.shape, self._view.shape, strict=True
        ):
            first = min(max(start, 0), length)
            last = max(min(start + extent, length), first)
            there.append(slice(first, last))
            here.append(slice(first - start, last - start) if last > first else slice(0, 0))
        return tuple(there), tuple(here)

    def read(self, place: Sequence[Any]) -> Tensor:
        """Return the box that begins at `place`."""
        there, here = self._places(place)
        box = torch.zeros(self.block_type.shape, dtype=self._view.dtype)
        check_written(self._view, self._elements(there), self._name)
        box[here] = self._view[there]
        return box

    def write(self, place: Sequence[Any], box: Tensor) -> None:
        """Write the box that begins at `place`."""
        if min(map(int, map(tensor_of, place))) < 0:
            raise MachineError(
                f"a box is stored that begins before the first element of {self._name}"
            )
        there, here = self._places(place)
        same = torch.equal(self._view[there], box[here])
        self._written.add(self._view, self._elements(there), self._name, same=same)
        self._view[there] = box[here]

    def _elements(self, there: tuple[slice, ...]) -> Array:
        """Return the distance of each element of a part from the tensor's first, in elements."""
        places: Array = np.zeros((), np.int64)
        for part, step in zip(there, self._view.stride(), strict=True):
            places = np.add.outer(places, np.arange(part.start, part.stop) * step)
        return places


@dataclass(slots=True)
class _Partition:
    """The unfinished work of one partition of warps, and the condition that it waits for."""

    products: list[Product] = field(default_factory=list)
    stores: list[Callable[[], None]] = field(default_factory=list)
    waits: Callable[[], bool] | None = None
    line: int = 0
    done: bool = False

    def ready(self) -> bool:
        return not self.done and (self.waits is None or self.waits())


class GluonMachine:
    """Runs programs one after the other, and their partitions in turn; see __init__.py.

    With `late`, asynchronous work is done as late as possible, else at once.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._program, self._programs = (0, 0, 0), (1, 1, 1)
        self._lock = threading.Condition()
        self._partitions: list[_Partition] = []
        self._running = 0
        self._error: BaseException | None = None
        self._stand_ins = self._replacements()

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, object]) -> None:
        """Run the programs of a kernel.

        Raises MachineError, IllegalAccessError, NotInterpretedError, and the kernel's own errors.
        """
        function = _refusing_missing(self._standing_for(kernel))
        constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
        written = Written()
        values = {
            name: value if name in constants else _argument(value, name, written)
            for name, value in arguments.items()
        }
        x, y, z = (*grid, 1, 1)[:3]
        self._programs = x, y, z
        for number, self._program in enumerate(np.ndindex(x, y, z)):
            written.program = number
            self._partitions, self._running = [_Partition()], 0
            function(**values)
            self._store_wait(0)

    # Partitions

    def _specialize(self, parts: Sequence[tuple[Any, tuple[Any, ...]]], *_: object) -> None:
        before = self._partitions
        self._partitions = [_Partition() for _ in parts]
        self._running, self._error = 0, None
        threads = [
            threading.Thread(target=self._run, args=(number, *part), daemon=True)
            for number, part in enumerate(parts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._partitions, self._running = before, 0
        if self._error is not None:
            raise self._error

    def _run(self, number: int, function: Any, arguments: tuple[Any, ...]) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._running == number)
        try:
            if self._error is None:
                self._standing_for(function)(*arguments)
                self._store_wait(0)
        except BaseException as error:  # noqa: BLE001  (raised again by the launch)
            self._error = self._error or error
        self._partitions[number].done = True
        with self._lock:
            self._hand_on()

    def _hand_on(self) -> None:
        """Let the next ready partition run; if there is none, let all end."""
        count = len(self._partitions)
        after = [(self._running + step) % count for step in range(1, count + 1)]
        left = [number for number in after if not self._partitions[number].done]
        if not left:
            return
        ready = [number for number in left if self._partitions[number].ready()]
        if not ready and self._error is None:
            lines = ", ".join(str(self._partitions[number].line) for number in sorted(left))
            self._error = MachineError(f"waits at lines {lines} of the kernel's file never end")
        self._running = left[0] if self._error is not None else ready[0]
        self._lock.notify_all()

    def _wait(self, barrier: Barrier, phase: Any, pred: Any = True, deps: object = ()) -> None:
        del deps
        if not tensor_of(pred):
            return
        parity = int(tensor_of(phase))

        def over() -> bool:
            barrier.settle()
            return barrier.phase != parity

        if not over():
            self._pause(over, sys._getframe(1).f_lineno)

    def _arrive(self, barrier: Barrier, *, count: int = 1, pred: Any = True) -> None:
        if not tensor_of(pred):
            return
        barrier.arrive(count)
        if self._late:
            self._pause(lambda: True)  # partitions that wait for the barrier run first

    def _pause(self, until: Callable[[], bool], line: int = 0) -> None:
        """Let the other partitions run until `until` returns True."""
        number = self._running
        if len(self._partitions) == 1 and not until():
            raise MachineError(f"a wait at line {line} never ends")
        mine = self._partitions[number]
        mine.waits, mine.line = until, line
        with self._lock:
            self._hand_on()
            self._lock.wait_for(lambda: self._running == number)
        mine.waits = None
        if self._error is not None:
            raise self._error

    # Asynchronous operations

    def _mma(
        self,
        left: Any,
        right: Shared,
        acc: GluonBlock,
        *,
        use_acc: Any = True,
        is_async: bool = False,
        **_: object,
    ) -> GluonBlock | Product:
        # Registers don't change; shared memory is read when the product is done.
        kept = left.value if isinstance(left, Shared) else tensor_of(left)
        before, added = tensor_of(acc), bool(tensor_of(use_acc))

        def compute() -> GluonBlock:
            product = _operand(kept) @ _operand(right.value)
            return GluonBlock(product + before if added else product)

        pending = Product(compute)
        if not (self._late and is_async):
            pending.finish()
        if not is_async:
            return pending.value
        self._partitions[self._running].products.append(pending)
        return pending

    def _mma_wait(self, num_outstanding: int = 0, deps: Sequence[Any] = ()) -> Any:
        waiting = self._partitions[self._running].products
        while len(waiting) > num_outstanding:
            pending = waiting.pop(0)
            if self._late:
                pending.finish()
        for result in deps:
            if any(result is other for other in waiting):
                raise MachineError("a product is passed on by a wait that doesn't wait for it")
        done = tuple(result.value if isinstance(result, Product) else result for result in deps)
        return done[0] if len(done) == 1 else done

    def _fetch(
        self,
        source: Descriptor,
        place: Sequence[Any],
        barrier: Barrier,
        target: Shared,
        pred: Any = True,
    ) -> None:
        if not tensor_of(pred):
            return
        box = source.read(place).view(target.value.shape)

        def copy() -> None:
            target.value.copy_(box)

        if self._late:
            target.value.fill_(math.nan)
        else:
            copy()
        barrier.bring(source.block_type.nbytes, copy if self._late else lambda: None)

    def _put(self, target: Descriptor, place: Sequence[Any], source: Shared) -> None:
        def copy() -> None:
            target.write(place, source.value.reshape(target.block_type.shape))

        if self._late:
            self._partitions[self._running].stores.append(copy)
        else:
            copy()

    def _store_wait(self, pendings: int = 0) -> None:
        waiting = self._partitions[self._running].stores
        while len(waiting) > pendings:
            waiting.pop(0)()

    # Stand-ins for Gluon

    def _replacements(self) -> dict[int, object]:
        """Return the replacements by the id of the Gluon module or function that they replace."""
        mbarrier = _StandIn(
            hopper.mbarrier,
            init=lambda barrier, count: barrier.init(count),
            wait=self._wait,
            arrive=self._arrive,
            expect=_expect,
        )
        tma = _StandIn(
            hopper.tma,
            async_copy_global_to_shared=self._fetch,
            async_copy_shared_to_global=self._put,
            async_load=self._fetch,
            async_store=self._put,
            store_wait=self._store_wait,
        )
        own = _StandIn(
            hopper,
            mbarrier=mbarrier,
            tma=tma,
            warpgroup_mma=self._mma,
            warpgroup_mma_wait=self._mma_wait,
            fence_async_shared=lambda: None,
        )
        language = _StandIn(
            gl,
            allocate_shared_memory=_allocated,
            warp_specialize=self._specialize,
            program_id=lambda axis=0: GluonBlock(self._program[axis]),
            num_programs=lambda axis=0: GluonBlock(self._programs[axis]),
            inline_asm_elementwise=_assembled,
            **_FUNCTIONS,
        )
        by_identity: dict[int, object] = {}
        for stand_in in (mbarrier, tma, own, language):
            by_identity |= stand_in.by_identity()
        return by_identity

    def _standing_for(self, value: Any) -> Any:
        """Return the replacement of a value that a name of a kernel's file has."""
        if id(value) in self._stand_ins:
            return self._stand_ins[id(value)]
        if isinstance(value, gl.constexpr):
            return value.value
        inner = getattr(value, "fn", None)
        if not isinstance(inner, FunctionType):
            return value
        names, cells = dict(inner.__globals__), inner.__closure__
        closure = cells and tuple(CellType(self._standing_for(x.cell_contents)) for x in cells)
        replaced = FunctionType(inner.__code__, names, inner.__name__, inner.__defaults__, closure)
        self._stand_ins[id(value)] = replaced
        for name in inner.__code__.co_names:
            if name in names:
                names[name] = self._standing_for(names[name])
        names["range"] = _blocks_of_range
        return replaced


class _StandIn:
    """A Gluon module with replaced functions; it refuses other functions of the module."""

    def __init__(self, real: ModuleType, **own: object) -> None:
        self._real = real
        vars(self).update(own)

    def by_identity(self) -> dict[int, object]:
        """Return replacements of the module and its functions, which a file may import by name."""
        real = vars(self._real)
        own = {id(real[name]): value for name, value in vars(self).items() if name in real}
        return {id(self._real): self, **own}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if isinstance(value, FunctionType):
            raise NotInterpretedError(_unknown(f"{self._real.__name__}.{name}"))
        return value


def _refusing_missing(function: Callable[..., None]) -> Callable[..., None]:
    """Return the kernel's function, which raises NotInterpretedError for missing operations.

    A GPU may have a name, an argument or a dtype that a class of this machine lacks, and a Gluon
    function without a replacement, which Triton's own code refuses.
    """

    def call(**arguments: object) -> None:
        try:
            function(**arguments)
        except NotInterpretedError:
            raise
        except (AttributeError, TypeError, KeyError, NotImplementedError) as error:
            raise NotInterpretedError(_missing(error)) from error
        except Exception as error:
            if not traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_TRITON):
                raise
            raise NotInterpretedError(_missing(error)) from error

    return call


def _missing(error: Exception) -> str:
    own = str(Path(__file__).parent), _TRITON
    frames = traceback.extract_tb(error.__traceback__)
    at = next((one for one in reversed(frames) if not one.filename.startswith(own)), None)
    where = "its kernel" if at is None else f"line {at.lineno} of {at.filename}"
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"the interpreter of kernels in Gluon can't run {where} ({text}); {INSTEAD}"


def _expect(barrier: Barrier, size: int, pred: Any = True) -> None:
    if tensor_of(pred):
        barrier.arrive(1, size)


def _operand(values: Tensor) -> Tensor:
    """Return a product's operand: tensor cores take fp32 as tf32, without the last 13 bits."""
    if values.dtype != torch.float32:
        return values.float()
    return (values.contiguous().view(torch.int32) & -(2**13)).view(torch.float32)


def _argument(value: object, name: str, written: Written) -> object:
    """Return a kernel's argument as the kernel sees it."""
    if isinstance(value, TensorDescriptor):
        return Descriptor(value, name, written)
    if isinstance(value, Tensor):
        return Pointer(value, name, written)
    return GluonBlock(value) if isinstance(value, (int, float)) else value


def _allocated(dtype: gl.dtype, shape: Sequence[int], layout: object) -> Shared | BarrierArray:
    if isinstance(layout, hopper.mbarrier.MBarrierLayout):
        return BarrierArray(shape[0])
    kind = TORCH_OF[dtype]
    # numpy allocates the memory, since memory from torch would count as the call's workspace.
    bytes_ = np.empty(math.prod(shape) * kind.itemsize, np.uint8)
    memory = torch.from_numpy(bytes_).view(kind).view(tuple(shape))
    return Shared(memory.fill_(math.nan if kind.is_floating_point else -1))


def _blocks_of_range(*limits: Any) -> Iterator[GluonBlock]:
    for value in range(*(int(tensor_of(limit)) for limit in limits)):
        yield GluonBlock(value)


def _pair(low: GluonBlock, high: GluonBlock, dtype: torch.dtype) -> GluonBlock:
    """Pack two halves into a word of 32 bits."""
    bits = [half.value.to(dtype).view(torch.int16).int() for half in (low, high)]
    return GluonBlock((bits[0] & 0xFFFF) | (bits[1] << 16))


def _product(first: GluonBlock | int, second: GluonBlock | int) -> tuple[GluonBlock, ...]:
    """Return the high and the low word of a product of two words."""
    words = (tensor_of(word).long() & 0xFFFFFFFF for word in (first, second))
    product = next(words) * next(words)
    return GluonBlock((product >> 32).int()), GluonBlock(product.int())


def _reduce(place: Pointer, *parts: GluonBlock) -> None:
    """Add neighbouring values to memory."""
    for offset, part in enumerate(parts):
        (place + offset).add(part)


def _lay(place: Pointer, *parts: GluonBlock) -> None:
    """Store neighbouring values."""
    for offset, part in enumerate(parts):
        (place + offset).store(part, True)  # noqa: FBT003


def _await(place: Pointer, turn: GluonBlock) -> None:
    """Check that memory has reached `turn`; all programs before this one have ended."""
    if (place.load(mask=True, other=0).value < tensor_of(turn)).any():
        raise MachineError("a program waits for a turn that no program before it gives")


def _bent(x: Tensor) -> Tensor:
    """Return a softcap's -2^31 / (1 + exp2(x))."""
    return -1.0 / ((x.exp2() + 1.0) * 2.0**-31).clamp(max=1.0)


# The functions of inline assembly, by an instruction in it.
_ASSEMBLY: dict[str, Callable[..., GluonBlock | tuple[GluonBlock, ...] | None]] = {
    "ld.acquire.gpu.global.u32": _await,
    "red.release.gpu.global.add.u32": lambda place, count: place.add(count),
    "st.global.v4.f32": _lay,
    "cvt.rn.bf16x2.f32": lambda low, high: _pair(low, high, torch.bfloat16),
    "cvt.rn.f16x2.f32": lambda low, high: _pair(low, high, torch.float16),
    "bar.warp.sync": lambda value: value,
    "fma.rn.ftz.sat.f32": lambda x: GluonBlock(_bent(x.value)),
    "min.ftz.f32": lambda x: GluonBlock(1.0 + 2.0**-30 * _bent(x.value.fmin(torch.tensor(31.0)))),
    "red.global.add.v4.f32": _reduce,
    "mul.wide.u32": _product,
}


def _assembled(
    text: str, _: str, arguments: Sequence[Any], **__: object
) -> GluonBlock | tuple[GluonBlock, ...] | None:
    for instruction, compute in _ASSEMBLY.items():
        if instruction in text:
            return compute(*arguments)
    raise NotInterpretedError(_unknown(f"the assembly {text}"))


def _unknown(what: str) -> str:
    return f"a CPU can't run {what} of a kernel in Gluon; {INSTEAD}"


def _where(condition: GluonBlock, first: Any, second: Any) -> GluonBlock:
    return GluonBlock(torch.where(condition.value, *joined(first, second)))


def _full(shape: Sequence[int], value: float, dtype: gl.dtype, _: object = None) -> GluonBlock:
    return GluonBlock(torch.full(tuple(shape), value, dtype=TORCH_OF[dtype]))


def _arange(start: int, end: int, layout: object = None) -> GluonBlock:
    del layout
    return GluonBlock(torch.arange(start, end, dtype=torch.int32))


def _unary(compute: Callable[[Tensor], Tensor]) -> Callable[[GluonBlock], GluonBlock]:
    return lambda block: GluonBlock(compute(tensor_of(block)))


def _extreme(reduce: Callable[..., Tensor], least: float) -> Callable[..., GluonBlock]:
    """Return a reduction that leaves NaN out, unless all numbers are NaN."""

    def compute(block: Any, axis: int) -> GluonBlock:
        values = tensor_of(block)
        if not values.is_floating_point():
            return GluonBlock(reduce(values, axis))
        absent = values.isnan()
        reduced = reduce(values.masked_fill(absent, least), axis)
        return GluonBlock(reduced.masked_fill(absent.all(axis), math.nan))

    return compute


def _sum(block: Any, axis: int) -> GluonBlock:
    """Return sums in the block's dtype, of narrow integers in int32; torch's own are int64."""
    values = tensor_of(block)
    if not values.is_floating_point() and values.itemsize < 4:
        values = values.int()
    return GluonBlock(values.sum(axis, dtype=values.dtype))


_FUNCTIONS: dict[str, object] = {
    "arange": _arange,
    "full": _full,
    "zeros": lambda shape, dtype, _=None: _full(shape, 0, dtype),
    "zeros_like": _unary(torch.zeros_like),
    "where": _where,
    # Between a number and NaN, a GPU takes the number.
    "maximum": elementwise(torch.fmax),
    "minimum": elementwise(torch.fmin),
    "max": _extreme(torch.amax, -math.inf),
    "min": _extreme(torch.amin, math.inf),
    "sum": _sum,
    "exp": _unary(torch.exp),
    "exp2": _unary(torch.exp2),
    "log": _unary(torch.log),
    "log2": _unary(torch.log2),
    "sqrt": _unary(torch.sqrt),
    "rsqrt": _unary(torch.rsqrt),
    "abs": _unary(torch.abs),
    "cdiv": lambda first, second: (first + second - 1) // second,
    "static_range": range,
    "static_assert": lambda *_: None,
    "thread_barrier": lambda: None,
    "expand_dims": lambda block, axis: GluonBlock(tensor_of(block).unsqueeze(axis)),
    "split": lambda block: tuple(
        GluonBlock(tensor_of(block)[..., part].contiguous()) for part in (0, 1)
    ),
    "join": lambda low, high: GluonBlock(torch.stack((tensor_of(low), tensor_of(high)), -1)),
    "permute": lambda block, order: GluonBlock(tensor_of(block).permute(tuple(order))),
    "broadcast": lambda first, second: tuple(
        map(GluonBlock, torch.broadcast_tensors(tensor_of(first), tensor_of(second)))
    ),
    "convert_layout": lambda block, _=None: GluonBlock(tensor_of(block)),
    "load": lambda pointer, mask=True, other=math.nan: pointer.load(mask, other),
    "store": lambda pointer, value, mask=True: pointer.store(value, mask),
}
