"""Another commit's tree, checked out beside this one, in the user's cache.

A tree is kept for the next run and is known by its commit. Of trees that no run is using the last
few are kept, the others are removed, so that a cache doesn't grow with every commit compared.
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
    """A commit's tree can't be had; the message is one sentence for the user."""


def commit_of(root: Path, ref: str) -> str:
    """The commit that `ref` names in the checkout at `root`. Raises TreeError."""
    if not (root / ".git").exists():
        raise TreeError(f"--against {ref}: {root} is no git checkout, so it has no other commits")
    try:
        return _git(
            root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
        )
    except TreeError as error:
        told = f" ({error})" if str(error) else ""
        raise TreeError(
            f"--against {ref}: git knows no such commit here{told}; name a branch, a tag or a "
            "commit, or a kernel file that ends in .py"
        ) from error


def is_dirty(root: Path) -> bool:
    """Whether the checkout at `root` has changes that aren't committed."""
    return bool(_git(root, "status", "--porcelain"))


@contextmanager
def tree_of(root: Path, commit: str) -> Iterator[Path]:
    """The tree of a commit of the checkout at `root`, whole while the context lasts.

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
        held = _lock(_lock_of(path), fcntl.LOCK_SH)
        _forget(root, folder, path)
    try:
        yield path
    finally:
        os.close(held)


def _folder(root: Path) -> Path:
    """A folder for the checkout's trees; two checkouts share none."""
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
    """Whether the tree is that commit's, as it was checked out."""
    try:
        return (
            (path / ".git").is_file()
            and _git(path, "rev-parse", "HEAD") == commit
            and not is_dirty(path)
        )
    except TreeError:
        return False


def _forget(root: Path, folder: Path, current: Path) -> None:
    """Remove trees that are neither among the last ones used nor in use."""
    trees = [each for each in folder.iterdir() if each.is_dir() and each != current]
    trees.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for each in trees[_KEPT - 1 :]:
        try:
            held = _lock(_lock_of(each), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        _remove(root, each)
        _lock_of(each).unlink(missing_ok=True)
        os.close(held)


def _remove(root: Path, path: Path) -> None:
    if path.exists():
        _git(root, "worktree", "remove", "--force", "--force", str(path))


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    held = _lock(path, how)
    try:
        yield
    finally:
        os.close(held)


def _lock(path: Path, how: int) -> int:
    """A descriptor that holds the lock until it is closed. Raises BlockingIOError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _git(root: Path, *arguments: str) -> str:
    """What git prints. Raises TreeError with git's own last words."""
    # A hook's variables would turn git to another repository.
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
