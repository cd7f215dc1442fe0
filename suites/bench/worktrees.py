"""Check out another commit's tree beside this one, for as long as it is needed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    """Yield the tree of a commit of the checkout at `root`. Raises TreeError."""
    try:
        with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
            path = Path(folder) / commit[:12]
            _git(root, "worktree", "add", "--detach", str(path), commit)
            yield path
    finally:
        _git(root, "worktree", "prune")


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
