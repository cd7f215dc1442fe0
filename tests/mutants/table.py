"""The table of a run: each mutant, the defect, whether it was killed, by which rule and case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.mutants.bench import Outcome


def show(outcomes: Sequence[Outcome], seconds: float, console: Console) -> None:
    """Print the table, what is wrong with it, and its totals."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("mutant", "bugs", "killed", "rule", "case", "tried"):
        table.add_column(title, overflow="fold")
    table.add_column("sound")
    table.add_column("s", justify="right")
    for each in outcomes:
        mutant = each.mutant
        table.add_row(
            mutant.name,
            mutant.numbers,
            "yes" if each.rule else "NO",
            each.rule or "-",
            _short(each),
            str(each.tried),
            each.sound,
            f"{each.seconds:.1f}",
            style=None if each.wrong is None else "red",
        )
    console.print(table)
    for each in outcomes:
        if each.wrong is not None:
            console.print(f"\n{each.mutant.name}: {each.wrong}", markup=False, highlight=False)
            console.print(f"  it is wrong because {each.mutant.why}", markup=False)
    console.print(f"\n{totals(outcomes)}, in {seconds:.0f} s", highlight=False)


def totals(outcomes: Sequence[Outcome]) -> str:
    """In a sentence: how many were killed, by what, and how the sound kernels did."""
    killed = [each for each in outcomes if each.rule is not None]
    rules = Counter(str(each.rule) for each in killed).most_common()
    listed = ", ".join(f"{rule} {count}" for rule, count in rules)
    wrong = sum(each.wrong is not None for each in outcomes)
    problems = f"; {wrong} with a problem" if wrong else "; each by a rule that fits it"
    sound = Counter(each.sound for each in outcomes)
    beside = ", ".join(f"{count} {word}" for word, count in sound.most_common() if word != "-")
    return (
        f"{len(killed)} of {len(outcomes)} mutants killed ({listed}){problems}; the kernels that "
        f"they were made of, on the cases that killed them: {beside or 'none tried'}"
    )


def _short(outcome: Outcome) -> str:
    if outcome.case is None:
        return "-"
    own = outcome.case in outcome.mutant.case_ids
    return outcome.case.removeprefix(f"{outcome.mutant.op}-") + ("" if own else " (not its own)")
