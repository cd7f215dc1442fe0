"""The study of problems and definitions: its process for each file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from studies.any_op import answered_apart


def test_answer_of_a_process_comes_back() -> None:
    """It is JSON, and the seconds stand beside it."""
    answer = answered_apart(lambda: {"state": "bounded"}, 60)
    assert answer.keys() == {"state", "s"}
    assert answer["state"] == "bounded"


@pytest.mark.parametrize("raised", [KeyError("no numbers"), KeyboardInterrupt(), SystemExit(7)])
def test_process_that_raises_gives_no_answer(raised: BaseException, tmp_path: Path) -> None:
    """The child ends: it doesn't go on in the code that asked for the answer."""
    parent = os.getpid()

    def work() -> Mapping[str, Any]:
        raise raised

    try:
        answer = answered_apart(work, 60)
    finally:
        if os.getpid() != parent:
            (tmp_path / "escaped").touch()
            os._exit(1)
    assert answer.keys() == {"s"}
    assert not (tmp_path / "escaped").exists()
