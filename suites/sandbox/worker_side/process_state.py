"""Restore the process state that a call could change for the next one.

The process state is read before each call of a candidate and restored after it: a kernel that
leaves the default dtype, the random state or a signal handler changed breaks a rule, and the next
kernel finds the process as if that kernel had not been called.

Changes by the import of a user's file (TF32 allowed, an environment variable) apply around calls of
that file's kernels, which may need them, and not around other calls. The same holds for changes
that libraries make at their first use, and for settings that kernels may change: Triton's
allocator.
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
class StateChanges:
    """Changes that a call left.

    broken  a sentence about a setting that a kernel must not change, or None
    spent   some setting can't be restored, so no other kernel may be called in this process
    """

    broken: str | None = None
    spent: bool = False


State = Mapping[Setting, object]

_RULE = "a kernel leaves the process as it found it (its file's head may set what it needs)"

# By a file's path, the settings that apply around calls of its kernels.
_settings_of_file: dict[str, dict[Setting, object]] = {}


@contextmanager
def kept(path: str, changes: StateChanges) -> Iterator[None]:
    """Apply the settings of the file at `path` within the context, and restore all after it."""
    outside = read()
    own = _settings_of_file.setdefault(path, {})
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
                sentence = f"{_sentence(setting, before, now)}: {_RULE}"
                changes.broken = changes.broken or sentence
            else:
                own[setting] = now[setting]
        left = set_back(outside, now)
        changes.spent = changes.spent or bool(left)


@contextmanager
def freed(changes: StateChanges) -> Iterator[None]:
    """Detect, around `kept`, changes by code that the call left behind.

    An example is the finaliser of an output, which runs when the suites free the output.
    """
    before = read()
    yield
    now = read()
    changed = [setting for setting in SETTINGS if setting.fails and not _same(setting, before, now)]
    if changed:
        changes.broken = changes.broken or f"{_sentence(changed[0], before, now)}: {_RULE}"
        changes.spent = bool(set_back(before, now)) or changes.spent


def load_kept(path: Path) -> tuple[Kernel, ...]:
    """Import a user's file, whose changed settings then apply only around calls of its kernels.

    Raises:
        KernelError: as `load_file` does, or if a changed setting can't be restored.
    """
    before = read()
    try:
        kernels = load_file(path)
    finally:
        now = read()
        left = set_back(before, now)
    if left:
        sentence = _sentence(left[0], before, now)
        raise KernelError(
            f"--kernels {path}: importing it can't be undone for other files' kernels: {sentence}"
        )
    changed = {setting: now[setting] for setting in SETTINGS if not _same(setting, before, now)}
    for kernel in kernels:
        _settings_of_file[kernel.path] = dict(changed)
    return kernels


def _set_by_imports(before: State, now: State, modules: set[str]) -> bool:
    """Return True if the modules imported since then name each changed variable: they set it."""
    one, other = before[ENVIRONMENT], now[ENVIRONMENT]
    assert isinstance(one, dict) and isinstance(other, dict)
    changed = {variable for variable in one | other if one.get(variable) != other.get(variable)}
    for name in sys.modules.keys() - modules:
        try:
            text = Path(str(getattr(sys.modules[name], "__file__", None))).read_text()
        except (OSError, ValueError):
            continue
        changed = {variable for variable in changed if variable not in text}
    return not changed


def read(settings: Iterable[Setting] = SETTINGS) -> State:
    """Return the values of the settings."""
    return {setting: _value(setting) for setting in settings}


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
    """Undo every change, in the table's order; return the settings that couldn't be restored."""
    if all(_same(setting, before, now) for setting in SETTINGS):
        return []
    for setting in SETTINGS:  # an earlier write may have changed this setting
        if not _same(setting, before, read([setting])):
            with suppress(Exception):
                setting.write(before[setting])
    after = read()
    return [setting for setting in SETTINGS if not _same(setting, before, after)]


def _sentence(setting: Setting, before: State, now: State) -> str:
    name, one, other = setting.name, before[setting], now[setting]
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = setting.meaning(one), setting.meaning(other)
        key = next(entry for entry in (*other, *one) if one.get(entry) != other.get(entry))
        name, one, other = f"{name} {key}", one.get(key, UNSET), other.get(key, UNSET)
    if not setting.shown:
        return f"it changed {name}"
    return f"it left {name} at {_spelled(other)}, from {_spelled(one)}"


def _spelled(value: object) -> str:
    text = " ".join(str(getattr(value, "__name__", value)).split())
    return text if len(text) <= 60 else f"{text[:60]}..."
