"""Causes of errors that say more about the machine, or the build, than about a kernel's numbers.

A compiler, a driver or an importer reports a fault in its own words, often in many lines.
`cause_of` finds a known fault in these words and returns a sentence with the cause and the remedy.
A new fault is a new row of `CAUSES`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

# The distribution that brings a package, where the two names differ.
_DISTRIBUTIONS = {
    "cuda": "cuda-python",
    "cuda.bindings": "cuda-bindings",
    "cuda.core": "cuda-core",
    "cuda.tile": "cuda-tile",
    "cupy": "cupy-cuda13x",
    "cutlass": "nvidia-cutlass-dsl",
    "jax": "jax[cuda13]",
    "ninja": "ninja",
    "numba.cuda": "numba-cuda[cu13]",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A known fault: the pattern of its words, and a sentence.

    The sentence may have `{0}`, which is the first group of the pattern; `{install}` is the name by
    which pip installs that group.
    """

    pattern: str
    sentence: str
    fatal: bool = False  # the process can't use the GPU any more

    def said_of(self, message: str) -> str | None:
        """Return the sentence if the message has the fault, else None."""
        match = re.search(self.pattern, message)
        if match is None:
            return None
        group = next((text for text in match.groups() if text), "")
        return self.sentence.format(group, install=_distribution(group))


CAUSES = (
    Cause(
        r"No module named '([\w.]+)'",
        "this machine lacks the package {0}; install it, as by pip install '{install}'",
    ),
    Cause(
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "this machine lacks the library {0}; install the package that has it, or add its folder "
        "to LD_LIBRARY_PATH",
    ),
    Cause(
        r"cudaErrorInsufficientDriver|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        r"|(?i:driver version is insufficient)|NVIDIA driver on your system is too old",
        "the GPU's driver is older than the CUDA version of this program; install a newer driver, "
        "or a package for an older CUDA",
    ),
    Cause(
        r"cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE|no CUDA-capable device"
        r"|Found no NVIDIA driver|Torch not compiled with CUDA enabled|No CUDA GPUs are available",
        "this machine has no GPU that CUDA sees; a kernel for a GPU alone says so by "
        'devices=("cuda",) in its Domain',
    ),
    Cause(
        r"CUDA_HOME (?:environment variable is|isn't|is) ?(?:not set)?"
        r"|CUDA_PATH .*(?:not set|could not be)",
        "no CUDA toolkit is found; install one, or set CUDA_HOME to its folder",
    ),
    Cause(
        r"(?:\[Errno 2\] No such file or directory: '|/)nvcc'?(?:: (?:command )?not found|$|'|:)"
        r"|\bnvcc: (?:command )?not found|nvcc: No such file",
        "a compiler is missing: nvcc; install the CUDA toolkit, or add its bin folder to PATH",
    ),
    Cause(
        r"No such file or directory: '[\w./-]*?((?:g|clang)\+\+|c\+\+|gcc|clang|cc)'"
        r"|\b((?:g|clang)\+\+|c\+\+|gcc|clang)(?:-\d+)?: (?:command )?not found"
        r"|No working (C\+\+ compiler) found|Failed to find (C compiler)",
        "a compiler is missing: {0}; install it (the package g++ or build-essential), or name "
        "another one in CC and CXX",
    ),
    Cause(
        r"Ninja is required to load|No such file or directory: '[\w./-]*ninja'|ninja: not found",
        "the build tool ninja is missing; install it, as by pip install ninja",
    ),
    Cause(
        r"fatal error: Python\.h",
        "Python's headers are missing; install the package python3-dev of this Python",
    ),
    Cause(
        r"'(tileiras)' compiler not found",
        "a compiler is missing: {0}; install it, as by pip install 'cuda-tile[tileiras]'",
    ),
    Cause(
        r"unsupported (?:GNU|clang) version",
        "nvcc doesn't know this version of the host's C++ compiler; install an older one, and name "
        "it in CC and CXX",
    ),
    Cause(
        r"CUDA version \([\d.]+\) mismatches the version that was used to compile",
        "the CUDA toolkit is of another version than torch's; install the toolkit of "
        "torch.version.cuda, and set CUDA_HOME to its folder",
    ),
    Cause(
        r"no kernel image is available|cudaErrorNoKernelImageForDevice"
        r"|CUDA_ERROR_NO_BINARY_FOR_GPU",
        "the kernel was built for other GPUs than this one; build it for this one (as by nvcc's "
        "-arch=native or TORCH_CUDA_ARCH_LIST)",
    ),
    Cause(
        r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress",
        "a kernel read or wrote outside of its memory; `nox -s sanitize` shows the line",
        fatal=True,
    ),
    Cause(
        r"misaligned address|CUDA_ERROR_MISALIGNED_ADDRESS|cudaErrorMisalignedAddress",
        "a kernel read or wrote at an address that isn't a multiple of the access's size; "
        "Domain(alignment=16) keeps such pointers away",
        fatal=True,
    ),
    Cause(
        r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure",
        "a kernel ended by a fault on the GPU; `nox -s sanitize` shows the line",
        fatal=True,
    ),
    Cause(
        r"device-side assert|CUDA_ERROR_ASSERT|cudaErrorAssert",
        "an assert in a kernel failed",
        fatal=True,
    ),
    Cause(
        r"illegal instruction|CUDA_ERROR_ILLEGAL_INSTRUCTION|cudaErrorIllegalInstruction",
        "a kernel has an instruction that this GPU lacks; build it for this GPU",
        fatal=True,
    ),
)


def _distribution(package: str) -> str:
    """Return the name by which pip installs a package."""
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in _DISTRIBUTIONS:
            return _DISTRIBUTIONS[name]
    return parts[0]


def cause_of(message: str) -> str | None:
    """Return a sentence about the cause of an error and the remedy; None for an unknown error.

    >>> cause_of("No module named 'cupy'")
    "this machine lacks the package cupy; install it, as by pip install 'cupy-cuda13x'"
    """
    return next((text for cause in CAUSES if (text := cause.said_of(message))), None)


def with_cause(sentence: str, message: str) -> str:
    """Return the sentence, followed by the cause of the error if it is known."""
    cause = cause_of(message)
    return sentence if cause is None else f"{sentence}; {cause}"


def is_fatal(message: str) -> bool:
    """Return True if an error with this message leaves the process without a usable CUDA context.

    >>> is_fatal("CUDA error: an illegal memory access was encountered")
    True
    """
    return any(cause.fatal and cause.said_of(message) for cause in CAUSES)


def kernels_named_in(file: Path) -> tuple[str, ...]:
    """Return the names of the kernels that a file's text registers, without importing the file.

    The name is that of `name="..."` in the decorator `@kernel(...)`, or else the function's.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    names = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else None
            if not isinstance(decorator, ast.Call) or called is None:
                continue
            if ast.unparse(called).rpartition(".")[2] != "kernel" or not decorator.args:
                continue
            values = [word.value for word in decorator.keywords if word.arg == "name"]
            literal = values[0] if values and isinstance(values[0], ast.Constant) else None
            names.append(function.name if literal is None else str(literal.value))
    return tuple(dict.fromkeys(names))
