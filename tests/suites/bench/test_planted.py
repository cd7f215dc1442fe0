"""The planted slowdown: one kernel, and the same on 2 % more rows."""

from __future__ import annotations

import torch

from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from tests.builders.by_hand import kernel_of, run_on
from tests.candidates.planted import rows

CASE = layer_norm_case(150, 40, (torch.float32, torch.float32))


def test_planted_kernel_is_right_on_more_rows_too(device: torch.device) -> None:
    """The planted kernel is slower and not wrong: rows that come again add nothing."""
    for more in (0.0, 0.02):
        kernel = kernel_of(lambda more=more, **given: rows.backward(**given, more=more))
        row = run_on(device).try_pair(kernel, CASE)
        assert row.status == "passed", row.reason


def test_planted_slowdown_is_whole_rows_of_a_program() -> None:
    """262,144 rows: 497 for the busiest program, and 507 where 2 % come again."""
    m, programs = 262144, rows._PROGRAMS
    busiest = [-(-round(m * (1 + more)) // programs) for more in (0.0, 0.02)]
    assert busiest == [497, 507]
