"""Tensors' values beside a recording: a file of safetensors, written and read without a package.

The file begins with the header's length in 8 bytes and the header in JSON: name -> dtype, shape and
place. `__metadata__` has a sample's op and numbers in JSON, under the sample's name.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Op

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH = 8
_MOST_BYTES_OF_A_HEADER = 2**26


class ValuesError(ValueError):
    """A file has no values of a recording; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class ValueSample:
    """The arguments of one recorded call.

    Attributes:
        op: what `assert_matches` takes as its op.
        case: the id of the case that the arguments are of.
        arguments: of a kernel, by name.
    """

    op: Op
    case: str
    arguments: dict[str, Any]


def values_path(calls: Path) -> Path:
    """Return the file of values beside a file of recorded calls."""
    return calls.with_suffix(".safetensors")


def write_values(path: Path, samples: Sequence[ValueSample]) -> None:
    """Write samples whose arguments are tensors and numbers."""
    header: dict[str, Any] = {"__metadata__": {}}
    tensors: list[Tensor] = []
    end = 0
    for number, sample in enumerate(samples):
        numbers = {}
        for name, value in sample.arguments.items():
            if not isinstance(value, Tensor):
                numbers[name] = value
                continue
            packed = value.detach().cpu().contiguous()
            start, end = end, end + packed.numel() * packed.element_size()
            header[f"{number}/{name}"] = {
                "dtype": _NAMES[packed.dtype],
                "shape": list(packed.shape),
                "data_offsets": [start, end],
            }
            tensors.append(packed)
        about = {"op": sample.op.name, "case": sample.case, "numbers": numbers}
        header["__metadata__"][str(number)] = json.dumps(about)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH, "little") + text)
        for tensor in tensors:
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    beside.replace(path)


def recorded_values(path: str | os.PathLike[str]) -> Iterator[ValueSample]:
    """Return the samples of values that a recording kept.

    Args:
        path: the recording, `calls.jsonl`, or the file beside it, `calls.safetensors`.

    Returns:
        The samples, with an op, a case's id and the arguments of a kernel. Tensors are
        packed and on the CPU.

    Raises:
        ValuesError: there are no values, or the file is damaged.
    """
    file = values_path(Path(path))
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValuesError(
            f"{file}: no values can be read ({error.strerror}); record with values=True"
        ) from error
    try:
        yield from _samples(data)
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise ValuesError(f"{file}: damaged, or no file of a recording; record again") from error


def _samples(data: bytes) -> list[ValueSample]:
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or not 0 < length <= min(len(data), _MOST_BYTES_OF_A_HEADER):
        raise ValueError("no header")
    header = json.loads(data[_LENGTH : _LENGTH + length])
    body = memoryview(data)[_LENGTH + length :]
    arguments: dict[str, dict[str, Any]] = {}
    about: Mapping[str, str] = header.pop("__metadata__")
    for name, entry in header.items():
        number, _, argument = name.partition("/")
        start, end = entry["data_offsets"]
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        if not 0 <= start <= end <= len(body) or end - start != math.prod(shape) * dtype.itemsize:
            raise ValueError("a tensor has no place")
        copied = bytearray(body[start:end])
        flat = torch.frombuffer(copied, dtype=dtype) if copied else torch.empty(0, dtype=dtype)
        arguments.setdefault(number, {})[argument] = flat.reshape(shape)
    samples = []
    for number, text in about.items():
        entry = json.loads(text)
        values = arguments.get(number, {}) | entry["numbers"]
        samples.append(ValueSample(OPS[entry["op"]], entry["case"], values))
    return samples
