"""Kernels that compute a part of their op: what is said of them, wherever they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from reports.schema import RunHeader


def parts_of(header: RunHeader) -> dict[tuple[str, str], str]:
    """By op and kernel what it computes, `dx alone`, of kernels that don't compute all of it."""
    return {
        (each.op, each.name): f"{_joined(each.returns)} alone"
        for each in header.kernels
        if each.left_out
    }


def name_of(kernel: str, part: str | None) -> str:
    """`mine`, or `mine (dx alone)` where it computes a part of its op."""
    return kernel if part is None else f"{kernel} ({part})"


def part_notes(header: RunHeader, ran: Collection[tuple[str, str]]) -> list[str]:
    """A sentence for each of these kernels, by op and name, that computes a part of its op."""
    return [
        f"{each.name} computes {_joined(each.returns)} alone; "
        f"{_joined(each.left_out)} {'is' if len(each.left_out) == 1 else 'are'}n't judged"
        for each in header.kernels
        if each.left_out and (each.op, each.name) in ran
    ]


def _joined(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
