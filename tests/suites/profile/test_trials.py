"""Trials and rows of a profile run: a loop of known cost beside a replayed GPU, and its faults."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.profiles.traces import FIELDS, Missing, Trace, save
from kernel_workbench.reports.record import AccuracyRow, ProfileRow, Window
from kernel_workbench.reports.views.profile_codes import meaning
from kernel_workbench.suites.profile.figures import (
    Reply,
    counted_windows,
    energy_per_call,
    half_interval,
    slowdown,
    window_of,
)
from kernel_workbench.suites.profile.rows import Board, row_of
from kernel_workbench.suites.profile.sampler_process import Sampling
from kernel_workbench.suites.profile.trials import Entry, Trials
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError
from tests.builders.known_traces import TRACES, mean_power_w
from tests.builders.replayed_sampler import replayed
from tests.builders.synthetic_traces import UUID, changed, constant, synthetic, without

pytestmark = pytest.mark.long_run

POWER_W = 600.0
CALL_US = 2000.0
KERNEL = next(
    each for each in all_kernels() if each.name == "torch_eager" and each.op is LAYER_NORM_BACKWARD
)
CASE = layer_norm_case(64, 64, (torch.float32, torch.float32))
BOARD = Board(700.0, 100.0, 110.0)
RECORDED = synthetic(constant(POWER_W), seconds=4.0)


def _entry(trials: int = 2) -> Entry:
    row = AccuracyRow(
        kernel=KERNEL.name,
        case=case_info(CASE),
        status="passed",
        gates=True,
        reproduce="",
        duration_s=0.0,
    )
    return Entry(KERNEL, CASE, "normal", row, trials)


def _reply(began_s: float, seconds: float, call_us: float = CALL_US) -> Reply:
    """A loop of calls of the same length, in batches of 50 ms."""
    calls = round(50_000 / call_us)
    batch_ns = round(1e3 * calls * call_us)
    began_ns = round(1e9 * began_s)
    batches = tuple(
        (began_ns + (each + 1) * batch_ns, calls, calls * call_us)
        for each in range(round(1e9 * seconds / batch_ns))
    )
    return Reply(began_ns=began_ns, captured=True, why=None, batches=batches)


def _looped(_: Entry, seconds: float) -> Reply:
    """Sleep as long as the loop takes."""
    began_s = time.monotonic()
    time.sleep(seconds)
    return _reply(began_s, seconds)


def _trials(
    folder: Path,
    *faults: str,
    loop: Callable[[Entry, float], Reply] = _looped,
    trace: Trace = RECORDED,
) -> Trials:
    save(trace, folder / "recorded.jsonl")
    sampler = replayed(folder / "recorded.jsonl", *faults)
    return Trials(
        sampling=Sampling(UUID, folder, sampler=sampler),
        loop=loop,
        seconds=1.2,
        dropped_s=0.2,
        advance=lambda _: None,
        order=random.Random(1),
        settle_s=0.0,
        idle_s=0.5,
    )


def _row(entry: Entry, board: Board = BOARD) -> ProfileRow:
    return row_of(entry, board, gates=True, reproduce="nox -s profile")


def _windows(*powers_w: float) -> list[Window]:
    return [window_of(synthetic(constant(each)), _reply(1000.0, 5.5), 1.0) for each in powers_w]


def test_part_of_an_op_has_energy_and_no_work() -> None:
    """The share of dx alone in the op's flops and bytes isn't known, and no rate is made up."""
    entry = _entry()
    entry.kernel = replace(KERNEL, op=KERNEL.op.part(("dx",)))
    entry.windows = _windows(POWER_W, POWER_W)
    row = _row(entry)
    assert row.energy_j is not None
    assert (row.flops, row.gb_s, row.joules_per_tflop) == (None, None, None)
    assert row.missing["flops"] == "no work: the work for dx isn't known"


def test_energy_of_a_call_is_power_times_its_time() -> None:
    """600 W and 2 ms: 1.2 J within the stated error, net of 105 W idle, and per TFLOP."""
    entry = _entry()
    entry.windows = _windows(POWER_W, POWER_W, POWER_W, POWER_W)
    row = _row(entry)
    true_j = POWER_W * CALL_US * 1e-6
    assert row.status == "measured"
    assert row.validity == "valid"
    assert row.energy_j is not None
    assert row.energy_error_j is not None
    assert abs(row.energy_j - true_j) <= row.energy_error_j <= 0.006 * true_j
    assert row.energy_integral_j == pytest.approx(true_j, rel=0.002)
    assert row.net_energy_j == pytest.approx(row.energy_j - 105.0 * CALL_US * 1e-6)
    assert row.device_us == pytest.approx(CALL_US)
    assert row.power_w == pytest.approx(POWER_W, rel=0.006)
    assert row.flops is not None
    assert row.bytes is not None
    assert row.power_w is not None
    assert row.joules_per_tflop == pytest.approx(row.energy_j / row.flops * 1e12)
    assert row.gb_s_per_w == pytest.approx(row.bytes / CALL_US * 1e-3 / row.power_w)
    assert row.missing.keys() == {"sampler_slowdown"}


def test_calls_of_a_window_are_those_between_its_ends() -> None:
    """The window is cut to ticks; the calls are cut with it, to a part of a call."""
    window = window_of(RECORDED, _reply(1000.0, 3.5), 1.0)
    assert window.calls == pytest.approx(window.duration_s * 1e6 / CALL_US, abs=0.51)
    assert 1.0 <= window.dropped_s < 1.13
    assert window.device_us == pytest.approx(CALL_US)


def test_error_is_of_trials_scatter_and_counter_together() -> None:
    """Trials that differ by more than the counter's error: Student's interval is most of it."""
    windows = _windows(590.0, 600.0, 610.0)
    found = energy_per_call(windows)
    assert found is not None
    assert found[1] is not None
    each_j = [(each.energy_counter_j or 0.0) / (each.calls or 1) for each in windows]
    scatter = 4.302652729 * math.sqrt(sum((e - sum(each_j) / 3) ** 2 for e in each_j) / 2 / 3)
    assert half_interval(each_j) == pytest.approx(scatter)
    assert scatter < found[1] < 1.05 * scatter


def test_one_trial_has_no_error_and_says_why() -> None:
    """No scatter is known of one."""
    entry = _entry()
    entry.windows = _windows(POWER_W)
    row = _row(entry)
    assert row.energy_j is not None
    assert row.energy_error_j is None
    assert row.missing["energy_error_j"].startswith("one trial: ")


def test_row_is_of_its_steady_windows_and_says_what_it_left_out() -> None:
    """One of four drifts: three are counted. Three of four drift: the row is transient."""
    (steady,) = _windows(POWER_W)
    drifting = window_of(synthetic(lambda at_s: 400 + 40 * at_s), _reply(1000.0, 5.5), 1.0)
    assert (steady.validity, drifting.validity) == ("valid", "transient")
    counted, validity, codes = counted_windows([steady, drifting, steady, steady])
    assert (counted, validity) == ([steady] * 3, "valid")
    assert codes == ["power drifts", "1 of 4 left out"]
    counted, validity, codes = counted_windows([drifting, drifting, steady, drifting])
    assert (len(counted), validity) == (4, "transient")


def test_energies_that_disagree_are_marked() -> None:
    """A counter that runs 5 % fast: both figures are there, and the code."""
    first = RECORDED.column("energy_mj")[0]
    assert first is not None
    fast = changed(
        RECORDED,
        "energy_mj",
        lambda _, value: None if value is None else first + round(1.05 * (value - first)),
    )
    window = window_of(fast, _reply(1000.0, 3.5), 1.0)
    assert window.codes == ("counter off",)
    assert window_of(RECORDED, _reply(1000.0, 3.5), 1.0).codes == ()


def test_loop_whose_clocks_disagree_has_no_valid_window() -> None:
    """A worker whose events say half of what the host's clock saw isn't believed."""
    honest = _reply(1000.0, 3.5)
    halved = tuple((end, calls, us / 2) for end, calls, us in honest.batches)
    window = window_of(RECORDED, honest.model_copy(update={"batches": halved}), 1.0)
    assert window.validity == "invalid"
    assert "clocks disagree" in window.codes


def test_window_slowed_by_heat_is_marked() -> None:
    """Time in a thermal reason is this host's cooling, and no property of a kernel."""
    hot = changed(
        RECORDED,
        "sw_thermal_ns",
        lambda at_s, value: None if value is None else value + round(2e8 * at_s),
    )
    window = window_of(hot, _reply(1000.0, 3.5), 1.0)
    assert window.codes == ("slowed by heat",)
    assert window.reasons_s["SW thermal slowdown"] == pytest.approx(0.2 * window.duration_s)


@pytest.mark.parametrize("cost", [0.0, 0.02])
def test_samplers_cost_is_found_beside_a_drift(cost: float) -> None:
    """Calls that are 2 % slower while it samples, on a GPU that slows by 3 % meanwhile."""
    began_s = 1000.0
    kept = tuple(
        each
        for each in synthetic(constant(1.0), seconds=4.0).samples
        if int((each.at_ns * 1e-9 - began_s) / 0.25) % 2 == 0
    )
    end_ns, batches = round(1e9 * began_s), []
    while end_ns < 1e9 * (began_s + 4):
        at_s = end_ns * 1e-9 - began_s
        slow = 1 + cost * (int(at_s / 0.25) % 2 == 0)
        device_us = 10_000 * slow * (1 + 0.03 * at_s / 4)
        end_ns += round(1e3 * device_us)
        batches.append((end_ns, 10, device_us))
    reply = Reply(began_ns=round(1e9 * began_s), captured=True, why=None, batches=tuple(batches))
    found = slowdown(replace(RECORDED, samples=kept), reply)
    assert found == pytest.approx(cost, abs=0.0015)


def test_sampler_that_took_nothing_has_no_cost_but_a_reason() -> None:
    """Not zero: unknown."""
    empty = Trace(UUID, 20.0, (), {"power_instant_mw": Missing("no library", "not here")})
    assert slowdown(empty, _reply(1000.0, 4.0)) == Missing("no library", "not here")


def test_rounds_try_every_row_once_in_changing_order(tmp_path: Path) -> None:
    """Every row in each round, after one loop each for the sampler; the order isn't the plan's."""
    entries = [replace(_entry(3), kernel=replace(KERNEL, name=name)) for name in "abcde"]
    seen: list[str] = []

    def loop(entry: Entry, seconds: float) -> Reply:
        seen.append(entry.kernel.name)
        return _reply(time.monotonic() - seconds, seconds)

    trials = _trials(tmp_path, loop=loop)
    trials.run(entries)
    assert trials.count(entries) == len(seen) == 20
    rounds = ["".join(seen[start : start + 5]) for start in range(0, 20, 5)]
    assert rounds[0] == "abcde"
    assert all(sorted(each) == list("abcde") for each in rounds)
    assert len(set(rounds)) > 2


FAULTS = {
    # a fault, then a figure that the window lacks, and the code of the reason
    "not supported:energy_mj": ("energy_counter_j", "not supported"),
    "no permission:temperature_c": ("temperature_c", "no permission"),
    "not supported:sw_power_cap_ns": ("reasons_s.SW power cap", "not supported"),
    "went back:energy_mj@0.7": ("energy_counter_j", "went back"),
    "gpu lost@0.7": ("energy_counter_j", "gpu lost"),
    "no library": ("energy_counter_j", "no library"),
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_nvml_is_a_reason_in_the_row_and_the_rest_goes_on(
    fault: str, name: str, tmp_path: Path
) -> None:
    """Each of them: the row is there, with its device time, and its reason by a code."""
    lacks, code = FAULTS[fault]
    entry = _entry(1)
    _trials(tmp_path, fault, trace=TRACES[name]).run([entry])
    row = _row(entry)
    assert row.status == "measured"
    (window,) = row.windows
    assert window.missing[lacks].startswith(f"{code}: ")
    lost = fault.startswith(("no library", "gpu lost"))
    # The recorded trace may have begun before the board was warm.
    steady = {"valid"} if name == "synthetic" else {"valid", "transient"}
    assert row.validity in ({"invalid"} if lost else steady)
    assert (row.energy_j is None) == lost
    assert ("energy by samples" in row.codes) == (lacks == "energy_counter_j" and not lost)
    assert all(meaning(code, row) for code in row.codes)
    if lost:
        assert row.missing["energy_j"]
        assert 0 not in (row.power_w, row.energy_j, row.net_energy_j)
    else:
        expected_j = mean_power_w(TRACES[name]) * CALL_US * 1e-6
        assert row.energy_j == pytest.approx(expected_j, rel=0.05)
    assert ProfileRow.model_validate_json(row.model_dump_json()) == row


def test_row_whose_process_dies_fails_and_the_next_goes_on(tmp_path: Path) -> None:
    """It isn't looped again, and has no figure; the other row has all its windows."""
    dying, sound = _entry(), replace(_entry(), kernel=replace(KERNEL, name="sound"))
    asked = []

    def loop(entry: Entry, seconds: float) -> Reply:
        asked.append(entry.kernel.name)
        if entry is dying and asked.count(entry.kernel.name) == 2:
            raise TaskError("process ended", "its process was killed by SIGSEGV")
        return _looped(entry, seconds)

    _trials(tmp_path, loop=loop).run([dying, sound])
    row = _row(dying)
    assert (row.status, row.validity, row.energy_j) == ("failed", "invalid", None)
    assert row.reason == "process ended: its process was killed by SIGSEGV"
    assert asked.count(KERNEL.name) == 2
    assert len(_row(sound).windows) == 2


def test_idle_power_is_measured_or_has_a_reason(tmp_path: Path) -> None:
    """One GPU draws 600 W whatever it does, and another one doesn't report its power."""
    assert _trials(tmp_path).idle() == pytest.approx(POWER_W, rel=0.12)
    silent = RECORDED
    for name in FIELDS:
        silent = without(silent, name)
    unknown = _trials(tmp_path, trace=silent).idle()
    assert isinstance(unknown, str)
    entry = _entry()
    entry.windows = _windows(POWER_W)
    row = _row(entry, Board(None, unknown, unknown))
    assert (row.idle_before_w, row.net_energy_j) == (None, None)
    assert row.missing["idle_before_w"].startswith("not supported: ")
    assert row.missing["net_energy_j"].startswith("no idle power: ")


def test_kernel_that_cannot_be_captured_says_why() -> None:
    """Its loop is of plain calls, in which the GPU may have waited."""
    entry = _entry()
    entry.windows = _windows(POWER_W)
    entry.captured, entry.why_not_captured = False, "RuntimeError: it synchronises"
    row = _row(entry)
    assert "no graph" in row.codes
    assert row.missing["captured"] == "no graph: RuntimeError: it synchronises"
