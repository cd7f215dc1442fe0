"""What a call could change of its process for whoever comes next, and how that is undone.

Around each call of a candidate its process is read and afterwards set back: a kernel that leaves
the default dtype, the random state or a signal handler changed breaks a rule, and the next kernel
is called in the process that it would have found without it.

What importing a user's file changes (TF32 allowed, an environment variable) holds around calls of
that file's kernels, which may need it, and for no other's. So does what libraries change when they
are first used, and what a kernel is meant to set: Triton's allocator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_workbench.kernels.registry import Kernel, KernelError, load_file
from kernel_workbench.suites.sandbox.worker_side.process_settings import (
    ENVIRONMENT,
    SETTINGS,
    UNSET,
    Setting,
)


@dataclass(slots=True)
class Changes:
    """What a call left changed. broken: a sentence, of what a kernel must not change.

    spent: something couldn't be set back, so no other kernel may be called in this process.
    """

    broken: str | None = None
    spent: bool = False


State = Mapping[Setting, object]

_RULE = "a kernel leaves the process as it found it (its file's head may set what it needs)"

# By a file's path, what holds around calls of its kernels.
_own: dict[str, dict[Setting, object]] = {}


@contextmanager
def kept(path: str, changes: Changes) -> Iterator[None]:
    """Inside, what the file at `path` has set holds; after it, all is as it was before."""
    outside = read()
    own = _own.setdefault(path, {})
    for setting, value in own.items():
        with suppress(Exception):
            setting.write(value)
    before, modules = read() if own else outside, set(sys.modules)
    try:
        yield
    finally:
        now = read()
        for setting in SETTINGS:
            if _same(setting, before, now):
                continue
            if setting.fails and not (
                setting is ENVIRONMENT and _set_by_imports(before, now, modules)
            ):
                told = f"{_told(setting, before, now)}: {_RULE}"
                changes.broken = changes.broken or told
            else:
                own[setting] = now[setting]
        left = set_back(outside, now)
        changes.spent = changes.spent or bool(left)


@contextmanager
def freed(changes: Changes) -> Iterator[None]:
    """Inside, around `kept`, nothing but what a call left behind changes the process.

    As a finaliser of an output does, which runs when the suites let go of it.
    """
    before = read()
    yield
    now = read()
    changed = [each for each in SETTINGS if each.fails and not _same(each, before, now)]
    if changed:
        changes.broken = changes.broken or f"{_told(changed[0], before, now)}: {_RULE}"
        changes.spent = bool(set_back(before, now)) or changes.spent


def load_kept(path: Path) -> tuple[Kernel, ...]:
    """Import a user's file: what that changes holds around calls of its kernels alone.

    Raises KernelError as `load_file` does, and where what it changed can't be set back.
    """
    before = read()
    try:
        kernels = load_file(path)
    finally:
        now = read()
        left = set_back(before, now)
    if left:
        told = _told(left[0], before, now)
        raise KernelError(
            f"--kernels {path}: importing it can't be undone for other files' kernels: {told}"
        )
    changed = {each: now[each] for each in SETTINGS if not _same(each, before, now)}
    for each in kernels:
        _own[each.path] = dict(changed)
    return kernels


def _set_by_imports(before: State, now: State, modules: set[str]) -> bool:
    """Whether what was imported since then names each variable that changed: it set them."""
    one, other = before[ENVIRONMENT], now[ENVIRONMENT]
    assert isinstance(one, dict) and isinstance(other, dict)
    changed = {each for each in one | other if one.get(each) != other.get(each)}
    for name in sys.modules.keys() - modules:
        try:
            text = Path(str(getattr(sys.modules[name], "__file__", None))).read_text()
        except (OSError, ValueError):
            continue
        changed = {each for each in changed if each not in text}
    return not changed


def read(settings: Iterable[Setting] = SETTINGS) -> State:
    """The process as it is."""
    return {each: _value(each) for each in settings}


def _value(setting: Setting) -> object:
    try:
        return setting.read()
    except Exception as error:  # noqa: BLE001  (a candidate may have broken anything)
        return f"unreadable ({type(error).__name__})"


def _same(setting: Setting, before: State, now: State) -> bool:
    one, other = before[setting], now[setting]
    if one is None or other is None or one == other:
        return True
    return bool(setting.meaning(one) == setting.meaning(other))


def set_back(before: State, now: State) -> list[Setting]:
    """Undo every change, in the table's order; what couldn't be undone."""
    if all(_same(each, before, now) for each in SETTINGS):
        return []
    for each in SETTINGS:  # what was written may have changed this one
        if not _same(each, before, read([each])):
            with suppress(Exception):
                each.write(before[each])
    after = read()
    return [each for each in SETTINGS if not _same(each, before, after)]


def _told(setting: Setting, before: State, now: State) -> str:
    name, one, other = setting.name, before[setting], now[setting]
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = setting.meaning(one), setting.meaning(other)
        key = next(each for each in (*other, *one) if one.get(each) != other.get(each))
        name, one, other = f"{name} {key}", one.get(key, UNSET), other.get(key, UNSET)
    if not setting.shown:
        return f"it changed {name}"
    return f"it left {name} at {_spelled(other)}, from {_spelled(one)}"


def _spelled(value: object) -> str:
    text = " ".join(str(getattr(value, "__name__", value)).split())
    return text if len(text) <= 60 else f"{text[:60]}..."
