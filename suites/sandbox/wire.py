"""Messages between the judge and a worker: one line of JSON each, over a socket.

Neither side ever unpickles data: a candidate lives in the worker, and a worker's message must not
be able to run code in the judge. Tensors travel as raw bytes through memory that the judge owns
(`parcels.py`); a message only gives their positions.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from kernel_workbench.oracles.op import Case, Layout, TensorLayout, dtype_name

_LONGEST_LINE = 2**26  # bytes; enough to refuse 200,000 pairs with a sentence for each pair
_CHUNK = 2**16

Message = dict[str, Any]


class ClosedError(ConnectionError):
    """The other side is gone, or sent something that is not a line of JSON."""


class LateError(TimeoutError):
    """The other side didn't answer in time."""


@contextmanager
def new_line() -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """Make the judge's end of a socket, a new process's end, and a file for what it prints.

    The process's end is closed here after the block, and the other two if the block raises.
    """
    ours, theirs = socket.socketpair()
    output = os.memfd_create("printed")
    try:
        with theirs:
            yield ours, theirs, output
    except BaseException:
        ours.close()
        os.close(output)
        raise


class Channel:
    """One end of the socket.

    >>> line.send({"do": "ask", "id": 1})
    >>> line.receive(wait_s=10.0)
    {'id': 1, 'answers': []}
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with file descriptors for the other process. Raises ClosedError."""
        data = json.dumps(message).encode() + b"\n"
        try:
            if descriptors:
                sent = socket.send_fds(self.socket, [data], list(descriptors))
                data = data[sent:]
            self.socket.sendall(data)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def is_readable(self) -> bool:
        """Return True if `receive` would find something: bytes, or that the other side is gone."""
        return bool(self._buffer or select.select([self.socket], [], [], 0)[0])

    def receive(self, wait_s: float | None = None) -> Message:
        """Return the next message.

        Args:
            wait_s: seconds to wait; None: without a limit.

        Raises:
            LateError: if no message arrives in time.
            ClosedError: if the other side is gone.
        """
        message, _ = self.receive_with_descriptors(wait_s, 0)
        return message

    def receive_with_descriptors(
        self, wait_s: float | None, most: int
    ) -> tuple[Message, tuple[int, ...]]:
        """Return the next message, and at most `most` file descriptors that came with it.

        Raises:
            LateError: no whole message came within `wait_s` seconds; None waits for ever.
            ClosedError: the other side is gone, or its line is too long or no JSON object.
        """
        deadline = None if wait_s is None else time.monotonic() + wait_s
        received: list[int] = []
        while b"\n" not in self._buffer:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.socket], [], [], left)[0]:
                raise LateError
            try:
                if most:
                    data, descriptors, _, _ = socket.recv_fds(self.socket, _CHUNK, most)
                    received += descriptors
                else:
                    data = self.socket.recv(_CHUNK)
            except OSError as error:
                raise ClosedError(str(error)) from error
            if not data or len(self._buffer) > _LONGEST_LINE:
                raise ClosedError
            self._buffer += data
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ClosedError from error
        if not isinstance(message, dict):
            raise ClosedError
        return message, tuple(received)

    def close(self) -> None:
        """Close this end; the other side's calls then raise ClosedError."""
        self.socket.close()


def spelled(case: Case) -> dict[str, Any]:
    """Return the case in JSON."""
    return asdict(case) | {
        "dtype": dtype_name(case.dtype),
        "weight_dtype": dtype_name(case.weight_dtype),
        "options": sorted(case.options),
    }


def case_of(spelling: dict[str, Any]) -> Case:
    """Return the case of a spelling by `spelled`."""
    layout = spelling["layout"]
    tensors = tuple((name, TensorLayout(**tensor)) for name, tensor in layout["tensors"])
    return Case(
        **spelling
        | {
            "sizes": tuple((name, size) for name, size in spelling["sizes"]),
            "dtype": getattr(torch, spelling["dtype"]),
            "weight_dtype": getattr(torch, spelling["weight_dtype"]),
            "layout": Layout(**layout | {"tensors": tensors}),
            "options": frozenset(spelling["options"]),
        }
    )
