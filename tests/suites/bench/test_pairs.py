"""Cases timed and profiled for a kernel that doesn't serve the dtypes of its op's shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import Domain, Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, dtype_name
from kernel_workbench.suites.bench.pairs import planned_pairs
from kernel_workbench.suites.profile.cases import profiled_cases
from kernel_workbench.suites.run.option_table import BenchOptions, ProfileOptions

_CUDA = torch.device("cuda")  # by name alone: nothing is called
_CPU = torch.device("cpu")
_OP = OPS["rms_norm_forward"]
_PEER = next(each for each in all_kernels() if each.op.name == _OP.name)
_HALF, _SINGLE = (torch.float16, torch.float32), (torch.float32,)


def _mine(name: str, domain: Domain) -> Kernel:
    return replace(_PEER, name=name, domain=domain, origin="user")


_FILES = ("mine.py",)


def _refusal(kernel: Kernel, case: Case) -> str | None:
    return kernel.domain.reject(case, 90)


def _timed(*kernels: Kernel, dtypes: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """By a kernel's name, the dtypes that it is timed in."""
    found: dict[str, set[str]] = {}
    for kernel, case in planned_pairs(
        BenchOptions(kernels=_FILES, dtype=dtypes), kernels, _CUDA, 90, _refusal
    ):
        found.setdefault(kernel.name, set()).add(case.dtype_label)
    return found


@pytest.mark.parametrize(
    ("domain", "label"),
    [
        (Domain(dtypes=(torch.float32, torch.float16)), "float16"),
        (Domain(dtypes=_SINGLE), "float32"),
        (Domain(dtypes=_HALF, weight_dtypes=_SINGLE), "float16_float32weight"),
        (Domain(dtypes=(torch.bfloat16,), weight_dtypes=_SINGLE), "bfloat16_float32weight"),
        (Domain(dtypes=(torch.bfloat16, torch.float16)), "bfloat16"),
    ],
)
def test_kernel_is_measured_in_a_dtype_that_it_serves(domain: Domain, label: str) -> None:
    """On its op's shapes, with its peer beside it."""
    kernels = (_mine("mine", domain), _PEER)
    assert _timed(*kernels) == {"mine": {label}, _PEER.name: {label}}
    shapes = [case.sizes for case in _OP.workloads.timed("cuda")]
    planned = planned_pairs(BenchOptions(kernels=_FILES), kernels[:1], _CUDA, 90, _refusal)
    assert [case.sizes for _, case in planned] == shapes
    profiled = profiled_cases(ProfileOptions(kernels=_FILES), _CUDA, kernels, _refusal)
    assert {case.dtype_label for case in profiled} == {label}


def test_kernels_of_several_dtypes_are_measured_side_by_side() -> None:
    """The listed cases stay where one kernel serves them."""
    single, half = _mine("single", Domain(dtypes=_SINGLE)), _mine("half", Domain(dtypes=_HALF[:1]))
    both = {"float16", "float32"}
    assert _timed(single, half) == {"single": both, "half": both}
    plain = _mine("plain", Domain(dtypes=(torch.bfloat16,)))
    assert _timed(single, plain)["plain"] == {"bfloat16", "float32"}


def test_dtype_that_is_asked_for_is_taken() -> None:
    """The dtype is one that the kernel serves."""
    mine = _mine("mine", Domain(dtypes=_HALF))
    for dtype in _HALF:
        assert _timed(mine, dtypes=(dtype_name(dtype),)) == {"mine": {dtype_name(dtype)}}


def test_kernel_that_serves_no_dtype_of_these_shapes_is_refused_on_them() -> None:
    """The refusal is told, of the cases that are listed."""
    assert _timed(_mine("mine", Domain(dtypes=_SINGLE, sizes={"n": (1, 2)}))) == {
        "mine": {"bfloat16"}
    }


def test_cases_of_ones_own_are_timed_of_ops_that_peers_alone_compute(tmp_path: Path) -> None:
    """By all peers, though nobody names one; without a file none of them is."""
    file = tmp_path / "shapes.jsonl"
    line = {"op": _OP.name, "sizes": {"m": 7, "n": 64}, "dtype": "bfloat16"}
    file.write_text(json.dumps(line))
    cases = (str(file),)
    planned = planned_pairs(BenchOptions(cases=cases), all_kernels(), _CPU, 90, _refusal)
    peers = {each.name for each in all_kernels() if each.op.name == _OP.name}
    assert {kernel.name for kernel, _ in planned} == peers
    assert {case.size("m") for _, case in planned} == {7}
    profiled = profiled_cases(ProfileOptions(cases=cases), _CPU, all_kernels(), _refusal)
    assert [case.op for case in profiled] == [_OP.name]
    planned = planned_pairs(BenchOptions(), all_kernels(), _CPU, 90, _refusal)
    assert not peers & {kernel.name for kernel, case in planned if case.op == _OP.name}
