"""The file of a recording: a line for each case, and one for each kind of call that has no op."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.recording.lines import case_of, line_of, on_meta
from kernel_workbench.recording.recorder import (
    _MOST_CALLS_OF_A_LINE,
    _BackwardCall,
    _Counts,
    _Key,
    _Opaque,
    _Sampled,
    _TensorForm,
)
from kernel_workbench.recording.values import ValueSample, values_path, write_values
from kernel_workbench.recording.views import NoOpError, View
from kernel_workbench.reports.phrases import count


@dataclass
class _Line:
    """The calls of a case, or of a sentence on why there is none."""

    begins: dict[str, object]
    weight: int = 0
    calls: list[dict[str, object]] = field(default_factory=list)


def write(path: Path, counts: _Counts, unseen: Sequence[str]) -> str:
    """Write the calls, and values beside them, and return what was written in a sentence."""
    cases: dict[str, _Line] = {}
    skipped: dict[str, _Line] = {}
    # Gradients are of tensors that require one, whatever mode the model ran in.
    with torch.inference_mode(mode=False), torch.enable_grad():
        for key, number in sorted(counts.calls.items(), key=lambda item: -item[1]):
            _place(key, number, cases, skipped)
        samples = [sample for kept in counts.samples for sample in _sample(kept)]
    lines = [
        line.begins | {"weight": line.weight, "calls": line.calls}
        for kind in (cases, skipped)
        for line in sorted(kind.values(), key=lambda line: -line.weight)
    ]
    lines += [{"skipped": sentence} for sentence in unseen]
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    beside.replace(path)
    if samples:
        write_values(values_path(path), samples)
    return _summary(path, cases, skipped, samples)


def _summary(
    path: Path,
    cases: Mapping[str, _Line],
    skipped: Mapping[str, _Line],
    samples: Sequence[ValueSample],
) -> str:
    calls = sum(line.weight for line in cases.values())
    ops = len({line.begins["op"] for line in cases.values()})
    text = (
        f"{path.name}: {count(calls, 'call')} of {count(len(cases), 'case')} of {count(ops, 'op')}"
    )
    if skipped:
        lost = sum(line.weight for line in skipped.values())
        reasons = count(len(skipped), "reason")
        text += f"; calls without an op: {lost:,}, for {reasons} in the file"
    if samples:
        text += f"; values of {count(len(samples), 'call')} in {values_path(path).name}"
    return text


def _place(
    key: _Key | _BackwardCall, number: int, cases: dict[str, _Line], skipped: dict[str, _Line]
) -> None:
    """Add a call to the lines of its cases, or to the line that says why it has none."""
    forward = key.forward if isinstance(key, _BackwardCall) else key
    about: dict[str, object] = {
        "function": forward.target.name,
        "direction": "backward" if isinstance(key, _BackwardCall) else "forward",
        "count": number,
    } | _shown(key)
    try:
        views = [(view, *case_of(view)) for view in _views(key)]
    except NoOpError as error:
        sentence = f"{forward.target.name}, {about['direction']}: {error}"
        _add(skipped.setdefault(sentence, _Line({"skipped": sentence})), number, about)
        return
    for _, case, notes in views:
        line = cases.setdefault(case.id(), _Line(line_of(case)))
        _add(line, number, about | ({"notes": list(notes)} if notes else {}))


def _add(line: _Line, number: int, about: dict[str, object]) -> None:
    line.weight += number
    if len(line.calls) < _MOST_CALLS_OF_A_LINE:
        line.calls.append(about)


def _views(
    key: _Key | _BackwardCall,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    grad: Tensor | None = None,
) -> list[View]:
    """Return a call as ops have it; without values its tensors are on the device meta."""
    forward = key.forward if isinstance(key, _BackwardCall) else key
    out = None
    if args is None or kwargs is None:
        args = tuple(_restored(value, forward) for value in forward.args)
        kwargs = {name: _restored(value, forward) for name, value in forward.kwargs}
        if isinstance(key, _BackwardCall):
            grad = _restored(key.grad, None)
            out = None if key.out is None else _restored(key.out, None)
    else:
        args = tuple(_as_autocast(value, forward) for value in args)
        kwargs = {name: _as_autocast(value, forward) for name, value in kwargs.items()}
    try:
        call = forward.target.arguments(*args, **kwargs)
        return forward.target.view(call, out, grad)
    except (TypeError, IndexError, RuntimeError, AttributeError, KeyError) as error:
        raise NoOpError(f"arguments of another kind than the op's ({error})") from error


def _restored(value: Any, key: _Key | None) -> Any:  # noqa: ANN401  (any argument of a function)
    if isinstance(value, _TensorForm):
        tensor = on_meta(value.shape, value.strides, value.dtype, value.offset)
        if value.requires_grad:
            tensor.requires_grad_()
        return tensor if key is None else _as_autocast(tensor, key)
    if isinstance(value, _Opaque):
        raise NoOpError(f"an argument is a {value.kind}, and must be a tensor or a number")
    return value


def _as_autocast(value: Any, key: _Key) -> Any:  # noqa: ANN401  (likewise)
    """Return a tensor in the dtype that autocast computes a product in."""
    if key.autocast is None or not key.target.low_precision or not isinstance(value, Tensor):
        return value
    return value.to(key.autocast) if value.dtype.is_floating_point else value


def _shown(key: _Key | _BackwardCall) -> dict[str, object]:
    """Return shapes, strides, dtypes and numbers of a call, for JSON."""
    forward = key.forward if isinstance(key, _BackwardCall) else key
    named = {str(place): value for place, value in enumerate(forward.args)} | dict(forward.kwargs)
    if isinstance(key, _BackwardCall):
        named["gradient"] = key.grad
    result: dict[str, object] = {
        "arguments": {name: _json(value) for name, value in named.items() if value is not None}
    }
    if forward.autocast is not None:
        result["autocast"] = str(forward.autocast).removeprefix("torch.")
    return result


def _json(value: object) -> object:
    if isinstance(value, _TensorForm):
        dtype = str(value.dtype).removeprefix("torch.")
        shown = {"shape": value.shape, "strides": value.strides, "dtype": dtype}
        return shown | ({"offset": value.offset} if value.offset else {})
    if isinstance(value, _Opaque):
        return value.kind
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(value)


def _sample(kept: _Sampled) -> list[ValueSample]:
    """Return the values of a call as arguments of ops; none where no op can express it."""
    try:
        views = _views(kept.key, kept.args, kept.kwargs, kept.grad)
        # The copies are packed: the case is of where the call's own tensors lay.
        cases: list[Case] = [case_of(view)[0] for view in _views(kept.key)]
    except NoOpError:
        return []
    return [
        ValueSample(
            OPS[view.op],
            case.id(),
            {name: v for name, v in view.arguments.items() if v is not None},
        )
        for view, case in zip(views, cases, strict=True)
    ]
