"""Note which once-per-kernel checks a run has made.

Such a check costs seconds: a call in a process of its own, calls beside a busy stream, a CUDA
graph. A run on a GPU has up to 16 processes, each of which takes cases of every kernel. They share
their notes as empty files in a folder of the run. Two processes that begin a check at the same time
both make it; no check is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Questions:
    """The checks that a run has made, each known by a tuple of strings.

    folder: a folder that all processes of the run share; None if this process shares nothing.

    >>> asked = Questions()
    >>> asked.add(("raced", "softmax"))
    >>> ("raced", "softmax") in asked, ("raced", "rope") in asked
    (True, False)
    """

    folder: Path | None = None
    _own: set[Hashable] = field(default_factory=set)

    def __contains__(self, check: Hashable) -> bool:
        """Return True if the check was made, by this process or another one of the run."""
        if check not in self._own and self.folder is not None and self._note(check).exists():
            self._own.add(check)
        return check in self._own

    def __iter__(self) -> Iterator[Hashable]:
        """Iterate over the checks that this process knows of."""
        return iter(self._own)

    def add(self, check: Hashable) -> None:
        """Note that the check is made."""
        self._own.add(check)
        if self.folder is not None:
            self._note(check).touch()

    def update(self, checks: Iterable[Hashable]) -> None:
        """Note that these checks are made."""
        for check in checks:
            self.add(check)

    def discard(self, check: Hashable) -> None:
        """Note that the check couldn't be made."""
        self._own.discard(check)
        if self.folder is not None:
            self._note(check).unlink(missing_ok=True)

    def _note(self, check: Hashable) -> Path:
        assert self.folder is not None
        return self.folder / f"asked-{hashlib.sha256(repr(check).encode()).hexdigest()[:32]}"
