"""The sampler as a process, fed from a trace in place of a GPU, with faults put into it."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from kernel_workbench.profiles import sampler
from kernel_workbench.profiles.traces import ENERGY, FIELDS, Trace, TraceWriter, load, save
from kernel_workbench.suites.profile.sampler_process import Sampling
from kernel_workbench.suites.profile.windows import NS, measure
from tests import ROOT
from tests.builders.commands import wait_for
from tests.builders.replayed_sampler import Fault, Replay, replayed
from tests.builders.synthetic_traces import UUID, constant, synthetic

RECORDED = synthetic(constant(600.0), seconds=4.0, capped=lambda _: True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace's file, to be replayed."""
    path = tmp_path_factory.mktemp("traces") / "recorded.jsonl.gz"
    save(RECORDED, path)
    return path


class Clock:
    """Time in place of `time`'s: it passes where somebody waits, and a little at each look."""

    def __init__(self) -> None:
        self._ns = 10**12

    def monotonic_ns(self) -> int:
        """Nanoseconds; a look takes ten microseconds."""
        self._ns += 10_000
        return self._ns

    def monotonic(self) -> float:
        """Seconds."""
        return self.monotonic_ns() * NS

    def wait_until(self, at_s: float) -> None:
        """Wait."""
        self._ns = max(self._ns, round(at_s / NS))


class Simulated:
    """The trace that the sampler writes, `seconds` long, where time passes as `Clock` has it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.clock = folder / "simulated.jsonl", Clock()
        self.end_s = 0.0
        monkeypatch.setattr(sampler, "time", self.clock)
        monkeypatch.setattr(sampler, "_waited_until", self._waited_until)

    def __call__(
        self, *faults: str, seconds: float = 1.2, alternate_s: float = 0.0
    ) -> tuple[Trace, float, float]:
        """The trace, and when it began and ended."""
        meter = Replay(RECORDED, tuple(map(Fault.of, faults)), self.clock.monotonic_ns)
        writer = TraceWriter(self.path, UUID, 20.0)
        begin_s = self.clock.monotonic()
        self.end_s = begin_s + seconds
        sampler.run(sampler.Sampler(meter, writer), 0.02, alternate_s)
        writer.close()
        return load(self.path), begin_s, self.clock.monotonic()

    def _waited_until(self, at_s: float) -> bool:
        self.clock.wait_until(at_s)
        return at_s >= self.end_s


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """The sampler without a process, in time of its own."""
    return Simulated(tmp_path, monkeypatch)


def _sampled(recorded: Path, folder: Path, *faults: str, seconds: float) -> Trace:
    """Return the trace that a sampler process leaves of `seconds`, or of more on a busy machine."""
    with Sampling(UUID, folder, sampler=replayed(recorded, *faults)).during() as taken:
        time.sleep(seconds)
    return taken.trace


def _in_order(*stamps_ns: int) -> bool:
    """Tell whether no stamp is before its cause, however long all took."""
    return all(a <= b for a, b in pairwise(stamps_ns))


def test_sampler_keeps_its_period(simulated: Simulated) -> None:
    """20 ms; its figures are the trace's."""
    trace, begin_s, end_s = simulated()
    figures = measure(trace, begin_s, end_s).window
    assert figures.period_ms == pytest.approx(20, abs=1)
    assert figures.largest_gap_ms is not None
    assert len(trace.samples) == pytest.approx(60, abs=2)
    assert figures.power_w is not None
    assert figures.power_w.mean == 600.0
    assert figures.energy_counter_j == pytest.approx(600 * figures.duration_s, rel=0.06)
    assert figures.reasons_s["SW power cap"] == pytest.approx(figures.duration_s, rel=0.05)
    assert figures.missing == {}


def test_samplers_stamps_are_the_callers(recorded: Path, tmp_path: Path) -> None:
    """One clock for both processes: no sample is from before the block, and none from after it."""
    before_ns = time.monotonic_ns()
    trace = _sampled(recorded, tmp_path, seconds=0.3)
    assert trace.samples
    assert _in_order(before_ns, *(each.at_ns for each in trace.samples), time.monotonic_ns())


def test_sampler_that_alternates_rests_in_between(simulated: Simulated) -> None:
    """A quarter of a second of samples, a quarter of none."""
    trace, _, _ = simulated(alternate_s=0.25, seconds=1.4)
    gaps = [(b.at_ns - a.at_ns) * NS for a, b in pairwise(trace.samples)]
    rests = [each for each in gaps if each > 0.1]
    assert len(rests) >= 2
    assert statistics.median(rests) == pytest.approx(0.26, abs=0.02)


@pytest.mark.parametrize("code", ["not supported", "no permission"])
@pytest.mark.parametrize("name", ["energy_mj", "power_instant_mw", "sw_power_cap_ns", "reasons"])
def test_field_that_is_refused_costs_itself_alone(
    code: str, name: str, recorded: Path, tmp_path: Path
) -> None:
    """Its reason is in the trace, and every other field has all its values."""
    trace = _sampled(recorded, tmp_path, f"{code}:{name}", seconds=0.2)
    assert {key: each.code for key, each in trace.missing.items()} == {name: code}
    assert set(trace.column(name)) == {None}
    assert trace.samples
    for other in FIELDS:
        assert other == name or None not in trace.column(other)


def test_gpu_that_is_lost_in_mid_window_leaves_what_was_sampled(simulated: Simulated) -> None:
    """It goes on and ends when it is told to; the trace says when the GPU went."""
    trace, begin_s, end_s = simulated("gpu lost@0.5", seconds=1.0)
    assert trace.lost_ns is not None
    assert trace.lost_ns * NS == pytest.approx(begin_s + 0.5, abs=0.03)
    assert len(trace.samples) == pytest.approx(25, abs=2)
    figures = measure(trace, begin_s, end_s).window
    assert figures.validity == "invalid"
    assert "gpu lost" in figures.codes


def test_counter_that_runs_backwards_is_a_reason_in_the_window(simulated: Simulated) -> None:
    """The energy counter alone has the reason; power's integral is there."""
    trace, begin_s, end_s = simulated("went back:energy_mj@0.5")
    figures = measure(trace, begin_s, end_s).window
    assert figures.energy_counter_j is None
    assert figures.missing["energy_counter_j"].startswith("went back: ")
    assert figures.energy_integral_j == pytest.approx(600 * figures.duration_s)


@pytest.mark.parametrize("code", ["no library", "no driver", "gpu not found"])
def test_sampler_that_cannot_have_its_gpu_says_why(
    code: str, recorded: Path, tmp_path: Path
) -> None:
    """The process runs and ends like any other, and each field has the reason."""
    trace = _sampled(recorded, tmp_path, code, seconds=0.1)
    assert trace.samples == ()
    assert {each.code for each in trace.missing.values()} == {code}
    assert set(trace.missing) == set(FIELDS)
    assert measure(trace, 1.0, 2.0).window.codes == (code,)


def test_library_that_is_not_installed_is_a_reason(tmp_path: Path) -> None:
    """The real one: here either there is no NVML, or it knows no GPU of this UUID."""
    with Sampling(UUID, tmp_path).during() as taken:
        pass
    assert {each.code for each in taken.trace.missing.values()} <= {
        "no library",
        "no driver",
        "gpu not found",
    }
    assert taken.trace.missing


def test_sampler_that_dies_is_a_reason(tmp_path: Path) -> None:
    """A trace that can't be replayed: the caller goes on, with the sampler's own words."""
    wrong = replayed(tmp_path / "nowhere.jsonl")
    with Sampling(UUID, tmp_path, sampler=wrong).during() as taken:
        pass
    reasons = set(taken.trace.missing.values())
    assert {each.code for each in reasons} == {"no sampler"}
    assert "nowhere.jsonl" in reasons.pop().why


def _by_hand(recorded: Path, out: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", *replayed(recorded), "--uuid", UUID, "--out", str(out)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"ready"
    wait_for(lambda: b"\n[" in out.read_bytes())  # a sample
    return process


def test_sampler_keeps_what_it_has_on_ctrl_c(recorded: Path, tmp_path: Path) -> None:
    """No traceback, status 0, a whole trace."""
    process = _by_hand(recorded, tmp_path / "out.jsonl")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (0, b"")
    assert load(tmp_path / "out.jsonl").samples


def test_sampler_ends_with_its_caller(recorded: Path, tmp_path: Path) -> None:
    """A caller that is killed closes the pipe, at which the sampler ends by itself."""
    process = _by_hand(recorded, tmp_path / "out.jsonl")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=600) == 0
    for each in (process.stdout, process.stderr):
        assert each is not None
        each.close()
    assert load(tmp_path / "out.jsonl").samples


def test_replay_goes_on_past_its_end_with_growing_counters() -> None:
    """A trace of 4 s stands in for a GPU for as long as it is asked."""
    times_ns = iter([0, *range(0, 20 * 10**9, 10**8)])
    replay = Replay(RECORDED, clock_ns=lambda: next(times_ns))
    read = [replay.read((ENERGY,))[ENERGY] for _ in range(200)]
    energies = [each for each in read if isinstance(each, int)]
    assert len(energies) == len(read)
    assert energies == sorted(energies)
    assert (energies[-1] - energies[0]) * 1e-3 == pytest.approx(600 * 19.9, rel=0.03)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("no library", Fault("no library")),
        ("not supported:energy_mj", Fault("not supported", "energy_mj")),
        ("gpu lost@1.5", Fault("gpu lost", None, 1.5)),
        ("went back:sw_power_cap_ns@2", Fault("went back", "sw_power_cap_ns", 2.0)),
    ],
)
def test_fault_is_read_as_it_is_spelled(text: str, fault: Fault) -> None:
    """Code, field, seconds."""
    assert Fault.of(text) == fault


@pytest.mark.parametrize("text", ["broken", "not supported:watts", "gpu lost@soon"])
def test_fault_that_there_is_not_is_refused_in_a_sentence(text: str) -> None:
    """It says what there is."""
    with pytest.raises(ValueError, match="fault"):
        Fault.of(text)
