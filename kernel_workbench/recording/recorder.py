"""Count the calls of chosen functions while a model runs, and write them as cases.

While a recording is open, each function is replaced where callers find it: as an attribute of its
module or class, and in modules that have imported it by name. All threads see the replacement, the
autograd engine's too. A replacement describes a call's arguments (a few microseconds), counts
equal descriptions, and registers a hook on the node of an output that needs a gradient, so that a
backward is counted when it happens. Descriptions become cases when the recording ends.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from kernel_workbench.recording.targets import (
    PRODUCTS,
    SWIGLU,
    TARGETS,
    Target,
    named_arguments,
    place_of,
)

MOST_VALUE_BYTES = 2**26
_SECTOR = 16
_MOST_LINE_BYTES = 2**20  # of a file that may be no recording
_MOST_CALLS_OF_A_LINE = 8
_compiling = torch.compiler.is_compiling


class RecordingError(ValueError):
    """A recording can't begin or be written; the message is a sentence for the user."""


class _TensorForm(NamedTuple):
    """All of a tensor that a recording keeps without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    requires_grad: bool


class _Opaque(NamedTuple):
    """An argument that is neither a tensor nor a number, by the name of its type."""

    kind: str


@dataclass(slots=True, eq=False)
class _Key:
    """A call without values; equal calls have one key, so that its contents are hashed once.

    Attributes:
        backwards: the call's backwards, by the forms of the output and of its gradient.
        kept: the last call's part that is kept for its backward, where values aren't.
    """

    target: Target
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    autocast: torch.dtype | None
    backwards: dict[tuple[_TensorForm | None, _TensorForm], _BackwardCall] = field(
        default_factory=dict
    )
    kept: _KeptCall | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _BackwardCall:
    """A backward of a call without values; likewise."""

    forward: _Key
    out: _TensorForm | None
    grad: _TensorForm


class _Seen(threading.local):
    """A thread's state: whether it is inside a recorded call, and the last activation by silu."""

    inside = False
    silu: tuple[weakref.ref[Tensor], _TensorForm, Tensor | None] | None = None


_state = _Seen()
_lock = threading.RLock()
_active: tuple[Recorder, ...] = ()
_keys: dict[tuple[Any, ...], Any] = {}  # by contents
_recorders: dict[Target, tuple[Recorder, ...]] = {}  # the open recordings of a function
_installed: list[tuple[Any, str, Any]] = []  # what has the function, its name, what it was


def _form(tensor: Tensor) -> _TensorForm:
    offset = tensor.data_ptr() % _SECTOR
    if offset:
        offset //= tensor.element_size()
    form = tensor.shape, tensor.stride(), tensor.dtype, offset, tensor.requires_grad
    return tuple.__new__(_TensorForm, form)  # half of the time of the class's own constructor


_PLAIN = (bool, int, float, str, torch.dtype)


def _describe(value: Any) -> Any:  # noqa: ANN401  (any argument of a function)
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return _form(value)
    if isinstance(value, tuple | list):
        return tuple(_describe(item) for item in value)
    return _Opaque(type(value).__name__)


# An older or newer torch may lack it; every device is then asked, which takes longer.
_may_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)  # noqa: SLF001


def _autocast(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    if not _may_autocast():
        return None
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            kind = value.device.type
            if not torch.is_autocast_enabled(kind):
                return None
            return torch.get_autocast_dtype(kind)
    return None


@dataclass
class _Sampled:
    """Values of one call: arguments as they were before it."""

    key: _Key | _BackwardCall
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: Tensor | None = None


@dataclass
class _Counts:
    """The calls that a recording has seen so far."""

    calls: dict[_Key | _BackwardCall, int] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    samples: list[_Sampled] = field(default_factory=list)
    sampled: dict[_Key | _BackwardCall, int] = field(default_factory=dict)
    bytes: int = 0


class Recorder:
    """An open recording, and after its end what it saw.

    Attributes:
        path: the file of calls.
        summary: what was recorded, in a sentence; empty before the end.
        unseen: what the recording can't have seen, a sentence each.
        targets: the functions that it is of.
        keeps_values: values are kept.
    """

    def __init__(
        self,
        path: Path,
        targets: Collection[Target],
        values: int,
        most_bytes: int,
    ) -> None:
        """Take what `record` has checked."""
        self.path = path
        self.summary = ""
        self.unseen: tuple[str, ...] = ()
        self.targets = frozenset(targets)
        self.keeps_values = values > 0
        self._values = values
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._counts = _Counts()

    def __enter__(self) -> Self:
        """Begin to record, in all threads."""
        global _active  # noqa: PLW0603  (replacements ask for it at every call)
        with _lock:
            if any(other.path == self.path for other in _active):
                raise RecordingError(
                    f"{self.path}: it is being recorded already; name another file"
                )
            _active = (*_active, self)
            try:
                _install()
            except BaseException:
                _active = _active[:-1]
                _install()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End, and write what was recorded, whatever ended the block."""
        global _active  # noqa: PLW0603  (likewise)
        with _lock:
            _active = tuple(other for other in _active if other is not self)
            _install()
        try:
            with self._lock:
                counts, self._counts = self._counts, _Counts()
            self._write(counts)
        except OSError as cause:
            message = f"{self.path}: the calls can't be written ({cause.strerror or cause})"
            if error is None:
                raise RecordingError(message) from cause
            sys.stderr.write(f"{message}\n")

    def count(self, key: _Key | _BackwardCall) -> bool:
        """Count a call, and say whether its values are to be kept."""
        with self._lock:
            number = self._counts.calls.get(key, 0) + 1
            self._counts.calls[key] = number
            if not self._values or number not in {1, 10, 100, 1000, 10000}:
                return False
            return self._counts.sampled.get(key, 0) < self._values

    def keep(self, sample: _Sampled) -> None:
        """Keep the values of a call, if they fit."""
        tensors = [*sample.args, *sample.kwargs.values(), sample.grad]
        size = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
        with self._lock:
            if self._counts.bytes + size <= self._most_bytes:
                self._counts.bytes += size
                self._counts.samples.append(sample)
                self._counts.sampled[sample.key] = self._counts.sampled.get(sample.key, 0) + 1

    def fail(self, name: str) -> None:
        """Count a call whose arguments couldn't be read."""
        with self._lock:
            self._counts.unreadable[name] = self._counts.unreadable.get(name, 0) + 1

    def _write(self, counts: _Counts) -> None:
        # The module that turns calls into cases imports all ops, which a short recording needn't
        # wait for while its model runs.
        from kernel_workbench.recording.written import write  # noqa: PLC0415

        self.unseen = _unseen(counts)
        self.summary = write(self.path, counts, self.unseen)


def _unseen(counts: _Counts) -> tuple[str, ...]:
    """Return sentences on calls that a recording can't see."""
    sentences = []
    dynamo = sys.modules.get("torch._dynamo.utils")
    graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo is not None else 0
    if graphs:
        sentences.append(
            f"torch.compile has compiled {graphs:,} graphs in this process, and calls within one "
            "aren't seen; set TORCH_COMPILE_DISABLE=1 to record them"
        )
    sentences += [
        f"{number:,} calls of {name} have tensors without memory of their own, and aren't recorded"
        for name, number in counts.unreadable.items()
    ]
    if not counts.calls and not sentences:
        sentences.append("no function that was to be recorded was called")
    return tuple(sentences)


def record(
    path: str | os.PathLike[str],
    *,
    ops: Collection[str] | None = None,
    functions: Mapping[str, str] | None = None,
    values: bool | int = False,
    most_bytes: int = MOST_VALUE_BYTES,
) -> Recorder:
    """Record the calls that a model makes in a `with` block, as a file for `--cases`.

    Args:
        path: the file of calls, written when the block ends, however it ends.
        ops: names of ops, or what they begin with (`"layer_norm"`); by default all that are known.
        functions: further functions, as `{"my_model:fused_norm": "rms_norm_forward"}`; a function's
            parameters have the names of the op's arguments.
        values: keep tensors' values, too, in a file of safetensors beside the other one: of so many
            calls of each case (True: 1), of the first, the tenth, the hundredth call and so on.
        most_bytes: of all values together; a call that doesn't fit is left out.

    Returns:
        The recording. After the block `summary` says what was recorded, `unseen` what couldn't be.

    Raises:
        RecordingError: an op or function doesn't exist, or the file can't be written.

    Example:
        with record("calls.jsonl", ops=["layer_norm", "attention"]):
            model(batch).sum().backward()
    """
    if isinstance(ops, str):
        raise RecordingError(f"ops is the string {ops!r}; give a list of names, as [{ops!r}]")
    where = Path(path).expanduser().absolute()
    if where.suffix == ".safetensors":
        raise RecordingError(f"{where}: values stand in such a file; name it .jsonl")
    if where.is_dir():
        raise RecordingError(f"{where}: it is a folder; name a file in it")
    if not where.parent.is_dir() or not os.access(where.parent, os.W_OK):
        raise RecordingError(f"{where}: its folder is missing or read-only; make it first")
    if where.is_file() and not _may_overwrite(where):
        raise RecordingError(
            f"{where}: the file that is there isn't a recording, so it isn't overwritten; name "
            "another file"
        )
    beside = where.with_suffix(".safetensors")
    if values and beside.exists() and not where.exists():
        raise RecordingError(
            f"{beside}: it is no recording's, so it isn't overwritten; name another file"
        )
    if int(values) < 0 or most_bytes < 0:
        raise RecordingError("values and most_bytes must be 0 or more")
    chosen = [target for target in (*TARGETS, SWIGLU) if _is_wanted(target, ops)]
    own = [_own(name, op) for name, op in (functions or {}).items()]
    if ops is not None:
        served = {op for target in (*TARGETS, SWIGLU) for op in target.ops}
        for op in ops:
            if not any(_belongs(op, prefix) for prefix in served):
                names = ", ".join(sorted(served))
                raise RecordingError(
                    f"no function is recorded for the op {op!r}; there are {names}, and functions= "
                    "names those of other ops"
                )
    return Recorder(where, [*chosen, *own], int(values), most_bytes)


def _may_overwrite(path: Path) -> bool:
    """Return True for an empty file, and for one that begins as a recording does."""
    try:
        with path.open("rb") as file:
            line = file.readline(_MOST_LINE_BYTES)
        first = json.loads(line or b'{"op": ""}')
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and not {"op", "skipped"}.isdisjoint(first)


def _belongs(op: str, prefix: str) -> bool:
    return op in {prefix, f"{prefix}_forward", f"{prefix}_backward"}


def _is_wanted(target: Target, ops: Collection[str] | None) -> bool:
    return ops is None or any(_belongs(op, prefix) for op in ops for prefix in target.ops)


# Beside an op's `arguments`: what its options bring.
_OF_OPTIONS = {
    "attention": ("causal", "window", "corner", "bias", "alibi_slopes", "softcap", "sink", "scale"),
    "layer_norm_backward": ("has_bias", "zero_centred", "dresidual", "dweight", "dbias"),
}


def _own(name: str, op: str) -> Target:
    """Return the target of a user's function. Raises RecordingError."""
    from kernel_workbench.kernels.declarations import hint  # noqa: PLC0415  (imports all ops)
    from kernel_workbench.oracles import OPS  # noqa: PLC0415  (likewise)
    from kernel_workbench.recording.views import of_op  # noqa: PLC0415

    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise RecordingError(f"{name!r} names no function; write it as module:function")
    if op not in OPS:
        raise RecordingError(f"{name}: there is no op {op!r}; {hint(op, OPS)}")
    try:
        owner, attribute = place_of(module, path)
        function = getattr(owner, attribute)
    except ImportError as error:
        raise RecordingError(f"{name}: the module can't be imported ({error})") from error
    except AttributeError as error:
        raise RecordingError(f"{name}: {module} has no {path}") from error
    if isinstance(vars(owner).get(attribute), staticmethod | classmethod):
        raise RecordingError(f"{name}: a static or class method can't be replaced; name a function")
    try:
        arguments = named_arguments(function)
    except (TypeError, ValueError) as error:
        raise RecordingError(
            f"{name}: its parameters can't be read; name a function of Python that calls it"
        ) from error
    more = next((names for prefix, names in _OF_OPTIONS.items() if op.startswith(prefix)), ())
    view = of_op(op, (*OPS[op].arguments, *more))
    return Target(module, path, (op,), view, arguments, has_backward=False)


def _install() -> None:
    """Replace the functions that open recordings are of, and put all others back."""
    for owner, name, before in reversed(_installed):
        if before is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    _installed.clear()
    if not _active:
        _keys.clear()
    replaced: dict[int, tuple[Any, Any]] = {}
    _recorders.clear()
    for recorder in _active:
        for target in recorder.targets:
            _recorders[target] = (*_recorders.get(target, ()), recorder)
    for target in list(_recorders):
        around = _around_silu if target == SWIGLU else functools.partial(_around, target)
        _replace(target.module, target.path, around, replaced)
        if target == SWIGLU:
            for module, path in PRODUCTS:
                _replace(module, path, _around_product, replaced)
    if replaced:
        _replace_imported(replaced)


_INHERITED = object()


def _replace(
    module: str,
    path: str,
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
    replaced: dict[int, tuple[Any, Any]],
) -> None:
    try:
        owner, name = place_of(module, path)
        original = getattr(owner, name)
    except (ImportError, AttributeError):  # an older torch has no rms_norm; no Triton, no attention
        return
    _installed.append((owner, name, vars(owner).get(name, _INHERITED)))
    new = around(original)
    setattr(owner, name, new)
    if isinstance(owner, ModuleType):
        replaced[id(original)] = original, new


def _replace_imported(replaced: Mapping[int, tuple[Any, Any]]) -> None:
    """Replace functions also in modules that imported them by name."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(("torch.", "kernel_workbench.recording")):
            continue
        if not isinstance(module, ModuleType):  # a program may put any object there
            continue
        for name, value in list(vars(module).items()):
            replacement = replaced.get(id(value))
            if replacement is not None and replacement[0] is value:
                _installed.append((module, name, value))
                setattr(module, name, replacement[1])


def _around(target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that counts its calls and does what `original` does."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (any function's)
        if _compiling() or _state.inside:
            return original(*args, **kwargs)
        _state.inside = True
        try:
            kept = _before(target, args, kwargs)
            out = original(*args, **kwargs)
        finally:
            _state.inside = False
        if kept is not None:
            _after(kept, out)
        return out

    return replacement


@dataclass(slots=True)
class _KeptCall:
    """The part of a call that is kept until its output is there, and until its gradient is.

    Attributes:
        key: the call without values.
        recorders: those that count the call.
        args: the call's arguments, where values are kept.
        kwargs: likewise.
        versions: of the tensors among them: another number later says that values have changed.
        hook: counts the backward of a call whose view reads no output.
    """

    key: _Key
    recorders: tuple[Recorder, ...]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    versions: tuple[int, ...] | None = None
    hook: Callable[[tuple[Tensor | None, ...]], None] = field(init=False)

    def __post_init__(self) -> None:
        self.hook = functools.partial(_on_gradients, self, None, 0)


def _before(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _KeptCall | None:
    recorders = _recorders.get(target, ())
    try:
        key = _key(target, args, kwargs)
    except Exception:  # noqa: BLE001  (of a tensor subclass; the model goes on)
        for recorder in recorders:
            recorder.fail(target.name)
        return None
    return _counted(key, recorders, args, kwargs)


def _key(target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Key:
    contents = (
        target,
        tuple([_form(v) if isinstance(v, Tensor) else _describe(v) for v in args]),
        tuple([(name, _describe(v)) for name, v in kwargs.items()]) if kwargs else (),
        _autocast(args, kwargs),
    )
    key: _Key | None = _keys.get(contents)
    return _keys.setdefault(contents, _Key(*contents)) if key is None else key


def _counted(
    key: _Key, recorders: tuple[Recorder, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _KeptCall:
    keeps_values = False
    for recorder in recorders:
        if recorder.count(key):
            recorder.keep(_sampled(key, args, kwargs))
        keeps_values = keeps_values or recorder.keeps_values
    if keeps_values:
        return _KeptCall(key, recorders, args, kwargs, _versions(args, kwargs))
    # Without values equal calls keep the same, so the recording makes it once.
    if key.kept is None or key.kept.recorders is not recorders:
        key.kept = _KeptCall(key, recorders)
    return key.kept


def _versions(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return tuple(tensor._version for tensor in tensors)  # noqa: SLF001  (as autograd's own check)


def _sampled(
    key: _Key | _BackwardCall,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    grad: Tensor | None = None,
) -> _Sampled:
    named = {name: _copy(value) for name, value in kwargs.items()}
    return _Sampled(key, tuple(map(_copy, args)), named, _copy(grad))


def _copy(value: Any) -> Any:  # noqa: ANN401  (any argument of a function)
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        return value.detach().clone().requires_grad_(value.requires_grad)


def _after(kept: _KeptCall, out: object) -> None:
    if not kept.key.target.has_backward or not isinstance(out, Tensor) or not out.requires_grad:
        return
    try:
        node = out.grad_fn
        assert node is not None
        hook = kept.hook
        if kept.key.target.reads_output or out.output_nr:
            form = _form(out) if kept.key.target.reads_output else None
            hook = functools.partial(_on_gradients, kept, form, out.output_nr)
        # A hook on the node takes a third of the time of one on the tensor.
        node.register_prehook(hook)
    except Exception:  # noqa: BLE001  (of a tensor subclass; the model goes on)
        for recorder in kept.recorders:
            recorder.fail(f"the backward of {kept.key.target.name}")


def _on_gradients(
    kept: _KeptCall, out: _TensorForm | None, place: int, grads: tuple[Tensor | None, ...]
) -> None:
    """Count the backward of a call by the gradient of its output, at `place` among its node's."""
    grad = grads[place]
    if grad is None or _compiling():
        return
    recorders = [recorder for recorder in kept.recorders if recorder in _active]
    try:
        forms = out, _form(grad)
        backwards = kept.key.backwards
        key = backwards.get(forms) or backwards.setdefault(forms, _BackwardCall(kept.key, *forms))
    except Exception:  # noqa: BLE001  (likewise)
        for recorder in recorders:
            recorder.fail(f"the backward of {kept.key.target.name}")
        return
    for recorder in recorders:
        is_sampled = recorder.count(key) and kept.versions is not None
        if is_sampled and kept.versions == _versions(kept.args, kept.kwargs):
            recorder.keep(_sampled(key, kept.args, kept.kwargs, grad))


def _around_silu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return silu, which notes what it returned last."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (any function's)
        if _compiling() or _state.inside:
            return original(*args, **kwargs)
        gate = args[0] if args else kwargs.get("input")
        try:
            form = _form(gate) if isinstance(gate, Tensor) else None
        except Exception:  # noqa: BLE001  (of a tensor subclass; the model goes on)
            form = None
        out = original(*args, **kwargs)
        if form is not None and isinstance(out, Tensor):
            keeps = out is not gate and any(recorder.keeps_values for recorder in _active)
            _state.silu = weakref.ref(out), form, gate if keeps else None
        return out

    return replacement


def _around_product(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product, which is recorded where a factor is what silu returned last."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (any function's)
        if _compiling() or _state.silu is None or _state.inside or len(args) != 2:
            return original(*args, **kwargs)
        reference, form, gate = _state.silu
        activation = reference()
        if activation is None:
            _state.silu = None
        place = next((n for n in (0, 1) if activation is not None and args[n] is activation), None)
        if place is None or not isinstance(args[1 - place], Tensor):
            return original(*args, **kwargs)
        _state.silu = None
        kept = _gated(form, gate, args[1 - place])
        out = original(*args, **kwargs)
        if kept is not None:
            _after(kept, out)
        return out

    return replacement


def _gated(form: _TensorForm, gate: Tensor | None, up: Tensor) -> _KeptCall | None:
    recorders = _recorders.get(SWIGLU, ())
    try:
        contents = SWIGLU, (form, _form(up)), (), None
        key = _keys.get(contents) or _keys.setdefault(contents, _Key(*contents))
    except Exception:  # noqa: BLE001  (likewise)
        for recorder in recorders:
            recorder.fail(SWIGLU.name)
        return None
    if gate is None:  # the values of silu in place are gone
        for recorder in recorders:
            recorder.count(key)
        return _KeptCall(key, recorders)
    return _counted(key, recorders, (gate, up), {})
