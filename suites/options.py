"""The suites' options, loaded by `-p suites.options` for every pytest of this checkout.

A plugin rather than a conftest, so that the options are known wherever pytest is started from. It
decides between GPU and interpreter before triton is imported: one process can't do both.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

DEFAULT_SM = 90  # Hopper, which the kernels are tuned for
_ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what selects kernels, cases and the device."""
    group = parser.getgroup("workbench", "kernel-workbench")
    group.addoption("--op", action="append", metavar="NAME", help="only this op; may be repeated")
    group.addoption(
        "--kernel",
        action="append",
        metavar="NAME",
        help="only this kernel; may be repeated; a baseline named here sets the exit status",
    )
    group.addoption(
        "--kernels",
        action="append",
        metavar="FILE",
        default=[],
        help="a Python file that registers kernels; they run alone unless --kernel names others",
    )
    group.addoption(
        "--dtype",
        action="append",
        metavar="NAME",
        help="only activations of this dtype (float32, float16, bfloat16); may be repeated",
    )
    group.addoption(
        "--tier", metavar="ci|full", default="ci", help="ci (default), or full, which includes it"
    )
    group.addoption("--case", action="append", metavar="ID", help="only the case of this exact id")
    group.addoption(
        "--cases",
        action="append",
        metavar="FILE",
        default=[],
        help="cases of your own, a JSON object a line; they run alone; may be repeated",
    )
    group.addoption(
        "--device",
        metavar="cpu|cuda",
        default="auto",
        help="cuda, or cpu under Triton's interpreter; by default the GPU where there is one",
    )
    group.addoption(
        "--sm",
        type=int,
        default=DEFAULT_SM,
        help=f"on a CPU, the sm that domains are asked about (default {DEFAULT_SM})",
    )
    group.addoption(
        "--no-strict",
        action="store_true",
        help="on a CPU, don't check each access of a kernel against its arguments",
    )
    group.addoption(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="processes that share the cases; by default as many as the machine is good for",
    )
    group.addoption(
        "--time-limit",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds that one call of a kernel may take (default 300)",
    )
    group.addoption(
        "--memory-limit",
        type=float,
        metavar="GIB",
        help="memory of the host that a kernel's process may take; by default half of what is free",
    )
    group.addoption(
        "--in-process",
        action="store_true",
        help="call kernels in the suite's own process, for a debugger; one that crashes ends it",
    )
    group.addoption(
        "--signs",
        metavar="N",
        type=int,
        help="what second calls' signs, and further values, are drawn from, as a row has it; by "
        "default a secret",
    )
    group.addoption(
        "--resume", metavar="RECORD", help="go on with a run that was cut off, given its options"
    )
    group.addoption(
        "--cache",
        metavar="cold|warm",
        default="cold",
        help="bench: whether a call finds its inputs in the L2 cache (default cold)",
    )
    group.addoption(
        "--row-time",
        metavar="S",
        type=float,
        default=0.4,
        help="bench: seconds of sampling for a row, at most (default 0.4)",
    )
    group.addoption("--quick", action="store_true", help="bench: one case in four, a fifth as long")
    group.addoption(
        "--gpus", metavar="N,N|all", help="bench: on each of these GPUs, one after the other"
    )
    group.addoption(
        "--gpus-together", action="store_true", help="bench: on all of --gpus at the same time"
    )
    group.addoption(
        "--against",
        metavar="REF|FILE",
        help="bench: time another commit's kernels too, or with --kernels an older file's, in turn",
    )
    group.addoption(
        "--no-baselines",
        action="store_true",
        help="bench: no peers beside ours; so does --against REF, unless --kernel names some",
    )
    group.addoption(
        "--rounds",
        metavar="N",
        type=int,
        help="bench: every row in so many processes, one after the other, in one record (default "
        "1); of --against so many times four, A B B A (default 2)",
    )
    group.addoption(
        "--gate",
        action="store_true",
        help="bench: of --against, exit status 1 where a row is slower or less accurate",
    )
    # Of a process that another one started: which share of the cases it tries.
    group.addoption("--shard", default="", help=argparse.SUPPRESS)
    group.addoption(
        "--seed",
        default="0",
        metavar="N|N..M",
        help="added to every case's seed (default 0); every case once for each of several",
    )
    group.addoption(
        "--gate-baselines", action="store_true", help="baselines' failures set the exit status too"
    )
    group.addoption(
        "--hash-uuid", action="store_true", help="keep a hash of the GPU's UUID, not the UUID"
    )
    group.addoption(
        "--results", metavar="DIR", default=str(_ROOT / "results"), help="where records are written"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Choose the device before a conftest imports triton.

    Ctrl-C in the seconds that the imports take ends pytest without pages of where in them it was.
    """
    try:
        _choose_device(early_config)
        return (yield)
    except KeyboardInterrupt:
        print("interrupted before anything was run", file=sys.stderr, flush=True)
        os._exit(pytest.ExitCode.INTERRUPTED)  # Python may remember it, and end as from a signal


def _choose_device(early_config: pytest.Config) -> None:
    """Choose it, and tell triton. Raises UsageError."""
    wanted = early_config.known_args_namespace.device
    if wanted not in ("auto", "cpu", "cuda"):
        raise pytest.UsageError(f"--device {wanted}: there is no such device; use cpu or cuda")
    # A run is spread over processes: threads of numpy's in each would only wait for one another.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import torch  # noqa: PLC0415  (a second of work that --help needn't wait for)

    if wanted == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError(
            "--device cuda: torch sees no CUDA device here; use --device cpu, or install a CUDA "
            "build of torch on a machine with a GPU"
        )
    device = "cpu" if wanted == "cpu" or not torch.cuda.is_available() else "cuda"
    if device == "cpu":
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise pytest.UsageError(
                "triton was imported before the interpreter could be switched on; "
                "start pytest with TRITON_INTERPRET=1"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    early_config.stash[DEVICE] = torch.device(device)


DEVICE: pytest.StashKey[torch.device] = pytest.StashKey()
