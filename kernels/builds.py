"""Build what a kernel needs before its first call: a library of C++ or CUDA, a table, a cubin.

A kernel names a function in `build=`. The suites call it once, in a process of its own, before a
worker calls the kernel; `built` returns its result, in the kernel's own function and in a program
without the suites. Results lie in the user's cache, in a folder for each version of the kernel's
file, so that a second run builds nothing.

A lock lets one process build at a time. The system frees the lock with its process, and the next
build clears the folder, so an interrupted build leaves nothing to remove.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import pickle
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from kernel_workbench.kernels.causes import cause_of

Result = TypeVar("Result")
_RESULT, _LOG = "result.pickle", "log.txt"
_SOURCES = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inl", ".ptx"})
_LOOK_EVERY_S = 0.2
_LONGEST_WAIT_S = 3600.0
_ERROR = re.compile(r"\berror\b|not found|No such file", re.IGNORECASE)
_COUNT = re.compile(
    r"^\d+ errors? (detected|generated)|^Error building extension|^compilation term"
)
_loaded: dict[Path, object] = {}  # results in this process, by their folders


class BuildError(RuntimeError):
    """A kernel's build failed; the message is one sentence."""


def built(build: Callable[[Path], Result], wait_s: float = _LONGEST_WAIT_S) -> Result:
    """Return the result of a kernel's build, which is built first if the cache lacks it.

    Args:
        build: the function of `build=`: it takes a folder for what it builds, and returns a path or
            another value that pickle takes.
        wait_s: how long to wait for another process that builds the same, in seconds.

    Raises:
        BuildError: if the build fails, or another process holds the lock for longer.
    """
    folder = _folder_of(build)
    if folder not in _loaded:
        if not (folder / _RESULT).is_file():
            with _locked(folder, wait_s):
                if not (folder / _RESULT).is_file():
                    _build_in(folder, build)
        _loaded[folder] = pickle.loads((folder / _RESULT).read_bytes())  # noqa: S301  (our own)
    return _loaded[folder]  # type: ignore[return-value]


def is_built(build: Callable[[Path], object]) -> bool:
    """Return True if the cache has the result. Raises BuildError."""
    return (_folder_of(build) / _RESULT).is_file()


def builds_folder() -> Path:
    """Return the folder of all builds, in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "kernel-workbench" / "builds"


def old_locks(moment: float) -> tuple[Path, ...]:
    """Return lock files of torch's extensions that are older than a moment (of time.time).

    `load_inline` and `load` wait for such a lock without a limit. An interrupted build leaves one.
    """
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(root) if root else Path(cache) / "torch_extensions"
    locks = (lock for pattern in ("*/lock", "*/*/lock") for lock in folder.glob(pattern))
    return tuple(lock for lock in locks if _modified(lock) < moment)


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return float("inf")


def _folder_of(build: Callable[[Path], object]) -> Path:
    """Return the folder of a build: by its file, the sources beside that, and the versions."""
    if not inspect.isfunction(build):
        raise BuildError(f"build is {build!r}; write a function of the kernel's file")
    file = Path(inspect.getfile(build)).resolve()
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else ()
    versions = sys.version, torch.__version__, torch.version.cuda, platform.machine(), capability
    content = hashlib.sha256(repr((str(file), build.__qualname__, versions)).encode())
    try:
        beside = sorted(other for other in file.parent.iterdir() if other.suffix in _SOURCES)
        for source in (file, *beside):
            content.update(source.name.encode() + b"\0" + source.read_bytes())
    except OSError as error:
        raise BuildError(f"{error.filename}: it can't be read: {error.strerror}") from error
    return builds_folder() / content.hexdigest()[:32]


@contextmanager
def _locked(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock of a folder within the context. Raises BuildError."""
    deadline = time.monotonic() + wait_s
    path = folder.with_suffix(".lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BuildError(f"{path}: it can't be written: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    process = os.pread(lock, 20, 0).decode(errors="replace").strip()
                    raise BuildError(
                        f"process {process} has built the same for over {wait_s:g} s; wait for it "
                        "or end it"
                    ) from None
                time.sleep(_LOOK_EVERY_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def _build_in(folder: Path, build: Callable[[Path], object]) -> None:
    """Call the function in an empty folder, and store its result there. Raises BuildError."""
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted build
    folder.mkdir(parents=True)
    log = folder / _LOG
    try:
        with _printing_to(log):
            result = build(folder)
    except (Exception, SystemExit) as error:
        printed = log.read_text(errors="replace")
        raise BuildError(_told_of(error, printed, build, log)) from error
    try:
        content = pickle.dumps(result)
    except Exception as error:
        kind = type(result).__name__
        raise BuildError(
            f"{build.__name__} returned a {kind}, which pickle refuses ({error}); return a path, "
            "and load it where the kernel is called"
        ) from error
    unfinished = folder / f"{_RESULT}.unfinished"
    unfinished.write_bytes(content)
    unfinished.replace(folder / _RESULT)


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Send what this process and its compilers print to a file within the context."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for descriptor, _ in kept:
            os.dup2(output, descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(output)


def _told_of(error: BaseException, printed: str, build: Callable[[Path], object], log: Path) -> str:
    """Return one sentence about a failed build: the compiler's last line, and the cause."""
    captured = [getattr(error, name, None) for name in ("output", "stderr")]
    texts = [
        text.decode(errors="replace") if isinstance(text, bytes) else text for text in captured
    ]
    message = "\n".join([printed, *map(str, filter(None, texts)), str(error)])
    line = _last_line(message) or type(error).__name__
    cause = cause_of(message)
    where = f"{build.__name__} raised {type(error).__name__}: {line[:300]}"
    return (where if cause is None else f"{where}; {cause}") + f" (all of its output: {log})"


def _last_line(text: str) -> str:
    """Return the last line about an error, or else the last line."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _COUNT.search(line)]
    return (errors or lines or [""])[-1]
