"""Count the instructions of machine code in a disassembler's text.

Widths of accesses are bytes a thread, from an instruction's suffix: `LDG.E.128` loads 16 bytes,
`LDG.E.U16` 2, one without a suffix 4. `LDGSTS` is a load into shared memory. The name of a matrix
instruction gives its shape: `HMMA.16816` multiplies 16 x 16 by 16 x 8 for a warp,
`HGMMA.64x128x16` 64 x 16 by 16 x 128 for four warps; Blackwell's `UTCHMMA` has no shape.

The busy loop is the innermost loop (from a backward branch's target to the branch) with the most
matrix work, or else with the most bytes loaded. Code that a branch may skip doesn't count, so the
count is the least that a trip issues.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernel_workbench.reports.record import CodeMix, LoopMix

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_PLACE = re.compile(r'//## File "([^"]+)", line (\d+)')
_ADDRESS = re.compile(r"0x([0-9a-f]+)$")
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
    """One instruction: its address, its predicate, its opcode and its operands.

    `place` is the source's file and line, for example "k.py:12", or "" if the text has none.
    """

    address: int
    predicate: str
    opcode: str
    operands: str
    place: str = ""

    @property
    def root(self) -> str:
        """The first part of the opcode, for example `LDG` of `LDG.E.128`."""
        return self.opcode.partition(".")[0]

    @property
    def width(self) -> int:
        """The bytes that one thread of an access moves."""
        return next((_WIDTHS[part] for part in self.opcode.split(".") if part in _WIDTHS), 4)

    def __str__(self) -> str:
        text = " ".join(part for part in (self.predicate, self.opcode, self.operands) if part)
        return f"/*{self.address:04x}*/ {text}" + (f"  {self.place}" if self.place else "")


def parsed(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a disassembly, without padding."""
    place = ""
    for line in text.splitlines():
        if place_line := _PLACE.search(line):
            place = f"{place_line[1]}:{place_line[2]}"
        elif (match := _LINE.match(line)) is not None and match[3].partition(".")[0] != "NOP":
            operands = " ".join(match[4].split())
            yield Instruction(int(match[1], 16), match[2] or "", match[3], operands, place)


def mix_of(code: Sequence[Instruction]) -> CodeMix:
    """Return the counts of one kernel's instructions."""
    return CodeMix(
        instructions=len(code),
        loads=_by_width(code, _LOADS),
        stores=_by_width(code, _STORES),
        atomics=_by_opcode(one for one in code if one.root in _ATOMICS),
        local=_by_opcode(one for one in code if one.root in _LOCAL),
        matrix=_by_opcode(one for one in code if _MATRIX.fullmatch(one.root)),
        bulk=_by_opcode(one for one in code if _BULK.fullmatch(one.root)),
        busy_loop=_busy_loop(code),
    )


def _by_width(code: Sequence[Instruction], roots: set[str]) -> dict[int, int]:
    counted = Counter(one.width for one in code if one.root in roots)
    return dict(sorted(counted.items(), reverse=True))


def _by_opcode(code: Iterable[Instruction]) -> dict[str, int]:
    return dict(Counter(one.opcode for one in code).most_common())


def matrix_flops(opcode: str) -> int | None:
    """Return the flops of a matrix instruction of one warp; None if its name has no shape.

    >>> matrix_flops("HMMA.16816.F32.BF16")
    4096
    """
    _, *parts = opcode.split(".")
    if group := next(filter(None, map(_GROUP_SHAPE.fullmatch, parts)), None):
        m, n, k = map(int, group.groups())
        return 2 * m * n * k // 4  # four warps issue it together
    shape = next((_WARP_SHAPES[part] for part in parts if part in _WARP_SHAPES), None)
    return None if shape is None else 2 * shape


def _target(instruction: Instruction) -> int | None:
    if instruction.root not in ("BRA", "JMP"):
        return None
    match = _ADDRESS.search(instruction.operands)
    return None if match is None else int(match[1], 16)


def _busy_loop(code: Sequence[Instruction]) -> LoopMix | None:
    spans = [
        (target, branch.address)
        for branch in code
        if (target := _target(branch)) is not None and target < branch.address
    ]
    innermost = [
        span
        for span in spans
        if not any(other != span and span[0] <= other[0] and other[1] <= span[1] for other in spans)
    ]
    loops = [_loop(code, *span) for span in innermost]
    busy = [loop for loop in loops if loop.matrix or loop.load_bytes]
    return max(busy, key=_busyness, default=None)


def _busyness(loop: LoopMix) -> tuple[int, int, int]:
    return loop.matrix_flops or 0, loop.matrix, loop.load_bytes


def _loop(code: Sequence[Instruction], first: int, last: int) -> LoopMix:
    body = [one for one in code if first <= one.address <= last]
    skipped = [
        (branch.address, target)
        for branch in body
        if (target := _target(branch)) is not None and branch.address < target <= last
    ]
    run = [one for one in body if not any(start < one.address < end for start, end in skipped)]
    matrix = [one.opcode for one in run if _MATRIX.fullmatch(one.root)]
    flops = [matrix_flops(opcode) for opcode in matrix]
    known_flops = [work for work in flops if work is not None]
    return LoopMix(
        instructions=len(run),
        matrix=len(matrix),
        matrix_flops=sum(known_flops) if len(known_flops) == len(flops) else None,
        load_bytes=_LANES * sum(one.width for one in run if one.root in _LOADS),
        special=sum(one.root == "MUFU" for one in run),
    )


def code_sections(cubin: bytes) -> bytes:
    """Return the machine code of a cubin, a 64-bit ELF file: its `.text` sections, in order.

    Raises ValueError if the cubin is no such file.
    """
    code = _contents(cubin, b".text.")
    if not code:
        raise ValueError("the cubin has no .text section")
    return code


def code_hash(cubin: bytes) -> str:
    """Return a hash of a cubin's machine code, its constants and what a launch needs to know.

    Source lines don't count. Raises ValueError if the cubin is no 64-bit ELF file.
    """
    executed = code_sections(cubin) + _contents(cubin, b".nv.constant", b".nv.info")
    return hashlib.sha256(executed).hexdigest()


def _contents(cubin: bytes, *names: bytes) -> bytes:
    """Return the bytes of the sections whose names start with one of these, in order."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("the cubin is no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, of_names = struct.unpack_from("<HHH", cubin, 0x3A)
    # The place of a section's name among the names, the section's offset, and its size.
    headers = [struct.unpack_from("<I20xQQ", cubin, table + entry * at) for at in range(count)]
    contents = b""
    for name_at, offset, size in headers:
        if cubin.startswith(names, headers[of_names][1] + name_at):
            contents += cubin[offset : offset + size]
    return contents
