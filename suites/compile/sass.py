"""What machine code is made of, read from a disassembler's text.

Widths of accesses are bytes a thread, from an instruction's suffix: `LDG.E.128` loads 16 bytes,
`LDG.E.U16` 2, one without a suffix 4. `LDGSTS` is a load that goes to shared memory. A matrix
instruction's work is in its name where its shape is: `HMMA.16816` multiplies 16 x 16 by 16 x 8
for a warp, `HGMMA.64x128x16` 64 x 16 by 16 x 128 for four; of Blackwell's `UTCHMMA` it isn't.

The busy loop is the innermost one (from a backward branch's target to the branch) with the most
matrix work, or else with the most bytes loaded. Code that a branch inside may jump over isn't
counted, so what is counted is the least that a trip issues.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernel_workbench.reports.record import CodeMix, LoopMix

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_PLACE = re.compile(r'//## File "([^"]+)", line (\d+)')
_ADDRESS = re.compile(r"0x([0-9a-f]+)$")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TO_LABEL = re.compile(r"`\((\.L_x_\d+)\)\s*$")
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
_LOADS = {"LDG", "LD", "LDGSTS"}
_STORES = {"STG", "ST"}
_ATOMICS = {"RED", "REDG", "ATOM", "ATOMG"}
_LOCAL = {"LDL", "STL"}
_MATRIX = re.compile(r"[HIDBQO]MMA|[HIQB]GMMA|UTC\w*MMA")
_BULK = re.compile(r"UBLK(CP|RED|PF)|UTMA(LDG|STG|REDG|PF)")
_WARP_SHAPES = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "1684": 16 * 8 * 4, "884": 8 * 8 * 4}
_GROUP_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")
_LANES = 32


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: where it is, what it is called and what it is given.

    place: the source's file and line, where the text tells them.
    """

    address: int
    predicate: str
    opcode: str
    operands: str
    place: str = ""

    @property
    def root(self) -> str:
        """`LDG` of `LDG.E.128`."""
        return self.opcode.partition(".")[0]

    @property
    def width(self) -> int:
        """Bytes a thread of an access."""
        return next((_WIDTHS[part] for part in self.opcode.split(".") if part in _WIDTHS), 4)

    def __str__(self) -> str:
        text = " ".join(part for part in (self.predicate, self.opcode, self.operands) if part)
        return f"/*{self.address:04x}*/ {text}" + (f"  {self.place}" if self.place else "")


def parsed(text: str) -> Iterator[Instruction]:
    """The instructions of a disassembly, padding after the last one that can run left out."""
    place = ""
    labels: dict[str, int] = {}
    pending: list[str] = []
    found: list[Instruction] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            pending.append(label[1])
            continue
        if told := _PLACE.search(line):
            place = f"{told[1]}:{told[2]}"
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        address = int(match[1], 16)
        labels.update(dict.fromkeys(pending, address))
        pending.clear()
        operands = " ".join(match[4].split())
        found.append(Instruction(address, match[2] or "", match[3], operands, place))
    for each in found:
        if each.root != "NOP":
            yield _resolved(each, labels)


def _resolved(each: Instruction, labels: dict[str, int]) -> Instruction:
    """A branch to a label as one to its address."""
    target = _TO_LABEL.search(each.operands)
    if target is None or target[1] not in labels:
        return each
    operands = _TO_LABEL.sub(f"0x{labels[target[1]]:x}", each.operands)
    return Instruction(each.address, each.predicate, each.opcode, operands, each.place)


def mix_of(code: Sequence[Instruction]) -> CodeMix:
    """What the instructions of one kernel are."""
    return CodeMix(
        instructions=len(code),
        loads=_by_width(code, _LOADS),
        stores=_by_width(code, _STORES),
        atomics=_by_opcode(each for each in code if each.root in _ATOMICS),
        local=_by_opcode(each for each in code if each.root in _LOCAL),
        matrix=_by_opcode(each for each in code if _MATRIX.fullmatch(each.root)),
        bulk=_by_opcode(each for each in code if _BULK.fullmatch(each.root)),
        busy_loop=_busy_loop(code),
    )


def _by_width(code: Sequence[Instruction], roots: set[str]) -> dict[int, int]:
    counted = Counter(each.width for each in code if each.root in roots)
    return dict(sorted(counted.items(), reverse=True))


def _by_opcode(code: Iterable[Instruction]) -> dict[str, int]:
    return dict(Counter(each.opcode for each in code).most_common())


def matrix_flops(opcode: str) -> int | None:
    """Flops of one matrix instruction of one warp; None where its name doesn't tell."""
    _, *parts = opcode.split(".")
    if group := next(filter(None, map(_GROUP_SHAPE.fullmatch, parts)), None):
        m, n, k = map(int, group.groups())
        return 2 * m * n * k // 4  # four warps issue it together
    shape = next((_WARP_SHAPES[part] for part in parts if part in _WARP_SHAPES), None)
    return None if shape is None else 2 * shape


def _target(each: Instruction) -> int | None:
    if each.root not in ("BRA", "JMP"):
        return None
    match = _ADDRESS.search(each.operands)
    return None if match is None else int(match[1], 16)


def _busy_loop(code: Sequence[Instruction]) -> LoopMix | None:
    spans = [
        (target, each.address)
        for each in code
        if (target := _target(each)) is not None and target < each.address
    ]
    innermost = [
        span
        for span in spans
        if not any(other != span and span[0] <= other[0] and other[1] <= span[1] for other in spans)
    ]
    loops = [_loop(code, *span) for span in innermost]
    busy = [each for each in loops if each.matrix or each.load_bytes]
    return max(busy, key=_busyness, default=None)


def _busyness(loop: LoopMix) -> tuple[int, int, int]:
    return loop.matrix_flops or 0, loop.matrix, loop.load_bytes


def _loop(code: Sequence[Instruction], first: int, last: int) -> LoopMix:
    body = [each for each in code if first <= each.address <= last]
    skipped = [
        (each.address, target)
        for each in body
        if (target := _target(each)) is not None and each.address < target <= last
    ]
    run = [each for each in body if not any(start < each.address < end for start, end in skipped)]
    matrix = [each.opcode for each in run if _MATRIX.fullmatch(each.root)]
    flops = [matrix_flops(each) for each in matrix]
    known = [each for each in flops if each is not None]
    return LoopMix(
        instructions=len(run),
        matrix=len(matrix),
        matrix_flops=sum(known) if len(known) == len(flops) else None,
        load_bytes=_LANES * sum(each.width for each in run if each.root in _LOADS),
        special=sum(each.root == "MUFU" for each in run),
    )


def code_sections(cubin: bytes) -> bytes:
    """The machine code of a cubin, which is an ELF file of 64 bits: its `.text` sections, in order.

    Raises ValueError where it isn't one.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("the cubin is no ELF file of 64 bits")
    names_at, sections = _sections(cubin)
    code = b""
    for name_at, offset, size in sections:
        name = cubin[names_at + name_at : cubin.index(b"\0", names_at + name_at)]
        if name.startswith(b".text."):
            code += cubin[offset : offset + size]
    if not code:
        raise ValueError("the cubin has no .text section")
    return code


def _sections(cubin: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    """Where section names are, and of each section its name's place there, offset and size."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(cubin[at : at + size], "little")

    table, entry, count, names = number(0x28, 8), number(0x3A, 2), number(0x3C, 2), number(0x3E, 2)
    headers = [table + index * entry for index in range(count)]
    sections = [(number(at, 4), number(at + 0x18, 8), number(at + 0x20, 8)) for at in headers]
    return sections[names][1], sections
