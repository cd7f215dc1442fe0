"""Options are declared once, as fields of a suite's class."""

from __future__ import annotations

import dataclasses

import pytest

from kernel_workbench.suites.run.option_table import (
    OF_SUITE,
    OPTIONS,
    AccuracyOptions,
    BenchOptions,
    SearchOptions,
    options_from,
)
from kernel_workbench.suites.run.options import SuiteOptions


@pytest.mark.parametrize("suite", OF_SUITE)
def test_options_without_words_are_the_defaults_of_the_class(suite: str) -> None:
    """Code that makes options by hand has those of a command line that says nothing."""
    options_class = OF_SUITE[suite]
    assert options_from(options_class, SuiteOptions(suite).read([])) == options_class()


@pytest.mark.parametrize("suite", OF_SUITE)
def test_command_line_takes_the_fields_of_the_class(suite: str) -> None:
    """None is taken and dropped, and none is missing."""
    taken = {
        option.settings["dest"]
        for option in OPTIONS
        if suite in option.suites and not option.pytests
    }
    assert taken == {field.name for field in dataclasses.fields(OF_SUITE[suite])}


def test_words_become_values_of_the_declared_types() -> None:
    """An option that may be repeated is a tuple, so that options can't change."""
    words = ["--op=softmax_forward", "--op", "rms_norm_forward", "--seed=1..3", "--time-limit=7"]
    options = options_from(AccuracyOptions, SuiteOptions("accuracy").read(words))
    assert options.op == ("softmax_forward", "rms_norm_forward")
    assert (options.seed, options.time_limit, options.tier) == (range(1, 4), 7.0, "ci")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.tier = "full"  # type: ignore[misc]


def test_search_has_options_of_its_own() -> None:
    """Its limit and seed differ from accuracy's, and it selects no listed cases."""
    names = {field.name for field in dataclasses.fields(SearchOptions)}
    assert not names & {"tier", "case", "signs", "configuration", "failed", "lf"}
    assert (SearchOptions().time_limit, AccuracyOptions().time_limit) == (60.0, 300.0)
    assert (SearchOptions().seed, BenchOptions().seed) == (0, range(1))
