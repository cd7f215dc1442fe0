"""A user's own process: torch, the kernels of the checkout and a user's file, and no suite.

The judge doesn't import this module. Its text is the program of a new process, whose command line,
modules and environment contain nothing of the suites (`plain_calls.py` sends the messages).
Messages are lines of JSON over descriptor 3, with tensors in base64. Each call is made in a child
process, which imports the one file: no candidate meets the remains of another. The child is forked
before its message comes, and on a GPU it creates its context of CUDA meanwhile.

Under the interpreter the process has the suites' mended arithmetic, because the stock arithmetic is
wrong in bfloat16. It hides those modules afterwards and has none of the checks.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_JUDGE = 3
_ANSWERED = 77  # a child's exit status; a candidate may end the child with 0
_Message = dict[str, Any]


def _tensor(sent: _Message, device: torch.device) -> torch.Tensor:
    tensor = torch.empty(sent["shape"], dtype=getattr(torch, sent["dtype"]))
    if tensor.numel():
        content = torch.frombuffer(bytearray(base64.b64decode(sent["data"])), dtype=torch.uint8)
        tensor.view(-1).view(torch.uint8).copy_(content)
    return tensor.to(device)


def _argument(value: object, device: torch.device) -> object:
    if not isinstance(value, dict):
        return value
    return tuple(value["tuple"]) if "tuple" in value else _tensor(value, device)


def _output(output: object) -> object:
    if not isinstance(output, torch.Tensor):
        return None
    packed = output.detach().cpu().contiguous().view(-1)
    data = packed.view(torch.uint8).numpy().tobytes() if packed.numel() else b""
    return {
        "dtype": str(output.dtype).removeprefix("torch."),
        "shape": list(output.shape),
        "data": base64.b64encode(data).decode(),
    }


def _called(message: _Message, device: torch.device) -> _Message:
    registry = importlib.import_module("kernel_workbench.kernels.registry")
    for file in message["files"]:
        registry.load_file(Path(file))
    wanted = message["op"], message["kernel"]
    kernels = {(kernel.op.name, kernel.name): kernel for kernel in registry.all_kernels()}
    torch.set_num_threads(1)
    inputs = {name: _argument(value, device) for name, value in message["inputs"].items()}
    returned = kernels[wanted].op.as_tuple(kernels[wanted].function(**inputs))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"outputs": [_output(output) for output in returned]}


def _answer(line: socket.socket, source: int, device: torch.device) -> None:
    """Wait for a message in a child, make the call and send the result. Never returns."""
    status = 1
    try:
        importlib.import_module("kernel_workbench.kernels.device").create_context(device)
        with os.fdopen(source, "rb") as messages:
            text = messages.readline()
        if not text:
            os._exit(_ANSWERED)  # the judge has hung up
        message: _Message = json.loads(text)
        reply: _Message
        try:
            reply = _called(message, device)
        except BaseException as error:  # noqa: BLE001  (a candidate may raise anything)
            reply = {"raised": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        line.sendall(json.dumps(reply | {"id": message["id"]}).encode() + b"\n")
        status = _ANSWERED
    finally:
        os._exit(status)


def _waiting_child(line: socket.socket, device: torch.device) -> tuple[int, int]:
    """Fork a child that waits for a message; return its process id and where it reads."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sink)
        _answer(line, source, device)
    os.close(source)
    return child, sink


def main() -> None:
    """Serve the judge until it hangs up. The first message names the device and the overlay."""
    line = socket.socket(fileno=_JUDGE)
    with line.makefile("rb") as lines:
        first = json.loads(lines.readline())
        device = torch.device(first["device"])
        if first["overlay"]:
            importlib.import_module("kernel_workbench").use_overlay(first["overlay"])
        if device.type == "cpu":
            importlib.import_module("kernel_workbench.suites.interpreter.repairs").install()
            for name in list(sys.modules):
                if name.startswith("kernel_workbench.suites"):
                    del sys.modules[name]
            del sys.modules["kernel_workbench"].suites
        else:  # Triton hashes its own files at a process's first compilation, for half a second
            hashed = getattr(importlib.import_module("triton.runtime.cache"), "triton_key", None)
            if hashed is not None:
                hashed()
            importlib.import_module("kernel_workbench.kernels.cache_keys").settle()
        importlib.import_module("kernel_workbench.kernels.registry").all_kernels()
        line.sendall(json.dumps({"id": first["id"]}).encode() + b"\n")
        while True:
            child, sink = _waiting_child(line, device)
            text = lines.readline()
            with suppress(BrokenPipeError), os.fdopen(sink, "wb") as messages:
                messages.write(text)  # the child may have ended by an error of CUDA
            _, status = os.waitpid(child, 0)
            if not text:
                return
            if os.waitstatus_to_exitcode(status) != _ANSWERED:
                ended = {
                    "id": json.loads(text)["id"],
                    "ended": os.waitstatus_to_exitcode(status),
                }
                line.sendall(json.dumps(ended).encode() + b"\n")


if __name__ == "__main__":
    main()
