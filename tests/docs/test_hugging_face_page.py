"""The page on Hugging Face's and vLLM's kernels: its files run, with stand-ins of the packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_workbench import accuracy
from tests import ROOT

pytestmark = pytest.mark.long_run

_PAGE = (ROOT / "docs" / "how-to" / "hugging-face.md").read_text(encoding="utf-8")
_GET_KERNEL = """
import importlib.util, pathlib

def get_kernel(repo_id, revision=None):
    file = pathlib.Path(__file__).parent / "hub" / repo_id / "__init__.py"
    spec = importlib.util.spec_from_file_location("hub_kernel", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
_SOFTMAX = """
import torch

def softmax(out, x):
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    out.copy_(powers / powers.sum(-1, keepdim=True)){}
"""
_NORM = """
import torch

def fused_add_rms_norm(input, residual, weight, epsilon):
    total = input.float() + residual.float()
    residual.copy_(total)
    norm = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon)
    input.copy_(norm * weight.float(){})
"""


def _file(folder: Path, name: str) -> Path:
    """Write a file of the page."""
    program = re.search(rf"```python\n(# {name}\n.*?)```", _PAGE, re.DOTALL)
    assert program is not None
    (folder / name).write_text(program[1])
    return folder / name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("defect", "verdict"), [("", "passed"), (".mul_(1.001)", "failed")])
def test_kernel_of_the_hub_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: str, verdict: str
) -> None:
    """The kernel is loaded from a local folder, right and wrong."""
    packages = tmp_path / "packages"
    _write(packages / "kernels" / "__init__.py", _GET_KERNEL)
    hub = packages / "kernels" / "hub" / "team" / "softmax"
    _write(hub / "__init__.py", _SOFTMAX.format(defect))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    report = accuracy(
        _file(tmp_path, "hub.py"),
        device="cpu",
        cases=["softmax_forward-m3-n64-float32-contiguous"],
        results=tmp_path,
    )
    assert (report.verdict, report.kernels) == (verdict, ("from_hub",)), report.error


@pytest.mark.parametrize(("defect", "verdict"), [("", "passed"), (" * 1.1", "failed")])
def test_op_of_vllm_is_judged_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: str, verdict: str
) -> None:
    """Both arguments are judged as the call leaves them."""
    packages = tmp_path / "packages"
    _write(packages / "vllm" / "__init__.py", "")
    _write(packages / "vllm" / "_custom_ops.py", _NORM.format(defect))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    file = _file(tmp_path, "served.py")
    report = accuracy(file, device="cpu", quick=True, results=tmp_path)
    assert report.verdict == verdict, report.error
    assert report.ops == ("fused_add_rms_norm_forward",)
