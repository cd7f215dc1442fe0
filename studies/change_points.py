"""`python -m studies.change_points [--series N]`: what a history finds, and what it finds falsely.

Series are drawn with noise as measured and a step at a random run, three or more from either end.
Noise is normal, or that of a kernel with two times: a fifth of its runs take four parts of noise
more. Found: a change within one run of the step. Other: series that have a change elsewhere.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator

from kernel_workbench.reports.history.change_points import FEWEST, change_points

_STEPS = (0.0, 0.02, 0.05, 0.10)


def series(
    draw: random.Random, runs: int, noise: float, at: int, step: float, *, two_times: bool
) -> list[float]:
    """The figures of so many runs, larger by `step` from run `at` on."""
    made = []
    for run in range(runs):
        if two_times:
            error = draw.gauss(0, noise / 3) + 4 * noise * (draw.random() < 1 / 5)
        else:
            error = draw.gauss(0, noise)
        made.append(math.exp(error) * (1 + step * (run >= at)))
    return made


def rows(number: int) -> Iterator[tuple[str, ...]]:
    """A row for each kind of noise and number of runs: per cent found and other, step by step."""
    for two_times in (False, True):
        for noise in (0.003, 0.005, 0.01):
            for runs in (12, 24, 48):
                draw = random.Random(f"{two_times} {noise} {runs}")  # noqa: S311 (no secret)
                cells = []
                for step in _STEPS:
                    found = other = 0
                    for _ in range(number):
                        at = draw.randint(FEWEST, runs - FEWEST)
                        values = series(draw, runs, noise, at, step, two_times=two_times)
                        places = change_points(values)
                        near = [each for each in places if step and abs(each - at) <= 1]
                        found += bool(near)
                        other += len(places) > len(near)
                    told = f"{100 * other / number:.1f}"
                    cells.append(f"{100 * found / number:.1f}, {told}" if step else told)
                kind = "two times" if two_times else "normal"
                yield kind, f"{100 * noise:.1f}", str(runs), *cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m studies.change_points", description=__doc__)
    parser.add_argument("--series", type=int, default=200, help="series of each kind (default 200)")
    number = parser.parse_args().series
    titles: tuple[str, ...] = ("noise", "%", "runs", "no step: other, %")
    titles += tuple(f"step of {100 * each:.0f} %: found, other, %" for each in _STEPS[1:])
    for line in (titles, ("---",) * len(titles), *rows(number)):
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
