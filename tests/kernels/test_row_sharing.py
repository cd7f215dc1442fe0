"""Programs of `row_sharing` wait for one another: what that rests on, and where it is refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels import device as devices
from kernel_workbench.kernels.layer_norm import row_sharing
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Case
from tests.builders.commands import run_python

pytestmark = pytest.mark.long_run

# In a process without the interpreter: the code for one generation of GPU, with none.
_PTX = """
import json, torch
from kernel_workbench import all_kernels
from kernel_workbench import Case
from kernel_workbench.suites.compile.capture import NoteTaker
from kernel_workbench.suites.compile.stand_in import install
install(90)
notes, texts = NoteTaker(), []
kernel = next(each for each in all_kernels() if each.name == "row_sharing_aligned")
for n, dtype in ((65536, torch.bfloat16), (16384, torch.float16), (9000, torch.float32)):
    sizes = (("m", 512), ("n", n))
    case = Case(op="layer_norm_backward", sizes=sizes, dtype=dtype, weight_dtype=dtype)
    launch = next(each for each in notes.of_call(kernel, case) if each.function == "shares")
    made = notes.compile(launch.source, target=launch.target, options=launch.options)
    texts.append(made.asm["ptx"])
print(json.dumps(texts))
"""


# As the registry calls it: by keyword, with what a case has.
_SHARED: Callable[..., tuple[Tensor, Tensor | None, Tensor | None]] = row_sharing.row_sharing


def _case(m: int, n: int) -> Case:
    return layer_norm_case(m, n, (torch.float32, torch.float32))


def _waiting_loops(ptx: str) -> list[list[str]]:
    """The lines of each loop that reads words: from a label to the branch back to it."""
    lines = [line.strip() for line in ptx.splitlines()]
    labels = {line.split(":")[0]: at for at, line in enumerate(lines) if re.match(r"\$L\w+:", line)}
    loops = []
    for at, line in enumerate(lines):
        back = re.search(r"bra(?:\.uni)?\s+(\$L\w+);", line)
        if back and labels[back[1]] < at:
            loops.append(lines[labels[back[1]] : at + 1])
    reading = [each for each in loops if any("ld.volatile" in line for line in each)]
    # The loop over rows reads words too: of loops inside one another the innermost waits.
    return [
        each for each in reading if not any(o is not each and len(o) < len(each) for o in reading)
    ]


def test_no_barrier_stands_where_warps_wait() -> None:
    """A warp may see a word before another does, and would wait at a barrier alone."""
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = run_python("-c", _PTX, variables=compiling)
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout)
    assert len(texts) == 3
    for ptx in texts:
        loops = _waiting_loops(ptx)
        assert len(loops) == 1
        assert any("ld.volatile.global.b64" in line for line in loops[0])
        assert not any("bar." in line or "barrier" in line for line in loops[0])


def test_words_of_a_block_lie_in_one_warp() -> None:
    """However wide a row is, and whatever cut is the tuned one."""
    for cut in row_sharing._CUTS.values():
        widest = -(
            -row_sharing.WIDEST // max(cut.block_n, row_sharing.WIDEST // row_sharing.MOST_OWNERS)
        )
        assert cut.block_m * widest <= 32


@pytest.mark.parametrize(
    ("rows", "groups"),
    [(64, 8), (128, 8), (256, 12), (4, 4)],  # of 65,536 columns in halves, on an H200
)
def test_few_rows_are_walked_over_by_fewer_programs(rows: int, groups: int) -> None:
    """There is less to fold: 32 programs share a row, three an SM or two."""
    cut = row_sharing._CUTS[2, True]
    assert row_sharing._groups(rows, 32, 132, cut) == groups


def test_device_of_fewer_sms_than_owners_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all owners of a row can run at the same time they would wait without end."""
    monkeypatch.setattr(devices, "_multiprocessors", lambda _: 16)
    meta = torch.device("meta")
    x = torch.empty(4, 65536, device=meta, dtype=torch.bfloat16)
    row = torch.empty(4, device=meta)
    with pytest.raises(
        ValueError, match=r"32 owners, which have to run at the same time, .* 16 SMs"
    ):
        row_sharing.row_sharing(x, x, x[0], row, row, aligned=True)


@pytest.mark.parametrize("n", [256, 257, 1024, 8191, 8192])
def test_owners_agree_with_one_owner(n: int, device: torch.device) -> None:
    """Rows that one program owns, and rows that many do, give the same to rounding."""
    inputs = LAYER_NORM_BACKWARD.inputs(_case(19, n), device)
    shared = _SHARED(**inputs, aligned=False)
    block = 1 << (n - 1).bit_length()
    alone = row_sharing.RowSharingCut(1, block, 4, 1, 255)
    for many, one in zip(shared, _SHARED(**inputs, aligned=False, cut=alone), strict=True):
        assert many is not None
        assert one is not None
        torch.testing.assert_close(many, one)


def test_sums_that_are_nan_of_all_ones_do_not_wait(device: torch.device) -> None:
    """A word of all ones says that nothing is there: two sums that are such NaN mustn't make it."""
    inputs = LAYER_NORM_BACKWARD.inputs(_case(3, 300), device)
    dy = inputs["dy"]
    assert isinstance(dy, Tensor)
    dy.view(torch.int32)[1] = -1
    dx = _SHARED(**inputs, aligned=False)[0]
    assert dx[1].isnan().all()
    assert dx[0].isfinite().all()
    assert dx[2].isfinite().all()
