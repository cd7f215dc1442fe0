"""A process that calls a kernel on a case, for Nsight Compute: one call is in the profiled range.

    python -m kernel_workbench.suites.bench.counted_call REQUEST

REQUEST: JSON with the device, the op, the kernel, the case as workers receive it, and a user's
files. Calls before the range compile, tune and fill the caches of the host.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from kernel_workbench.kernels.registry import all_kernels, load_file
from kernel_workbench.suites.sandbox.orphans import die_with_parent
from kernel_workbench.suites.sandbox.wire import case_of

_WARM_UP = 3
FAILED = "the counted call failed:"


def profiled(device: torch.device) -> AbstractContextManager[object]:
    """Return the range that `--profile-from-start off` waits for; an empty context on a CPU."""
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[object] = torch.cuda.profiler.profile()
    return context


def call(
    request: dict[str, Any],
    range_on: Callable[[torch.device], AbstractContextManager[object]] = profiled,
) -> None:
    """Call the kernel several times, and then once within the range."""
    device, case = torch.device(request["device"]), case_of(request["case"])
    for file in request["files"]:
        load_file(Path(file))
    kernels = {(kernel.op.name, kernel.name): kernel for kernel in all_kernels()}
    kernel = kernels[request["op"], request["kernel"]]
    inputs = kernel.op.inputs(case, device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(_WARM_UP):
        kernel.function(**inputs)
    wait()
    with range_on(device):
        kernel.function(**inputs)
        wait()


def main() -> None:
    """Make the call; the process ends with its parent."""
    die_with_parent()
    torch.set_num_threads(1)
    try:
        call(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001  (whatever a kernel raises)
        text = " ".join(str(error).split())[:300]
        sys.exit(f"{FAILED} {type(error).__name__}: {text}")


if __name__ == "__main__":
    main()
