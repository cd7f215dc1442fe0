"""Give each Triton kernel the same place in the cache on disk in every process.

A process compiles for seconds what another process has already compiled if it looks for it in
another folder, or by another key.

PyTorch's compiler moves Triton's cache to a folder of its own when it loads its first kernel, for
all kernels that the process compiles later. It leaves a folder that TRITON_CACHE_DIR names.

Before version 3.9, Triton adds the constants of a called function to a kernel's key only if the
called function's own key was computed earlier. The key then depends on the kernels that the process
called before. Triton 3.9 computes the called function's key first.
"""

from __future__ import annotations

import os
from typing import Any


def settle() -> None:
    """Keep Triton's folder, and make it compute keys of called functions first, as Triton 3.9 does.

    A second call changes nothing. Keys that this process computed earlier stay as they are.
    """
    from triton import knobs  # noqa: PLC0415  (the process decides first how it is imported)
    from triton.runtime import jit  # noqa: PLC0415  (likewise)

    os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)

    finder: Any = getattr(jit, "DependenciesFinder", None)
    update = getattr(finder, "_update_hash", None)
    if update is None or getattr(update, "settles", False):
        return

    def updated(self: Any, func: Any) -> None:  # noqa: ANN401  (Triton's types aren't public)
        func.cache_key  # noqa: B018  (a property that computes and keeps the key)
        update(self, func)

    updated.settles = True  # type: ignore[attr-defined]
    finder._update_hash = updated  # noqa: SLF001  (Triton has no public way)
