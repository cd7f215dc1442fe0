"""Windows of made-up traces, whose figures are known by formula."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_workbench.profiles.traces import ENERGY, Missing, Trace, TraceError, load, save
from kernel_workbench.suites.profile.windows import (
    NS,
    at_time,
    counted_s,
    energy_ticks,
    fitted_slope,
    integral,
    measure,
)
from tests.builders.known_traces import TRACES
from tests.builders.synthetic_traces import CAP_COUNTER, changed, constant, synthetic, without

BEGAN_S = 1000.0  # of the synthetic traces
FULL = synthetic(constant(600.0), capped=lambda at_s: at_s >= 2.0)


def test_energy_of_constant_power_is_power_times_time() -> None:
    """By the counter within its stated error, by the integral exactly, over the same window."""
    figures = measure(FULL, BEGAN_S + 1, BEGAN_S + 5.9).window
    assert figures.energy_counter_j is not None
    assert figures.energy_counter_error_j is not None
    true_j = 600.0 * figures.duration_s
    assert abs(figures.energy_counter_j - true_j) <= figures.energy_counter_error_j
    assert figures.energy_counter_error_j < 0.006 * true_j
    assert figures.energy_integral_j == pytest.approx(true_j, rel=1e-9)
    assert (figures.codes, figures.missing, figures.validity) == ((), {}, "valid")


@pytest.mark.parametrize("period_s", [0.007, 0.0201, 0.033, 0.09])
@pytest.mark.parametrize("shift_s", [0.0, 0.033, 0.071])
def test_energy_of_varying_power_is_within_the_stated_error(
    period_s: float, shift_s: float
) -> None:
    """Whatever the period of the samples, and wherever the window's ends fall among the ticks."""

    def power_w(at_s: float) -> float:
        return 500.0 + 150.0 * math.sin(2 * math.pi * at_s / 1.3)

    trace = synthetic(power_w, period_s=period_s)
    figures, begin_s, end_s = measure(trace, BEGAN_S + 1 + shift_s, BEGAN_S + 5 + shift_s)
    begin, end = begin_s - BEGAN_S, end_s - BEGAN_S
    rate = 2 * math.pi / 1.3
    true_j = 500.0 * (end - begin) - 150.0 / rate * (math.cos(rate * end) - math.cos(rate * begin))
    assert figures.energy_counter_j is not None
    assert figures.energy_counter_error_j is not None
    # The stated error is at the mean power; at an end it may be half as high again.
    assert abs(figures.energy_counter_j - true_j) <= 1.5 * figures.energy_counter_error_j


def test_window_is_cut_to_ticks_within_it() -> None:
    """The ends are ticks: each known to within half the time between two reads, none outside."""
    ticks = energy_ticks(FULL, BEGAN_S + 1, BEGAN_S + 4)
    assert not isinstance(ticks, Missing)
    assert ticks[0].at_s - ticks[0].half_s >= BEGAN_S + 1
    assert ticks[-1].at_s + ticks[-1].half_s <= BEGAN_S + 4
    for tick in ticks:
        nearest = round((tick.at_s - BEGAN_S) / 0.1) * 0.1
        assert abs(tick.at_s - BEGAN_S - nearest) <= tick.half_s
        assert tick.half_s < 0.0145  # a period, its jitter and a slow read, halved


def test_time_under_the_cap_is_the_counters_difference() -> None:
    """From 2 s on: exact to a sample's distance, and polled reasons agree within 2 %."""
    figures, _, end_s = measure(FULL, BEGAN_S + 1, BEGAN_S + 5)
    expected_s = end_s - BEGAN_S - 2.0
    assert figures.reasons_s["SW power cap"] == pytest.approx(expected_s, abs=0.022)
    assert figures.reasons_s["HW thermal slowdown"] == 0.0
    polled_s = figures.reasons_polled["SW power cap"] * figures.duration_s
    assert polled_s == pytest.approx(
        figures.reasons_s["SW power cap"], abs=0.02 * figures.duration_s
    )


def test_counter_of_nanoseconds_is_read_between_samples_by_a_line() -> None:
    """All the time under the cap: the difference is the window, wherever its ends fall."""
    trace = synthetic(constant(700.0), capped=lambda _: True)
    for begin, end in ((1.0, 3.0), (1.234, 2.345), (0.5, 0.51)):
        counted = counted_s(trace, CAP_COUNTER, BEGAN_S + begin, BEGAN_S + end)
        assert counted == pytest.approx(end - begin, abs=1e-6)


@pytest.mark.parametrize("name", [ENERGY, CAP_COUNTER])
def test_counter_of_32_bits_goes_round(name: str) -> None:
    """A step back by more than half of 2^32 is a round, in which nothing is lost."""
    start = 2**32 - (1_500_000 if name == ENERGY else 1_500_000_000)
    plain = synthetic(constant(600.0), capped=lambda _: True)
    first = plain.column(name)[0]
    assert first is not None
    wrapped = changed(
        plain, name, lambda _, value: None if value is None else (value - first + start) % 2**32
    )
    expected, found = (measure(each, BEGAN_S + 1, BEGAN_S + 5).window for each in (plain, wrapped))
    assert found.missing == {}
    assert found.energy_counter_j == pytest.approx(expected.energy_counter_j)
    assert found.reasons_s == pytest.approx(expected.reasons_s)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [(ENERGY, "energy_counter_j"), (CAP_COUNTER, "reasons_s.SW power cap")],
)
def test_counter_that_goes_back_is_a_reason_and_the_rest_goes_on(name: str, lacks: str) -> None:
    """No negative energy, no negative time: the figure is None, and says when."""
    trace = changed(FULL, name, lambda at_s, value: value if at_s < 3 else (value or 0) // 2)
    figures = measure(trace, BEGAN_S + 1, BEGAN_S + 5).window
    assert figures.missing.keys() == {lacks}
    assert figures.missing[lacks].startswith("went back: ")
    assert "s in" in figures.missing[lacks]
    assert figures.energy_integral_j == pytest.approx(600 * figures.duration_s)
    assert (figures.energy_counter_j is None) == (name == ENERGY)
    assert ("SW power cap" in figures.reasons_s) == (name != CAP_COUNTER)


def test_counter_that_goes_back_outside_the_window_harms_nothing() -> None:
    """Events before a window are no part of it."""
    trace = changed(FULL, ENERGY, lambda at_s, value: value if at_s > 0.5 else 2 * (value or 0))
    assert measure(trace, BEGAN_S + 1, BEGAN_S + 5).window.energy_counter_j is not None


def test_counter_that_stands_still_is_no_zero() -> None:
    """A frozen counter isn't a GPU that draws nothing."""
    frozen = changed(FULL, ENERGY, lambda *_: 5)
    figures = measure(frozen, BEGAN_S + 1, BEGAN_S + 5).window
    assert figures.energy_counter_j is None
    assert figures.missing["energy_counter_j"].startswith("no ticks: ")
    assert figures.energy_integral_j is not None


def test_field_that_is_not_supported_has_its_reason_and_the_rest_goes_on() -> None:
    """One by one, each field: nothing else is missing for it."""
    for name, lacks in (
        ("energy_mj", "energy_counter_j"),
        ("sm_clock_mhz", "sm_clock_mhz"),
        ("temperature_c", "temperature_c"),
        ("memory_temperature_c", "memory_temperature_c"),
        ("memory_clock_mhz", "memory_clock_mhz"),
        ("reasons", "reasons_polled"),
        ("sync_boost_ns", "reasons_s.sync boost"),
    ):
        figures = measure(without(FULL, name), BEGAN_S + 1, BEGAN_S + 5).window
        codes = {key: each.partition(": ")[0] for key, each in figures.missing.items()}
        assert codes == {lacks: "not supported"}
        assert figures.validity == "valid"


def test_power_averaged_over_a_second_stands_in_for_instant_power() -> None:
    """Where the driver has no instant power; the window says so."""
    figures = measure(without(FULL, "power_instant_mw"), BEGAN_S + 1, BEGAN_S + 5).window
    assert figures.power_w is not None
    assert figures.power_w.mean == 600.0
    assert figures.codes == ("averaged power",)


def test_gpu_lost_within_a_window_breaks_it() -> None:
    """The samples until the loss are shown, and are no figure of the window."""
    lost_ns = round((BEGAN_S + 3) * 1e9)
    reason = Missing("gpu lost", "the GPU fell off the bus")
    kept = tuple(each for each in FULL.samples if each.at_ns < lost_ns)
    trace = replace(FULL, samples=kept, lost_ns=lost_ns, missing={"power_instant_mw": reason})
    figures = measure(trace, BEGAN_S + 1, BEGAN_S + 5).window
    assert figures.validity == "invalid"
    assert "gpu lost" in figures.codes
    assert figures.samples > 0
    after = measure(trace, BEGAN_S + 4, BEGAN_S + 5).window
    assert after.validity == "invalid"
    assert after.power_w is None
    assert after.missing["power_w"].startswith("gpu lost: ")


def test_trace_without_samples_gives_reasons_and_nothing_else() -> None:
    """No library, no sampler: every figure has the reason."""
    empty = Trace("GPU-x", 20.0, (), {"power_instant_mw": Missing("no library", "not here")})
    figures = measure(empty, BEGAN_S, BEGAN_S + 5).window
    assert figures.validity == "invalid"
    assert figures.codes == ("no library",)
    assert figures.energy_counter_j is None
    assert {"power_w", "energy_integral_j", "energy_counter_j", "reasons_polled"} <= set(
        figures.missing
    )


def test_gap_in_the_samples_takes_the_integral_and_leaves_the_counter() -> None:
    """Half a second of nothing: the counter went on meanwhile, power is anyone's guess."""
    gone = range(round((BEGAN_S + 2) * 1e9), round((BEGAN_S + 2.5) * 1e9))
    trace = replace(FULL, samples=tuple(each for each in FULL.samples if each.at_ns not in gone))
    figures = measure(trace, BEGAN_S + 1, BEGAN_S + 5).window
    assert figures.largest_gap_ms == pytest.approx(500, abs=25)
    assert figures.energy_integral_j is None
    assert figures.missing["energy_integral_j"].startswith("gap: ")
    assert figures.energy_counter_j == pytest.approx(600 * figures.duration_s, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"power_w": lambda at_s: 500 + 10 * at_s}, "power drifts"),
        ({"sm_clock_mhz": lambda at_s: 1900 - 15 * at_s}, "clock drifts"),
        ({"temperature_c": lambda at_s: 40 + 3 * at_s}, "temperature drifts"),
    ],
)
def test_window_of_a_drift_is_transient_and_says_of_what(
    changes: dict[str, object], code: str
) -> None:
    """Steady state is power, clock and temperature, each with its limit."""
    trace = synthetic(**({"power_w": constant(500.0)} | changes))  # type: ignore[arg-type]
    figures = measure(trace, BEGAN_S + 1, BEGAN_S + 5.5).window
    assert figures.validity == "transient"
    assert figures.codes == (code,)


def test_slopes_are_a_minute() -> None:
    """10 W and 3 degrees a second."""
    trace = synthetic(lambda at_s: 500 + 10 * at_s, temperature_c=lambda at_s: 40 + 3 * at_s)
    slopes = measure(trace, BEGAN_S + 1, BEGAN_S + 5).window.slopes
    assert slopes["power_w"] == pytest.approx(600, rel=0.02)
    assert slopes["temperature_c"] == pytest.approx(180, rel=0.05)


def test_noise_without_a_drift_is_steady() -> None:
    """Power that jumps by 60 W from tick to tick and goes nowhere."""

    def power_w(at_s: float) -> float:
        return 600 + 60 * math.sin(12.9898 * round(at_s / 0.1))

    assert measure(synthetic(power_w), BEGAN_S + 1, BEGAN_S + 5).window.validity == "valid"


def test_slopes_error_counts_a_repeated_value_once() -> None:
    """Reading a sensor five times between its updates doesn't make it five times as sure."""
    once = [(0.1 * each, math.sin(7.0 * each)) for each in range(40)]
    often = [(at_s + 0.02 * each, value) for at_s, value in once for each in range(5)]
    assert fitted_slope(often)[1] == pytest.approx(fitted_slope(once)[1], rel=0.05)


def test_integral_is_of_straight_lines() -> None:
    """Exact for a line, level beyond the ends."""
    points = [(float(each), 3.0 * each) for each in range(6)]
    assert integral(points, 0.5, 4.25) == pytest.approx(1.5 * (4.25**2 - 0.5**2))
    assert integral(points, 5.0, 7.0) == pytest.approx(30.0)
    assert (at_time(points, -1), at_time(points, 2.5), at_time(points, 9)) == (0.0, 7.5, 15.0)


def test_clock_histogram_is_shares_of_the_samples() -> None:
    """Half at one clock, half at another."""
    trace = synthetic(constant(1.0), sm_clock_mhz=lambda at_s: 1500 if at_s < 3 else 1410)
    clocks = measure(trace, BEGAN_S + 1, BEGAN_S + 5).window.sm_clocks
    assert set(clocks) == {1410, 1500}
    assert clocks[1410] == pytest.approx(0.5, abs=0.04)
    assert sum(clocks.values()) == pytest.approx(1.0)


def test_series_for_a_picture_is_short_and_in_columns() -> None:
    """At most a hundred points, whatever was sampled."""
    series = measure(FULL, BEGAN_S + 1, BEGAN_S + 5.9).window.series
    assert series is not None
    assert 50 < len(series.seconds) <= 100
    assert len(series.seconds) == len(series.power_w) == len(series.temperature_c)
    assert set(series.power_w) == {600.0}


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_trace_that_is_saved_and_loaded_is_the_same(name: str, tmp_path: Path) -> None:
    """With its failures, plain and compressed."""
    lost = replace(
        without(FULL, ENERGY),
        lost_ns=FULL.samples[-1].done_ns,
        missing={
            ENERGY: Missing("not supported", "said so"),
            "power_instant_mw": Missing("gpu lost", "it fell off"),
        },
    )
    save(lost, tmp_path / name)
    assert load(tmp_path / name) == lost


def test_trace_that_was_cut_off_is_read_up_to_the_cut(tmp_path: Path) -> None:
    """Its writer was killed in mid-line."""
    path = tmp_path / "trace.jsonl"
    save(FULL, path)
    path.write_bytes(path.read_bytes()[:-7])
    assert load(path).samples == FULL.samples[:-1]


@pytest.mark.parametrize("content", [b"", b"{}\n", b"no trace\n", b'{"trace":1}\n[1,2]\n'])
def test_file_that_is_no_trace_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    """Names the file."""
    for path in (tmp_path / "wrong.jsonl", tmp_path / "wrong.jsonl.gz"):
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        with pytest.raises(TraceError, match=r"wrong\.jsonl"):
            load(path)


@pytest.mark.parametrize("name", TRACES)
def test_sustained_load_is_a_valid_window(name: str) -> None:
    """Counter and integral agree within 2 %, counted and polled reasons within 2 % of the time."""
    trace = TRACES[name]
    figures = measure(trace, trace.samples[0].at_ns * NS, trace.samples[-1].done_ns * NS).window
    assert figures.validity != "invalid"
    assert figures.energy_counter_j is not None
    assert figures.energy_integral_j == pytest.approx(figures.energy_counter_j, rel=0.02)
    for reason, seconds in figures.reasons_s.items():
        polled_s = figures.reasons_polled[reason] * figures.duration_s
        assert seconds == pytest.approx(polled_s, abs=0.02 * figures.duration_s)
