"""The wrong kernels in plain torch, of `tests/wrong_*.py`, as mutants: by reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from tests.builders import wrong_attentions, wrong_layer_norms
from tests.mutants.mutant import Mutant

_FILE = Path(__file__).with_name("plain_kernels.py")


def _attentions() -> Iterator[Mutant]:
    for name, wrong in wrong_attentions.WRONG.items():
        cases = wrong_attentions.claiming(wrong.op, wrong.number)
        yield Mutant(
            name=f"plain_{name}",
            bugs=(wrong.number,),
            op=wrong.op.name,
            kernel=f"plain_{name}",
            cases=tuple(case.id().removeprefix(f"{case.op}-") for case in cases),
            rules=(*wrong.rules, "emulation"),
            why=_first_line(wrong.function),
            file=_FILE,
            sound="plain_sound",
        )


def _layer_norms() -> Iterator[Mutant]:
    for name, wrong in wrong_layer_norms.WRONG.items():
        yield Mutant(
            name=f"plain_ln_{name}",
            bugs=wrong.numbers,
            op=LAYER_NORM_BACKWARD.name,
            kernel=f"plain_ln_{name}",
            cases=(wrong.case,),
            rules=(*wrong.rules, "emulation"),
            why=_first_line(wrong.function),
            file=_FILE,
            sound="plain_ln_sound",
        )


def _first_line(function: object) -> str:
    """Return the docstring's first line, of the function or of the class that it is a method of."""
    owner = getattr(function, "__self__", function)
    said = (owner.__doc__ or "").partition("\n")[0]
    return said.rstrip(".")


MUTANTS = (*_layer_norms(), *_attentions())
