"""The table of known causes: a real message of each fault ends in a sentence with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_workbench.kernels.causes import CAUSES, cause_of, is_fatal, kernels_named_in, with_cause

# The words of a program that reported the fault, and words of the sentence.
_MESSAGES = [
    ("No module named 'cupy'", "pip install 'cupy-cuda13x'"),
    ("No module named 'cutlass.cute'", "pip install 'nvidia-cutlass-dsl'"),
    ("No module named 'cuda.tile'", "pip install 'cuda-tile'"),
    ("No module named 'somebodys.own'", "pip install 'somebodys'"),
    (
        "libnvrtc.so.13: cannot open shared object file: No such file or directory",
        "lacks the library libnvrtc.so.13",
    ),
    (
        "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
        "driver is older",
    ),
    ("[35] Call to cuInit results in: CUDA driver version is insufficient", "driver is older"),
    (
        "The NVIDIA driver on your system is too old (found version 11040).",
        "driver is older",
    ),
    ("Found no NVIDIA driver on your system.", 'devices=("cuda",)'),
    ("CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", 'devices=("cuda",)'),
    (
        "CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "set CUDA_HOME",
    ),
    ("[Errno 2] No such file or directory: 'nvcc'", "compiler is missing: nvcc"),
    (
        "'tileiras' compiler not found, make sure it is available as a python package",
        "pip install 'cuda-tile[tileiras]'",
    ),
    (
        "[Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
        "compiler is missing: nvcc",
    ),
    ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", "compiler is missing: nvcc"),
    ("[Errno 2] No such file or directory: 'g++'", "compiler is missing: g++"),
    ("/bin/sh: 1: c++: not found", "compiler is missing: c++"),
    (
        "No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
        "compiler is missing: C++",
    ),
    (
        "Failed to find C compiler. Please specify via CC environment variable",
        "is missing: C compiler",
    ),
    ("Ninja is required to load C++ extensions (pip install ninja to get it)", "pip install ninja"),
    ("x.cpp:1:10: fatal error: Python.h: No such file or directory", "python3-dev"),
    (
        "#error -- unsupported GNU version! gcc versions later than 13 are not supported!",
        "host's C++ compiler",
    ),
    (
        "The detected CUDA version (12.1) mismatches the version that was used to compile PyTorch",
        "torch.version.cuda",
    ),
    ("CUDA error: no kernel image is available for execution on the device", "other GPUs"),
    ("CUDA error: an illegal memory access was encountered", "outside of its memory"),
    ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal address was touched", "outside of its memory"),
    ("CUDA error: misaligned address", "alignment=16"),
    ("CUDA_ERROR_LAUNCH_FAILED", "fault on the GPU"),
    ("CUDA error: unspecified launch failure", "fault on the GPU"),
    ("CUDA error: device-side assert triggered", "assert in a kernel"),
    ("CUDA error: an illegal instruction was encountered", "instruction that this GPU lacks"),
]


@pytest.mark.parametrize(("message", "words"), _MESSAGES)
def test_message_of_a_known_fault_has_its_cause(message: str, words: str) -> None:
    """The sentence names what to install, set or change, and follows the error's own words."""
    cause = cause_of(message)
    assert cause is not None
    assert words in cause
    assert with_cause(f"it raised X: {message}", message) == f"it raised X: {message}; {cause}"


def test_table_of_causes_has_no_row_without_a_message() -> None:
    """Each row is the first that takes some message above: none is dead, none hides another."""
    first = {
        next(cause.pattern for cause in CAUSES if cause.said_of(message))
        for message, _ in _MESSAGES
    }
    assert first == {cause.pattern for cause in CAUSES}


@pytest.mark.parametrize(
    "message", ["", "division by zero", "out of memory", "expected 2 arguments, got 3"]
)
def test_other_errors_have_no_cause(message: str) -> None:
    """An error of a kernel's own stays as it is."""
    assert cause_of(message) is None
    assert with_cause("it raised X", message) == "it raised X"


@pytest.mark.parametrize(
    ("message", "fatal"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", True),
        ("CUDA error: misaligned address", True),
        ("CUDA_ERROR_ASSERT", True),
        ("CUDA error: no kernel image is available for execution on the device", False),
        ("No module named 'cupy'", False),
    ],
)
def test_fault_on_the_gpu_leaves_no_context(message: str, *, fatal: bool) -> None:
    """After such an error each later call of the process fails; after another one none does."""
    assert is_fatal(message) is fatal


def test_kernels_of_a_file_are_named_without_its_import(tmp_path: Path) -> None:
    """By the decorator, with the name that it gives; other functions aren't named."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import nothing_at_all\n"
        "@nothing_at_all.jit\ndef kernel(x): ...\n"
        "@kernel(OP, Domain())\n@other\ndef first(x): ...\n"
        "@kernel_workbench.kernel(OP, Domain(), name='second')\ndef hidden(x): ...\n"
        "@kernel\ndef no_registration(x): ...\n"
    )
    assert kernels_named_in(file) == ("first", "second")
    file.write_text("def (")
    assert kernels_named_in(file) == ()
