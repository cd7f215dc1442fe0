"""Records as they lie in a git branch, which needn't be checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError

KINDS = (".jsonl", ".jsonl.gz")


def copy_records(branch: str, into: Path) -> Path:
    """Copy a branch's records to a folder, under the names that they have there.

    Args:
        branch: `NAME` or `NAME:FOLDER`, of the checkout that this is run in.
        into: the folder, which is returned.

    Raises:
        RecordError: git has no such branch or folder, or it holds no record.
    """
    name, _, inside = branch.partition(":")
    problem = f"--branch {shown(branch)}"
    try:
        commit = _git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        tree = f"{commit.decode().strip()}:{inside.strip('/')}"
        names = _git("ls-tree", "-r", "-z", "--name-only", tree).decode().split("\0")
        records = [name for name in names if name.endswith(KINDS)]
        for record in records:
            copy = into / PurePosixPath(record)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_git("show", f"{tree}{'' if tree.endswith(':') else '/'}{record}"))
    except subprocess.CalledProcessError as error:
        message = " ".join(error.stderr.decode(errors="replace").split())
        raise RecordError(
            f"{problem}: git can't give its records ({shown(message)}); name a branch of this "
            "checkout, and after a colon a folder in it"
        ) from error
    except OSError as error:
        raise RecordError(f"{problem}: its records can't be copied ({error.strerror})") from error
    if not records:
        raise RecordError(
            f"{problem}: there is no record in it: no file whose name ends in {' or '.join(KINDS)}"
        )
    return into


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True, check=True)  # noqa: S603, S607
    return done.stdout
