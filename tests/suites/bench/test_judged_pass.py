"""How many judged passes a figure needs."""

from __future__ import annotations

import pytest

from kernel_workbench.suites.bench.judged_pass import _is_enough


@pytest.mark.parametrize(
    ("figures", "fewest", "enough"),
    [
        ([9.0], 1, True),
        ([11.0], 1, False),
        ([11.0, 9.0], 1, False),
        ([9.0, 5.0], 3, False),
        ([9.0, 5.0, 1.0], 3, True),
        ([9.0, 5.0, 11.0], 3, False),
        ([11.0, 11.1, 11.2], 3, True),  # a refutation that is precise
        ([11.0, 11.1, 11.2], 1, True),
        ([11.0, 15.0, 20.0, 11.0], 3, False),
    ],
)
def test_passes_end_when_all_confirm_or_their_mean_is_precise(
    figures: list[float], fewest: int, *, enough: bool
) -> None:
    """A claim of up to 10 microseconds is confirmed."""
    assert _is_enough(figures, 10.0, fewest) is enough
