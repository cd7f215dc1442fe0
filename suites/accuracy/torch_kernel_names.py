"""Do PyTorch's memory-efficient kernels run that are predicted? Asked of a profiler, on a GPU.

    python -m suites.accuracy.torch_kernel_names

runs cases of `torch_efficient`, forward and backward, under torch.profiler, prints what was
predicted and what ran, and the kernels of this GPU that no case has reached. The exit status is 0
where every name is right, 1 where one isn't, 2 where there is no GPU.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from kernels.registry import Kernel, all_kernels
from oracles.attention.geometry import BACKWARD, FORWARD
from oracles.op import Case, dtype_name

PEER = "torch_efficient"
_NAME = re.compile(r"fmha_cutlass[FB]_\w+")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# A head size for each largest one in the tables, and for two on either side of them.
_HEADS = ((32, 32), (40, 40), (64, 64), (80, 80), (96, 128), (128, 128), (192, 128), (256, 256))
# Whole blocks of 128, whole ones of 64, and neither.
_LENGTHS = ((256, 128), (192, 64), (200, 328))


@dataclass(frozen=True, slots=True)
class Seen:
    """One case: what was predicted for it, and what ran."""

    case: Case
    predicted: str
    ran: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether the predicted kernel ran, and no other of its family."""
        return self.ran == (self.predicted,)


def cases(op: str) -> Iterator[Case]:
    """The cases to run: each dtype, head size and length; dropout; and what changes no name."""
    for dtype, (d, d_v), lengths in itertools.product(_DTYPES, _HEADS, _LENGTHS):
        yield _case(op, dtype, d, d_v, lengths, "")
    for dtype, (d, d_v) in itertools.product(_DTYPES, _HEADS):
        yield _case(op, dtype, d, d_v, _LENGTHS[0], "torch_dropout")
    for (d, d_v), options in itertools.product(_HEADS, ("causal", "bias", "varlen")):
        yield _case(op, torch.bfloat16, d, d_v, _LENGTHS[0], options)


def _case(
    op: str, dtype: torch.dtype, d: int, d_v: int, lengths: tuple[int, int], options: str
) -> Case:
    sizes = {"b": 2, "h_q": 2, "h_kv": 2, "s_q": lengths[0], "s_kv": lengths[1], "d": d, "d_v": d_v}
    return Case(
        op=op,
        sizes=tuple(sizes.items()),
        dtype=dtype,
        weight_dtype=dtype,
        options=frozenset({*options.split()} | ({"unequal_d"} if d != d_v else set())),
    )


def names_in(kernels: Iterable[str]) -> tuple[str, ...]:
    """The memory-efficient kernels among a profile's names of kernels, each once, in order."""
    found = (match.group() for each in kernels if (match := _NAME.search(each)) is not None)
    return tuple(dict.fromkeys(found))


def peers() -> tuple[Kernel, ...]:
    """The memory-efficient peers of both passes."""
    known = {each.op.name: each for each in all_kernels() if each.name == PEER}
    return known[FORWARD], known[BACKWARD]


def look(peer: Kernel, case: Case, sm: int, device: torch.device) -> Seen:
    """Run the case once under a profiler."""
    assert peer.variant is not None
    inputs = peer.op.inputs(case, device)
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        peer.function(**inputs)
        torch.cuda.synchronize(device)
    names = names_in(str(each.key) for each in recorded.key_averages())
    return Seen(case, peer.variant(case, sm), names)


def describe(each: Seen) -> str:
    """One line: the case, and the name; where it is wrong, both names."""
    case = each.case
    sizes = " ".join(f"{name}={value}" for name, value in case.sizes if name[0] in "sd")
    told = " ".join([dtype_name(case.dtype), sizes, *sorted(case.options)])
    if each.right:
        return f"  right  {each.predicted}  {told}"
    ran = ", ".join(each.ran) or "none of the family"
    return f"  WRONG  predicted {each.predicted}, ran {ran}  {told}"


def main() -> int:
    """Run all cases and print what ran. Returns the exit status."""
    if not torch.cuda.is_available():
        print("PyTorch's memory-efficient kernels run on a GPU only, and torch sees none here")
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    major, minor = torch.cuda.get_device_capability(device)
    sm = 10 * major + minor
    print(f"{torch.cuda.get_device_name(device)}, sm {sm}, torch {torch.__version__}")
    wrong = 0
    for peer in peers():
        assert peer.variants is not None
        unreached = dict.fromkeys(peer.variants(sm))
        for case in cases(peer.op.name):
            reason = peer.domain.reject(case, sm)
            if reason is not None:
                print(f"  refused  {case.id()}: {reason}")
                continue
            seen = look(peer, case, sm, device)
            wrong += not seen.right
            for name in seen.ran:
                unreached.pop(name, None)
            print(describe(seen), flush=True)
        listed = ", ".join(unreached) or "none"
        print(f"{peer.op.name}: kernels that no case has reached: {listed}")
    print("every name was predicted" if not wrong else f"{wrong} names were predicted wrongly")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
