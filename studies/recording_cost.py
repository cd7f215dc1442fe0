"""`python -m studies.recording_cost`: the time that a recording adds to a training step, on a CPU.

The model is torch's own nn.TransformerEncoder, in training, with a loss and a backward. Blocks of
plain and of recorded steps take turns in one process with one thread; no values are kept. The first
step of a block isn't timed: it describes each call for the first time. Times are of the processor,
so that other work on the machine isn't in them. The figure is the median of the recorded steps over
the median of the plain ones. Each row also has the time to begin a recording, which replaces
functions, and to end it, which writes the file.

--steps: timed steps of a block.
--blocks: blocks of each kind.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from kernel_workbench import record

# Layers, width, heads, sequences and their length.
_SHAPES = ((2, 64, 4, 4, 32), (2, 128, 4, 4, 64), (2, 256, 4, 4, 128), (2, 512, 8, 4, 128))
_LABELS = 100


def _step(layers: int, width: int, heads: int, batch: int, length: int) -> Callable[[], None]:
    """Return a step of training of a transformer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(_LABELS, width),
        nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        nn.Linear(width, _LABELS),
    )
    words = torch.randint(_LABELS, (batch, length))

    def step() -> None:
        model.zero_grad()
        functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()

    return step


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


@dataclass
class _Seconds:
    """Seconds of plain steps, of recorded ones, and of a recording's beginning and end."""

    plain: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    begin: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    calls: int = 0  # of one step


def _measured(step: Callable[[], None], steps: int, blocks: int, folder: Path) -> _Seconds:
    seconds = _Seconds()
    for _ in range(blocks):
        step()
        seconds.plain += [_seconds(step) for _ in range(steps)]
        started = time.process_time()
        with record(folder / "calls.jsonl") as recording:
            seconds.begin.append(time.process_time() - started)
            step()
            seconds.recorded += [_seconds(step) for _ in range(steps)]
            started = time.process_time()
        seconds.end.append(time.process_time() - started)
        calls = recording.summary.partition(": ")[2].partition(" calls")[0]
        seconds.calls = int(calls.replace(",", "")) // (steps + 1)
    return seconds


def main() -> None:
    """Print a row for each transformer."""
    parser = argparse.ArgumentParser(description="the time that a recording adds to a step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("layers", "width", "tokens", "calls", "plain", "recorded", "more", "begin", "end")
    with tempfile.TemporaryDirectory() as folder:
        for shape in _SHAPES:
            layers, width, _, batch, length = shape
            seconds = _measured(_step(*shape), options.steps, options.blocks, Path(folder))
            plain, recorded = median(seconds.plain), median(seconds.recorded)
            milliseconds = (plain, recorded, median(seconds.begin), median(seconds.end))
            plain_ms, recorded_ms, begin, end = (f"{1e3 * value:.2f}" for value in milliseconds)
            more = f"{100 * (recorded / plain - 1):.1f} %"
            table.add_row(
                *map(str, (layers, width, batch * length, seconds.calls)),
                *(plain_ms, recorded_ms, more, begin, end),
            )
    console = Console()
    console.print(table)
    console.print("Calls are of a step, forward and backward; times are ms of the processor.")


if __name__ == "__main__":
    main()
