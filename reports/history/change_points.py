"""Where a series of figures changes its level, and nothing that its own noise explains.

Figures are compared as logarithms. PELT (Killick, Fearnhead and Eckley 2012; the package ruptures)
finds the levels that explain a series best, each of three runs or more; a further level costs
`_COST` log(n) times the noise's variance, Yao's criterion with room for noise that isn't normal.
The noise is taken from differences between neighbours, which a step moves one of: the larger of two
scales, by their median and by their 80th percentile, since kernels have two times by chance. A
change that a t-test of the two levels gives a chance of more than 1 in 1,000 is dropped, the
likeliest first. How often steps are found, and others are: `python -m studies.change_points`.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

FEWEST = 3  # runs of a level
FEWEST_RUNS = 2 * FEWEST  # of a series in which a change can be told
_COST = 4.0
_LEAST_NOISE = 0.002  # figures of one board repeat no better
_CHANCE = 1e-3
_FAR = 0.8  # of differences, the part within the second scale


def change_points(values: Sequence[float]) -> list[int]:
    """Return the places of the first runs of new levels; values are above zero."""
    if len(values) < FEWEST_RUNS:
        return []
    # No other report should wait for these imports.
    import numpy as np  # noqa: PLC0415
    import ruptures  # noqa: PLC0415

    logs = [math.log(value) for value in values]
    fitted: Any = ruptures.Pelt(model="l2", min_size=FEWEST, jump=1)
    penalty = _COST * _noise(logs) ** 2 * math.log(len(logs))
    places = [int(place) for place in fitted.fit_predict(np.array(logs), pen=penalty)][:-1]
    while places:
        ends = [0, *places, len(logs)]
        levels = [logs[one:other] for one, other in itertools.pairwise(ends)]
        chances = [_chance(*pair) for pair in itertools.pairwise(levels)]
        likeliest = max(range(len(places)), key=lambda place: chances[place])
        if chances[likeliest] <= _CHANCE:
            break
        del places[likeliest]
    return places


def _noise(logs: Sequence[float]) -> float:
    """Return the standard deviation of a figure about its level."""
    from scipy import stats  # noqa: PLC0415 (a report in the terminal shouldn't wait for it)

    steps = [other - one for one, other in itertools.pairwise(logs)]
    middle = statistics.median(steps)
    far = sorted(abs(step - middle) for step in steps)
    scales = (
        far[min(int(part * len(far)), len(far) - 1)] / stats.norm.ppf((1 + part) / 2)
        for part in (0.5, _FAR)
    )
    return max(float(max(scales)) / math.sqrt(2), _LEAST_NOISE)


def _chance(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the chance that two levels differ so by noise of `_LEAST_NOISE` or more alone."""
    from scipy import stats  # noqa: PLC0415 (likewise)

    variances = (
        max(statistics.variance(item), _LEAST_NOISE**2) / len(item) for item in (before, after)
    )
    apart = abs(statistics.fmean(after) - statistics.fmean(before)) / math.sqrt(sum(variances))
    return 2 * float(stats.t.sf(apart, len(before) + len(after) - 2))
