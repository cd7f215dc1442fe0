"""Figures that follow from a row of compiled code, and how they are put in few words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_workbench.reports.record import CodeMix, CompileRow, Record

WHOLE = 16  # bytes of the widest load of a thread before Blackwell's
Variant = tuple[str, str, str, str]  # op, kernel, label, function

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MOSTLY = 0.9  # of the bytes loaded: a smaller share of the widest loads is told


def variant_of(row: CompileRow) -> Variant:
    """Return the op, kernel, label and function of a row, the same in every record."""
    return row.op, row.kernel, row.label, row.function


def short_label(label: str, function: str) -> str:
    """Return `bf16 d128: forward` of `bfloat16 d128 aligned` and `forward`."""
    words = [_SHORT.get(word, word) for word in label.replace("_", " ").split()]
    return f"{' '.join(word for word in words if word != 'aligned')}: {function}"


def in_order(record: Record) -> list[CompileRow]:
    """Return a record's rows in the header's order of kernels, then by size, then by sm."""
    places = {(kernel.op, kernel.name): place for place, kernel in enumerate(record.header.kernels)}

    def order(row: CompileRow) -> tuple[object, ...]:
        parts = (part.lstrip("0") for part in re.findall(r"\d+|\D+", row.label))
        # A number with more digits is larger, however many they are.
        numbers = [(len(part) if part.isdecimal() else 0, part) for part in parts]
        place = places.get((row.op, row.kernel), len(places))
        return place, row.op, row.kernel, numbers, row.function, row.sm

    return sorted(record.compiled, key=order)


def share_of_width(histogram: dict[int, int], width: int) -> float:
    """Return the share of all accessed bytes in accesses of `width` or more; 1 of no access."""
    total = sum(bytes_each * count for bytes_each, count in histogram.items())
    wide = sum(bytes_each * count for bytes_each, count in histogram.items() if bytes_each >= width)
    return wide / total if total else 1.0


def matrix_families(mix: CodeMix) -> tuple[str, ...]:
    """Return the names of the matrix instructions without their shapes: `HGMMA`, `HMMA`."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in mix.matrix))


def occupancy(row: CompileRow) -> float | None:
    """Return the share of the warps of an SM that can be resident; 0 where a block doesn't fit."""
    return None if row.occupancy_warps is None else row.occupancy_warps / row.most_warps


def code_text(row: CompileRow) -> str:
    """Return `16B HGMMA`: the widest loads, their share if below 90 %, and matrix instructions."""
    if row.status == "failed":
        return "FAILED"
    mix = row.mix
    if mix is None:
        return "?"
    words = []
    if mix.loads:
        widest = max(mix.loads)
        words.append(f"{widest}B")
        share = share_of_width(mix.loads, widest)
        if share < _MOSTLY:
            words.append(f"{share:.0%}")
    words += matrix_families(mix)
    words += ["bulk"] if mix.bulk else []
    words += ["local"] if mix.local else []
    return " ".join(words) or "-"


def loads_are_narrow(row: CompileRow) -> bool:
    """True if a kernel whose rows allow the widest loads takes many narrower ones."""
    if row.mix is None or row.alignment_bytes != WHOLE:
        return False
    return share_of_width(row.mix.loads, WHOLE) < _MOSTLY
