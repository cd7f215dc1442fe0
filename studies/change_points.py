"""`python -m studies.change_points [--series N]`: true and false steps that a history finds.

The study draws series with the measured noise and a step at a random run, three or more runs from
either end. Noise is normal, or like a kernel with two times: a fifth of its runs take longer by
four times the noise. "found" counts changes within one run of the step, "other" changes elsewhere.
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
    """Return the figures of some runs, larger by the share `step` from run `at` on."""
    figures = []
    for run in range(runs):
        if two_times:
            error = draw.gauss(0, noise / 3) + 4 * noise * (draw.random() < 1 / 5)
        else:
            error = draw.gauss(0, noise)
        figures.append(math.exp(error) * (1 + step * (run >= at)))
    return figures


def rows(number: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each noise and number of runs: per cent found and other, for each step."""
    for two_times in (False, True):
        for noise in (0.003, 0.005, 0.01):
            for runs in (12, 24, 48):
                draw = random.Random(f"{two_times} {noise} {runs}")  # noqa: S311 (no secret)
                cells = []
                for step in _STEPS:
                    hits = other = 0
                    for _ in range(number):
                        at = draw.randint(FEWEST, runs - FEWEST)
                        values = series(draw, runs, noise, at, step, two_times=two_times)
                        places = change_points(values)
                        near = [place for place in places if step and abs(place - at) <= 1]
                        hits += bool(near)
                        other += len(places) > len(near)
                    share = f"{100 * other / number:.1f}"
                    cells.append(f"{100 * hits / number:.1f}, {share}" if step else share)
                kind = "two times" if two_times else "normal"
                yield kind, f"{100 * noise:.1f}", str(runs), *cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m studies.change_points", description=__doc__)
    parser.add_argument("--series", type=int, default=200, help="series of each kind (default 200)")
    number = parser.parse_args().series
    titles: tuple[str, ...] = ("noise", "%", "runs", "no step: other, %")
    titles += tuple(f"step of {100 * step:.0f} %: found, other, %" for step in _STEPS[1:])
    for line in (titles, ("---",) * len(titles), *rows(number)):
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
