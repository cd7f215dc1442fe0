"""Figures that follow from a row of compiled code, and how they are put in few words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.record import Record
    from reports.schema import CodeMix, ResourceRow

KIB = 1024
WHOLE = 16  # bytes of the widest load of a thread before Blackwell's
Variant = tuple[str, str, str, str]  # op, kernel, label, function

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def variant_of(row: ResourceRow) -> Variant:
    """What a row is of, alike on every generation and in every record."""
    return row.op, row.kernel, row.label, row.function


def short_label(label: str, function: str) -> str:
    """`bf16 d128: forward` of `bfloat16 d128 aligned` and `forward`."""
    words = [_SHORT.get(word, word) for word in label.replace("_", " ").split()]
    return f"{' '.join(word for word in words if word != 'aligned')}: {function}"


def variants_in_order(record: Record) -> list[Variant]:
    """The variants of a record: kernel by kernel as its header has them, sizes by their value."""
    places = {(each.op, each.name): place for place, each in enumerate(record.header.kernels)}

    def order(variant: Variant) -> tuple[int, str, str, list[tuple[int, str]], str]:
        op, kernel, label, function = variant
        parts = (part.lstrip("0") for part in re.findall(r"\d+|\D+", label))
        # Of two numbers the one with more digits is larger, however many they are.
        numbers = [(len(part) if part.isdecimal() else 0, part) for part in parts]
        return places.get((op, kernel), len(places)), op, kernel, numbers, function

    return sorted({variant_of(row) for row in record.resources}, key=order)


def share_of_width(histogram: dict[int, int], width: int) -> float:
    """Of the bytes that all accesses name, the share of those of `width` and more; 1 of none."""
    total = sum(each * count for each, count in histogram.items())
    wide = sum(each * count for each, count in histogram.items() if each >= width)
    return wide / total if total else 1.0


def matrix_families(mix: CodeMix) -> tuple[str, ...]:
    """The names of the matrix instructions without their shapes: `HGMMA`, `HMMA`."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in mix.matrix))


def occupancy(row: ResourceRow) -> float | None:
    """The share of the warps of an SM that can be resident; 0 where a block doesn't fit."""
    return None if row.occupancy_warps is None else row.occupancy_warps / row.most_warps


def resources_text(row: ResourceRow) -> str:
    """`255+60 161K 12%`: registers and bytes spilled, shared memory, occupancy."""
    if row.status == "failed":
        return "FAILED"
    registers = "?" if row.registers is None else f"{row.registers}"
    spilled = row.spill_store_bytes
    spilled_text = "+?" if spilled is None else f"+{spilled}" if spilled else ""
    share = occupancy(row)
    shared = "?" if row.shared_bytes is None else f"{row.shared_bytes / KIB:.0f}K"
    if row.blocks_per_sm == 0:
        return f"{registers}{spilled_text} {shared} NO FIT"
    return f"{registers}{spilled_text} {shared} " + ("?" if share is None else f"{share:.0%}")


def code_text(row: ResourceRow) -> str:
    """`16B HGMMA`: the widest loads, their share where it is below 90%, and what is used."""
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
        if share < 0.9:
            words.append(f"{share:.0%}")
    words += matrix_families(mix)
    words += ["bulk"] if mix.bulk else []
    words += ["local"] if mix.local else []
    return " ".join(words) or "-"
