"""A user's own process: torch, the kernels of the checkout and a user's file, and no suite.

The judge doesn't import this. Its text is the program of a process that is started anew, whose
command line, modules and environment have nothing of the suites' (`plain_calls.py` asks it).
Lines of JSON come and go over descriptor 3, tensors in them as base64. Each call is made in a child
of its own, which imports the one file: no candidate meets what another has left.

Under the interpreter it has the suites' mended arithmetic, whose modules are hidden afterwards, and
none of their checks: the stock one is wrong in bfloat16.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch

_JUDGE = 3
_ANSWERED = 77  # a child's exit status: not 0, with which a candidate may end it
_Message = dict[str, Any]


def _tensor(sent: _Message, device: torch.device) -> torch.Tensor:
    made = torch.empty(sent["shape"], dtype=getattr(torch, sent["dtype"]))
    if made.numel():
        content = torch.frombuffer(bytearray(base64.b64decode(sent["data"])), dtype=torch.uint8)
        made.view(-1).view(torch.uint8).copy_(content)
    return made.to(device)


def _argument(value: object, device: torch.device) -> object:
    if not isinstance(value, dict):
        return value
    return tuple(value["tuple"]) if "tuple" in value else _tensor(value, device)


def _told(output: object) -> object:
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
    for each in message["files"]:
        registry.load_file(Path(each))
    wanted = message["op"], message["kernel"]
    known = {(each.op.name, each.name): each for each in registry.all_kernels()}
    torch.set_num_threads(1)
    inputs = {name: _argument(each, device) for name, each in message["inputs"].items()}
    returned = known[wanted].op.as_tuple(known[wanted].function(**inputs))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"outputs": [_told(each) for each in returned]}


def _answer(line: socket.socket, message: _Message, device: torch.device) -> None:
    """In a child: make the call and say what came of it; never returns."""
    status = 1
    try:
        said: _Message
        try:
            said = _called(message, device)
        except BaseException as error:  # noqa: BLE001  (a candidate may raise anything)
            said = {"raised": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        line.sendall(json.dumps(said | {"id": message["id"]}).encode() + b"\n")
        status = _ANSWERED
    finally:
        os._exit(status)


def main() -> None:
    """Serve the judge until it hangs up. The first line says on which device, and whose kernels."""
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
        importlib.import_module("kernel_workbench.kernels.registry").all_kernels()
        line.sendall(json.dumps({"id": first["id"]}).encode() + b"\n")
        for each in lines:
            message = json.loads(each)
            child = os.fork()
            if child == 0:
                _answer(line, message, device)
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status) != _ANSWERED:
                ended = {"id": message["id"], "ended": os.waitstatus_to_exitcode(status)}
                line.sendall(json.dumps(ended).encode() + b"\n")


if __name__ == "__main__":
    main()
