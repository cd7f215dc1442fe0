"""Python in a process of its own, where Triton compiles and interprets nothing."""

from __future__ import annotations

import os
from pathlib import Path

from tests.builders.commands import run_python


def printed_by(program: str, cache: Path) -> str:
    """Run the program in the checkout's root, and return its text; cache: for compiled code."""
    variables = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    ran = run_python("-c", program, variables=variables)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
