"""The suites' options, loaded by `-p suites.run.options` for every pytest of this checkout.

A plugin rather than a conftest, so that the options are known wherever pytest is started from. It
decides between GPU and interpreter before triton is imported: one process can't do both.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from suites.run.option_table import OPTIONS, check, suite_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare what selects kernels, cases and the device.

    Before that the options that were typed are held to those of the suite that is run: pytest
    itself would take any suite's, and says what it doesn't know in five lines. Raises UsageError.
    """
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    typed = [str(each) for each in config.invocation_params.args]
    suite = suite_of(typed, config.invocation_params.dir)
    name = ""
    if suite is not None:
        folder, name = suite
        typed.remove(folder)
        check(name, typed)
    group = parser.getgroup("workbench", "kernel-workbench")
    for each in OPTIONS:
        if not each.pytests and (name in each.suites if suite else "--device" in each.names):
            group.addoption(*each.names, **each.settings)


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
