"""Check out another commit's tree beside this one, in the user's cache.

A tree is kept for the next run, by its commit. The last few unused trees are kept and the others
removed, so that the cache doesn't grow with every compared commit.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KEPT = 4
_SHORT = 12


class TreeError(Exception):
    """A commit's tree isn't available; the message is one sentence for the user."""


def commit_of(root: Path, ref: str) -> str:
    """Return the commit that `ref` names in the checkout at `root`. Raises TreeError."""
    if not (root / ".git").exists():
        raise TreeError(f"--against {ref}: {root} is no git checkout, so it has no other commits")
    try:
        return _git(
            root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
        )
    except TreeError as error:
        detail = f" ({error})" if str(error) else ""
        raise TreeError(
            f"--against {ref}: git knows no such commit here{detail}; name a branch, a tag or a "
            "commit, or a kernel file that ends in .py"
        ) from error


def is_dirty(root: Path) -> bool:
    """Return True if the checkout at `root` has uncommitted changes."""
    return bool(_git(root, "status", "--porcelain"))


@contextmanager
def tree_of(root: Path, commit: str) -> Iterator[Path]:
    """Yield the tree of a commit of the checkout at `root`; no other run removes it meanwhile.

    Raises TreeError.
    """
    folder = _folder(root)
    path = folder / commit[:_SHORT]
    with _locked(folder / "folder.lock", fcntl.LOCK_EX):
        _git(root, "worktree", "prune")
        if not _is_whole(path, commit):
            _remove(root, path)
            _git(root, "worktree", "add", "--force", "--detach", str(path), commit)
        os.utime(path)
        lock = _lock(_lock_of(path), fcntl.LOCK_SH)
        _forget(root, folder, path)
    try:
        yield path
    finally:
        os.close(lock)


def _folder(root: Path) -> Path:
    """Return the folder of the checkout's trees; two checkouts share none."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    own = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:_SHORT]
    folder = Path(cache) / "kernel-workbench" / "worktrees" / own
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TreeError(
            f"{folder}: can't be made ({error.strerror}); set XDG_CACHE_HOME to a folder that can "
            "be written to"
        ) from error
    return folder


def _is_whole(path: Path, commit: str) -> bool:
    """Return True if the tree is an unchanged checkout of the commit."""
    try:
        return (
            (path / ".git").is_file()
            and _git(path, "rev-parse", "HEAD") == commit
            and not is_dirty(path)
        )
    except TreeError:
        return False


def _forget(root: Path, folder: Path, current: Path) -> None:
    """Remove trees that are neither among the last used ones nor in use."""
    trees = [tree for tree in folder.iterdir() if tree.is_dir() and tree != current]
    trees.sort(key=lambda tree: tree.stat().st_mtime, reverse=True)
    for tree in trees[_KEPT - 1 :]:
        try:
            lock = _lock(_lock_of(tree), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        _remove(root, tree)
        _lock_of(tree).unlink(missing_ok=True)
        os.close(lock)


def _remove(root: Path, path: Path) -> None:
    if path.exists():
        _git(root, "worktree", "remove", "--force", "--force", str(path))


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    lock = _lock(path, how)
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: Path, how: int) -> int:
    """Return a descriptor that keeps the lock until it is closed. Raises BlockingIOError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _git(root: Path, *arguments: str) -> str:
    """Return git's output. Raises TreeError with git's last line."""
    # Variables of a git hook would select another repository.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],  # noqa: S607 (wherever git is)
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=variables,
        )
    except OSError as error:
        raise TreeError(f"git can't be run ({error.strerror})") from error
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise TreeError(words[-1] if words else "")
    return done.stdout.strip()
