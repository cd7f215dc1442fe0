"""Code of the suites that a kernel replaces fails it, and reaches no other kernel."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import json
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.suites.interpreter import strict
from kernel_workbench.suites.sandbox import call as calls
from kernel_workbench.suites.sandbox.call import Call
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.worker_side import (
    candidate,
    fingerprint,
    process_settings,
    watch,
)
from tests import ROOT
from tests.mutants.cheats import MUTANTS
from tests.suites.sandbox.test_tasks import CASE, MODULE

_CANDIDATES = ROOT / "tests" / "candidates"
_OFFENDERS = [each.kernel for each in MUTANTS if each.rules == ("replaced code",)]
_MUTATING = (
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove",
    "setdefault", "sort", "update",
)  # fmt: skip


class _Impostor(ModuleType):
    """A module whose attributes aren't what its functions see."""


def _other(*_: object, **__: object) -> None:
    """Stand in another function's place."""


# The change that a call makes, and what the report says of the change.
_REPLACED: dict[str, tuple[Callable[[], object], str]] = {
    "function": (
        lambda: setattr(watch, "seen", _other),
        "it replaced kernel_workbench.suites.sandbox.worker_side.watch.seen",
    ),
    "method": (
        lambda: setattr(watch._Refusal, "set", _other),
        "it replaced kernel_workbench.suites.sandbox.worker_side.watch._Refusal.set",
    ),
    "attribute that hides a method": (
        lambda: setattr(watch._REFUSAL, "set", _other),
        "it replaced kernel_workbench.suites.sandbox.worker_side.watch._REFUSAL.set",
    ),
    "code": (
        lambda: setattr(watch.note_operation, "__code__", _other.__code__),
        "it replaced kernel_workbench.suites.sandbox.worker_side.watch.note_operation",
    ),
    "default": (
        lambda: setattr(inspect.unwrap(watch.seen), "__defaults__", (1, 2)),
        "it replaced __defaults__ of kernel_workbench.suites.sandbox.worker_side.watch.seen",
    ),
    "default of a keyword": (
        lambda: _defaults_of(strict.watched).update(same_stores=True),
        (
            "it replaced entry 'same_stores' of the defaults of "
            "kernel_workbench.suites.interpreter.strict.watched"
        ),
    ),
    "name that hides a builtin": (
        lambda: setattr(candidate, "tuple", list),
        "it replaced kernel_workbench.suites.sandbox.worker_side.candidate.tuple",
    ),
    "module": (
        lambda: sys.modules.update({watch.__name__: candidate}),
        "it replaced sys.modules.kernel_workbench.suites.sandbox.worker_side.watch",
    ),
    "class of a module": (
        lambda: setattr(watch, "__class__", _Impostor),
        "it replaced kernel_workbench.suites.sandbox.worker_side.watch",
    ),
    "entry": (
        lambda: candidate._VALUES.update(nan=0.0),
        "it replaced entry 'nan' of kernel_workbench.suites.sandbox.worker_side.candidate._VALUES",
    ),
    "field of a frozen object": (
        lambda: object.__setattr__(process_settings.SETTINGS[0], "fails", None),
        "it replaced kernel_workbench.suites.sandbox.worker_side.process_settings.",
    ),
    "what a closure refers to": (
        lambda: setattr(_closure_of(watch.seen)[0], "cell_contents", _other),
        "it replaced what kernel_workbench.suites.sandbox.worker_side.watch.seen refers to",
    ),
    "tensors' method": (
        lambda: setattr(torch.Tensor, "clone", torch.Tensor.contiguous),
        "it replaced torch.Tensor.clone",
    ),
    "torch's function": (
        lambda: setattr(torch.cuda, "synchronize", _other),
        "it replaced torch.cuda.synchronize",
    ),
    "torch's function's code": (
        lambda: setattr(torch.cuda.synchronize, "__code__", _other.__code__),
        "it replaced torch.cuda.synchronize",
    ),
    "clock": (
        lambda: setattr(time, "perf_counter", _other),
        "it replaced time.perf_counter",
    ),
    "builtin": (
        lambda: setattr(builtins, "isinstance", lambda *_: True),
        "it replaced builtins.isinstance",
    ),
    "encoder": (
        lambda: setattr(json.JSONEncoder, "encode", _other),
        "it replaced json.encoder.JSONEncoder.encode",
    ),
}


def _defaults_of(function: object) -> dict[str, object]:
    plain = inspect.unwrap(function) if callable(function) else function
    assert isinstance(plain, FunctionType) and plain.__kwdefaults__
    return plain.__kwdefaults__


def _closure_of(function: object) -> tuple[CellType, ...]:
    assert isinstance(function, FunctionType) and function.__closure__
    return function.__closure__


@pytest.fixture(name="noted", scope="module")
def _noted() -> fingerprint.Fingerprint:
    """Return the fingerprint of what is loaded here, before any of it is replaced."""
    return fingerprint.take()


@pytest.mark.parametrize("name", _REPLACED)
def test_code_that_was_replaced_is_named(name: str, noted: fingerprint.Fingerprint) -> None:
    """In one sentence; and once it is as it was, nothing is told."""
    change, expected = _REPLACED[name]
    assert noted.changed() is None
    change()
    found = noted.changed()
    assert noted.set_back()
    assert found is not None
    assert found.startswith(expected)
    assert found.endswith("a kernel leaves the code that calls it, and judges it, as it was")


def test_replacement_is_seen_after_a_lawful_change(noted: fingerprint.Fingerprint) -> None:
    """The number of names is the same before and after."""
    assert noted.changed() is None
    vars(candidate)["__warningregistry__"] = {}
    assert noted.changed() is None
    del vars(candidate)["__warningregistry__"]
    vars(candidate)["tuple"] = list
    found = noted.changed() or ""
    assert noted.set_back()
    assert "candidate.tuple" in found


def test_further_table_may_not_change() -> None:
    """The worker's own, by the name that it gives."""
    tasks: dict[str, object] = {"one": _other}
    noted = fingerprint.take({"the worker's tasks": tasks})
    tasks["one"] = print
    assert (noted.changed() or "").startswith("it replaced entry 'one' of the worker's tasks")
    assert noted.set_back()
    assert tasks == {"one": _other}


def _in_a_mode() -> None:
    with torch.overrides.BaseTorchFunctionMode():
        torch.ones(1).clone()


_LAZY_STREAM = "default_capture_stream"


# Changes that libraries, Python and the suites make between two calls, and no kernel fails for.
_LAWFUL: dict[str, Callable[[], object]] = {
    "warns": lambda: warnings.warn_explicit("once", UserWarning, "a", 1, registry={}),
    "wraps a function of ours": lambda: functools.wraps(calls.told_of)(_other),
    "reads its attributes": lambda: vars(calls.told_of),
    "reads annotations": lambda: inspect.get_annotations(calls.told_of),
    "inspects a class": lambda: inspect.signature(calls.Call),
    "imports the compiler": lambda: importlib.import_module("torch._dynamo"),
    "imports inductor": lambda: importlib.import_module("torch._inductor.compile_fx"),
    "imports a module of ours": lambda: importlib.import_module("kernel_workbench.kernels.device"),
    "imports flex attention": lambda: importlib.import_module("torch.nn.attention.flex_attention"),
    "traces": lambda: torch.fx.symbolic_trace(torch.nn.Softmax(0)),
    "compiles eagerly": lambda: torch.compile(torch.sin, backend="eager")(torch.ones(3)),
    "sees a function mode": _in_a_mode,
    "differentiates": lambda: torch.ones(2, requires_grad=True).sum().backward(),
    "defines an operation": lambda: torch.library.custom_op(
        "fingerprint::twice", lambda x: 2 * x, mutates_args=(), schema="(Tensor x) -> Tensor"
    )(torch.ones(1)),
    "opens a socket": socket.socketpair,
    "captures its first graph": lambda: setattr(torch.cuda.graph, _LAZY_STREAM, _other),
}


@pytest.mark.parametrize("name", _LAWFUL)
def test_what_libraries_change_is_no_alarm(name: str, noted: fingerprint.Fingerprint) -> None:
    """Nor does it hide what is replaced afterwards."""
    with warnings.catch_warnings(action="ignore"):
        _LAWFUL[name]()
    assert noted.changed() is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "seen", _other)
        assert noted.changed() is not None
    assert noted.changed() is None


@pytest.fixture(scope="module")
def workers(device: torch.device) -> Iterator[Workers]:
    """Workers that know a file for each offender, and a sound kernel."""
    files = [_CANDIDATES / "cheats" / f"{each}.py" for each in _OFFENDERS]
    files += [_CANDIDATES / "state_witness.py", _CANDIDATES / "leaking_kernels.py"]
    made = Workers(device, 90, files=tuple(files), tasks=(MODULE,))
    yield made
    made.close()


def _named(workers: Workers, name: str) -> Kernel:
    return next(each for each in workers.kernels() if each.name == name)


def _parcel(workers: Workers) -> Parcel:
    return Parcel.of(LAYER_NORM_BACKWARD.inputs(CASE, workers.device), workers.arena_device)


def _called(workers: Workers, name: str) -> Call:
    return workers.call(_named(workers, name), CASE, _parcel(workers), "nan")


@pytest.mark.long_run
@pytest.mark.parametrize("offender", _OFFENDERS)
def test_kernel_beside_one_that_replaces_code_passes(offender: str, workers: Workers) -> None:
    """Before it in the same worker, and after it in that or another one; tasks fail alike."""
    if workers.device.type == "cuda" and offender == "replaces_the_interpreter":
        pytest.skip("on a GPU there is no interpreter")
    settings = {"what": "call", "outputs": False}
    assert _called(workers, "witness").reason is None
    assert _called(workers, offender).rule == "replaced code"
    assert _called(workers, "witness").reason is None
    with pytest.raises(TaskError) as raised:
        workers.task(_named(workers, offender), CASE, [_parcel(workers)], MODULE, settings, 60.0)
    assert raised.value.rule == "replaced code"
    assert _called(workers, "witness").reason is None


def test_kernel_is_not_blamed_for_what_an_earlier_one_left(workers: Workers) -> None:
    """A finaliser replaces code after the next call has inputs; another worker makes that call."""
    assert _called(workers, "replaces_clone_when_inputs_go").reason is None
    assert _called(workers, "witness").reason is None


def _assigned(module: ast.Module) -> set[str]:
    """Names that a module gives values to, outside of its functions and classes."""
    found = set()
    for each in module.body:
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            walked = (inner for target in targets for inner in ast.walk(target))
            found |= {inner.id for inner in walked if isinstance(inner, ast.Name)}
    return found


def _mutated(module: ast.Module) -> Iterator[str]:
    """Names of it whose values its functions change in place, or that they rebind."""
    functions = [each for each in ast.walk(module) if isinstance(each, ast.FunctionDef)]
    for each in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(each, ast.Global):
            yield from each.names
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            owner = each.func.value
            if each.func.attr in _MUTATING and isinstance(owner, ast.Name):
                yield owner.id
        if isinstance(each, ast.Assign | ast.Delete | ast.AugAssign):
            targets = [each.target] if isinstance(each, ast.AugAssign) else each.targets
            for target in targets:
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    yield target.value.id


def _constants_that_change(file: Path) -> set[str]:
    module = ast.parse(file.read_text())
    parts = ("kernel_workbench", *file.relative_to(ROOT).with_suffix("").parts)
    name = ".".join(parts).removesuffix(".__init__")
    return {f"{name}.{each}" for each in _mutated(module) if each in _assigned(module)}


def test_tables_that_change_are_listed() -> None:
    """Each that a function of the suites' changes is exempt, so that no sound kernel fails."""
    files = (ROOT / "suites").rglob("*.py")
    changing = {each for file in files for each in _constants_that_change(file)}
    assert changing - fingerprint.CHANGING == set()


def test_names_that_are_exempt_exist() -> None:
    """One that was renamed would be compared, and one that was deleted hide nothing."""
    for each in fingerprint.CHANGING:
        home, _, name = each.rpartition(".")
        owner: Any
        try:
            owner = importlib.import_module(home)
        except ModuleNotFoundError:
            module, _, of = home.rpartition(".")
            owner = getattr(importlib.import_module(module), of)
        assert hasattr(owner, name), each


def test_comparing_holds_on_to_nothing_of_a_user() -> None:
    """A function that was replaced and put back can be freed."""
    noted = fingerprint.take()
    before = sys.getrefcount(_other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "seen", _other)
        assert noted.changed() is not None
    assert noted.changed() is None
    assert sys.getrefcount(_other) == before
    assert isinstance(watch.seen, FunctionType)
