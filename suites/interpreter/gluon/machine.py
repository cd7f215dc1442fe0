"""The machine that a kernel in Gluon runs on; what it does and doesn't is said in __init__.py."""

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
    Block,
    MachineError,
    Pointer,
    Product,
    Written,
    check_written,
    elementwise,
    joined,
    tensor_of,
)
from kernel_workbench.suites.interpreter.operations import NotInterpretedError, instead
from kernel_workbench.suites.interpreter.strict.initialisation import Array

_TRITON = str(Path(triton.__file__).parent)


class Shared:
    """Shared memory, or a view of it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    @property
    def shape(self) -> list[int]:
        """Its extents."""
        return list(self.value.shape)

    @property
    def dtype(self) -> gl.dtype:
        """Triton's name of its dtype."""
        return GLUON_OF[self.value.dtype]

    def index(self, place: Any) -> Shared:
        """One of the first axis. Raises IndexError where there is none."""
        return Shared(self.value[int(tensor_of(place))])

    def reshape(self, shape: Sequence[int]) -> Shared:
        """A view in another shape."""
        return Shared(self.value.view(tuple(shape)))

    def permute(self, order: Sequence[int]) -> Shared:
        """A view with its axes in another order."""
        return Shared(self.value.permute(tuple(order)))

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        """A view of a part of one axis."""
        return Shared(self.value.narrow(dim, start, length))

    def load(self, _: object = None) -> Block:
        """Read a block."""
        return Block(self.value.clone())

    def store(self, block: Block) -> None:
        """Write a block."""
        self.value.copy_(block.value)


class Barrier:
    """One barrier: a phase ends when all have arrived and all bytes that it expects have come."""

    def __init__(self) -> None:
        self.phase = 0
        self._count = self._missing = self._bytes = 0
        self._copies: list[tuple[int, Callable[[], None]]] = []

    def init(self, count: int) -> None:
        """So many arrive in a phase."""
        self._count = self._missing = count

    def arrive(self, count: int = 1, size: int = 0) -> None:
        """Arrive, and expect so many bytes more in this phase."""
        self._missing -= count
        self._bytes += size
        if self._missing < 0:
            raise MachineError(f"more arrive at a barrier than the {self._count} that it counts")
        if not self._bytes:  # else it is settled when somebody waits for it
            self.settle()

    def bring(self, size: int, copy: Callable[[], None]) -> None:
        """A copy of so many bytes will tell this barrier."""
        self._copies.append((size, copy))

    def settle(self) -> None:
        """End the phase where it can end; its copies are done then."""
        if self._missing or self._bytes != sum(size for size, _ in self._copies):
            return
        for _, copy in self._copies:
            copy()
        self._copies, self._bytes, self._missing = [], 0, self._count
        self.phase ^= 1


class Barriers:
    """Barriers side by side."""

    def __init__(self, number: int) -> None:
        self._all = [Barrier() for _ in range(number)]

    def index(self, place: Any) -> Barrier:
        """One of them."""
        return self._all[int(tensor_of(place))]


class Descriptor:
    """Boxes of a tensor, as TMA sees them: outside is read as 0 and not written."""

    def __init__(self, given: TensorDescriptor, name: str, written: Written) -> None:
        base, box = given.base, list(given.block_shape)
        self._name, self._written = name, written
        self._view = base.as_strided(given.shape, given.strides)
        self.dtype, self.layout = GLUON_OF[base.dtype], given.layout
        nbytes = math.prod(box) * base.itemsize
        self.block_type = SimpleNamespace(shape=box, nbytes=nbytes)

    def _places(self, place: Sequence[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Of a box that begins at `place`: where it is in the tensor, and which part of it."""
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
        """The box that begins at `place`."""
        there, here = self._places(place)
        made = torch.zeros(self.block_type.shape, dtype=self._view.dtype)
        check_written(self._view, self._elements(there), self._name)
        made[here] = self._view[there]
        return made

    def write(self, place: Sequence[Any], box: Tensor) -> None:
        """Write the box that begins at `place`."""
        there, here = self._places(place)
        same = torch.equal(self._view[there], box[here])
        self._written.add(self._view, self._elements(there), self._name, same=same)
        self._view[there] = box[here]

    def _elements(self, there: tuple[slice, ...]) -> Array:
        """How far each element of a part is from the first, in elements."""
        places: Array = np.zeros((), np.int64)
        for each, step in zip(there, self._view.stride(), strict=True):
            places = np.add.outer(places, np.arange(each.start, each.stop) * step)
        return places


@dataclass(slots=True)
class _Partition:
    """What one partition of warps has asked for, and what it waits for."""

    products: list[Product] = field(default_factory=list)
    stores: list[Callable[[], None]] = field(default_factory=list)
    waits: Callable[[], bool] | None = None
    line: int = 0
    done: bool = False

    def ready(self) -> bool:
        return not self.done and (self.waits is None or self.waits())


class Machine:
    """Runs programs one after the other, and their partitions in turn; see this file's head.

    late: whether what is asynchronous is done as late as it may be.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._program, self._programs = (0, 0, 0), (1, 1, 1)
        self._lock = threading.Condition()
        self._partitions: list[_Partition] = []
        self._running = 0
        self._error: BaseException | None = None
        self._stand_ins = self._made()

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, object]) -> None:
        """Run the programs of a kernel.

        Raises MachineError, IllegalAccessError, NotInterpretedError, and what the kernel raises.
        """
        function = _refusing_what_is_missing(self._standing_for(kernel))
        constants = {each.name for each in kernel.params if each.is_constexpr}
        written = Written()
        given = {
            name: value if name in constants else _argument(value, name, written)
            for name, value in arguments.items()
        }
        x, y, z = (*grid, 1, 1)[:3]
        self._programs = x, y, z
        for number, self._program in enumerate(np.ndindex(x, y, z)):
            written.program = number
            self._partitions, self._running = [_Partition()], 0
            function(**given)
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
        for each in threads:
            each.start()
        for each in threads:
            each.join()
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
        except BaseException as error:  # noqa: BLE001  (raised anew where the launch is)
            self._error = self._error or error
        self._partitions[number].done = True
        with self._lock:
            self._hand_on()

    def _hand_on(self) -> None:
        """Let the next partition run that can; where there is none, let all end."""
        count = len(self._partitions)
        after = [(self._running + step) % count for step in range(1, count + 1)]
        left = [number for number in after if not self._partitions[number].done]
        if not left:
            return
        ready = [number for number in left if self._partitions[number].ready()]
        if not ready and self._error is None:
            told = ", ".join(str(self._partitions[number].line) for number in sorted(left))
            self._error = MachineError(f"waits at lines {told} of the kernel's file never end")
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
            self._pause(lambda: True)  # whoever waited for it goes first

    def _pause(self, until: Callable[[], bool], line: int = 0) -> None:
        """Let the others run until they wait, and `until` holds."""
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

    # What is asynchronous

    def _mma(
        self,
        left: Any,
        right: Shared,
        acc: Block,
        *,
        use_acc: Any = True,
        is_async: bool = False,
        **_: object,
    ) -> Block | Product:
        # Registers don't change; shared memory is read when the product is done.
        kept = left.value if isinstance(left, Shared) else tensor_of(left)
        before, added = tensor_of(acc), bool(tensor_of(use_acc))

        def compute() -> Block:
            product = _operand(kept) @ _operand(right.value)
            return Block(product + before if added else product)

        made = Product(compute)
        if not (self._late and is_async):
            made.finish()
        if not is_async:
            return made.value
        self._partitions[self._running].products.append(made)
        return made

    def _mma_wait(self, num_outstanding: int = 0, deps: Sequence[Any] = ()) -> Any:
        waiting = self._partitions[self._running].products
        while len(waiting) > num_outstanding:
            made = waiting.pop(0)
            if self._late:
                made.finish()
        for each in deps:
            if any(each is other for other in waiting):
                raise MachineError("a product is passed on by a wait that doesn't wait for it")
        done = tuple(each.value if isinstance(each, Product) else each for each in deps)
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

    def _made(self) -> dict[int, object]:
        """By the identity of a module or function of Gluon's, what stands for it."""
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
            program_id=lambda axis=0: Block(self._program[axis]),
            num_programs=lambda axis=0: Block(self._programs[axis]),
            inline_asm_elementwise=_assembled,
            **_FUNCTIONS,
        )
        made: dict[int, object] = {}
        for stand_in in (mbarrier, tma, own, language):
            made |= stand_in.by_identity()
        return made

    def _standing_for(self, value: Any) -> Any:
        """What a name of a kernel's file means here."""
        if id(value) in self._stand_ins:
            return self._stand_ins[id(value)]
        if isinstance(value, gl.constexpr):
            return value.value
        inner = getattr(value, "fn", None)
        if not isinstance(inner, FunctionType):
            return value
        names, cells = dict(inner.__globals__), inner.__closure__
        held = cells and tuple(CellType(self._standing_for(each.cell_contents)) for each in cells)
        made = FunctionType(inner.__code__, names, inner.__name__, inner.__defaults__, held)
        self._stand_ins[id(value)] = made
        for name in inner.__code__.co_names:
            if name in names:
                names[name] = self._standing_for(names[name])
        names["range"] = _blocks_of_range
        return made


class _StandIn:
    """A module of Gluon's with functions of our own; of the rest, what isn't a function."""

    def __init__(self, real: ModuleType, **own: object) -> None:
        self._real = real
        vars(self).update(own)

    def by_identity(self) -> dict[int, object]:
        """What stands for the module and for its functions, which a file may import by name."""
        real = vars(self._real)
        own = {id(real[name]): each for name, each in vars(self).items() if name in real}
        return {id(self._real): self, **own}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if isinstance(value, FunctionType):
            raise NotInterpretedError(_unknown(f"{self._real.__name__}.{name}"))
        return value


def _refusing_what_is_missing(function: Callable[..., None]) -> Callable[..., None]:
    """The kernel's function, which is refused where this machine has nothing for what it does.

    A name, an argument or a dtype that a class of this machine doesn't have may be one that a GPU
    has; and so may a function of Gluon's that nothing stands for, which Triton's own code refuses.
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
    return f"the interpreter of kernels in Gluon has nothing for {where} ({text}); {instead()}"


def _expect(barrier: Barrier, size: int, pred: Any = True) -> None:
    if tensor_of(pred):
        barrier.arrive(1, size)


def _operand(values: Tensor) -> Tensor:
    """A product's operand: of fp32 the tensor cores take tf32, without the last 13 bits."""
    if values.dtype != torch.float32:
        return values.float()
    return (values.contiguous().view(torch.int32) & -(2**13)).view(torch.float32)


def _argument(value: object, name: str, written: Written) -> object:
    """A kernel's argument as the kernel sees it."""
    if isinstance(value, TensorDescriptor):
        return Descriptor(value, name, written)
    if isinstance(value, Tensor):
        return Pointer(value, name, written)
    return Block(value) if isinstance(value, (int, float)) else value


def _allocated(dtype: gl.dtype, shape: Sequence[int], layout: object) -> Shared | Barriers:
    if isinstance(layout, hopper.mbarrier.MBarrierLayout):
        return Barriers(shape[0])
    kind = TORCH_OF[dtype]
    # Of numpy's memory: what a call allocates by torch is counted as its workspace.
    bytes_ = np.empty(math.prod(shape) * kind.itemsize, np.uint8)
    made = torch.from_numpy(bytes_).view(kind).view(tuple(shape))
    return Shared(made.fill_(math.nan if kind.is_floating_point else -1))


def _blocks_of_range(*limits: Any) -> Iterator[Block]:
    for value in range(*(int(tensor_of(each)) for each in limits)):
        yield Block(value)


def _pair(low: Block, high: Block, dtype: torch.dtype) -> Block:
    """Two halves in a word of 32 bits."""
    bits = [each.value.to(dtype).view(torch.int16).int() for each in (low, high)]
    return Block((bits[0] & 0xFFFF) | (bits[1] << 16))


def _reduce(place: Pointer, *parts: Block) -> None:
    """Add several neighbours to what lies in memory."""
    for offset, part in enumerate(parts):
        (place + offset).add(part)


def _lay(place: Pointer, *parts: Block) -> None:
    """Store several neighbours."""
    for offset, part in enumerate(parts):
        (place + offset).store(part, True)  # noqa: FBT003


def _await(place: Pointer, turn: Block) -> None:
    """Wait till what lies in memory has grown; programs before this one have run to their ends."""
    if (place.load(mask=True, other=0).value < tensor_of(turn)).any():
        raise MachineError("a program waits for a turn that no program before it gives")


def _bent(x: Tensor) -> Tensor:
    """A softcap's -2^31 / (1 + exp2(x))."""
    return -1.0 / ((x.exp2() + 1.0) * 2.0**-31).clamp(max=1.0)


# What inline assembly does, by the instruction that is in it.
_ASSEMBLY: dict[str, Callable[..., Block | None]] = {
    "ld.acquire.gpu.global.u32": _await,
    "red.release.gpu.global.add.u32": lambda place, count: place.add(count),
    "st.global.v4.f32": _lay,
    "cvt.rn.bf16x2.f32": lambda low, high: _pair(low, high, torch.bfloat16),
    "cvt.rn.f16x2.f32": lambda low, high: _pair(low, high, torch.float16),
    "bar.warp.sync": lambda value: value,
    "fma.rn.ftz.sat.f32": lambda x: Block(_bent(x.value)),
    "min.ftz.f32": lambda x: Block(1.0 + 2.0**-30 * _bent(x.value.fmin(torch.tensor(31.0)))),
    "red.global.add.v4.f32": _reduce,
}


def _assembled(text: str, _: str, arguments: Sequence[Any], **__: object) -> Block | None:
    for instruction, compute in _ASSEMBLY.items():
        if instruction in text:
            return compute(*arguments)
    raise NotInterpretedError(_unknown(f"the assembly {text}"))


def _unknown(what: str) -> str:
    return f"a CPU can't run {what} of a kernel in Gluon; {instead()}"


def _where(condition: Block, first: Any, second: Any) -> Block:
    return Block(torch.where(condition.value, *joined(first, second)))


def _full(shape: Sequence[int], value: float, dtype: gl.dtype, _: object = None) -> Block:
    return Block(torch.full(tuple(shape), value, dtype=TORCH_OF[dtype]))


def _arange(start: int, end: int, layout: object = None) -> Block:
    del layout
    return Block(torch.arange(start, end, dtype=torch.int32))


def _unary(compute: Callable[[Tensor], Tensor]) -> Callable[[Block], Block]:
    return lambda block: Block(compute(tensor_of(block)))


_FUNCTIONS: dict[str, object] = {
    "arange": _arange,
    "full": _full,
    "zeros": lambda shape, dtype, _=None: _full(shape, 0, dtype),
    "zeros_like": _unary(torch.zeros_like),
    "where": _where,
    "maximum": elementwise(torch.maximum),
    "minimum": elementwise(torch.minimum),
    "max": lambda block, axis: Block(tensor_of(block).amax(axis)),
    "min": lambda block, axis: Block(tensor_of(block).amin(axis)),
    "sum": lambda block, axis: Block(tensor_of(block).sum(axis)),
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
    "expand_dims": lambda block, axis: Block(tensor_of(block).unsqueeze(axis)),
    "split": lambda block: tuple(
        Block(tensor_of(block)[..., part].contiguous()) for part in (0, 1)
    ),
    "join": lambda low, high: Block(torch.stack((tensor_of(low), tensor_of(high)), -1)),
    "permute": lambda block, order: Block(tensor_of(block).permute(tuple(order))),
    "broadcast": lambda first, second: tuple(
        map(Block, torch.broadcast_tensors(tensor_of(first), tensor_of(second)))
    ),
    "convert_layout": lambda block, _=None: Block(tensor_of(block)),
    "load": lambda pointer, mask=True, other=math.nan: pointer.load(mask, other),
    "store": lambda pointer, value, mask=True: pointer.store(value, mask),
}
