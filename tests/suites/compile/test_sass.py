"""Facts read from machine code: widths, matrix work, loops, the code in a cubin; its assembler."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from triton.backends.nvidia.compiler import get_ptxas

from kernel_workbench.suites.compile.compiler import tool_paths, tool_versions
from kernel_workbench.suites.compile.sass import code_sections, matrix_flops, mix_of, parsed

# As nvdisasm prints raw code for sm 90, with branches to addresses.
RAW = """
        .headerflags    @"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA 0x00c0 ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/              @!P1 BRA 0x0060 ;
        /*0040*/                   LDG.E.U16 R8, desc[UR4][R2.64+0x2] ;
        /*0050*/                   STL [R1+0x4], R8 ;
        /*0060*/                   LDGSTS.E.BYPASS.128 [R9], desc[UR4][R2.64], P0 ;
        /*0070*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0080*/                   MUFU.EX2 R5, R5 ;
        /*0090*/                   HFMA2.MMA R0, -RZ, RZ, 0, 0 ;
        /*00a0*/                   LDL.LU R8, [R1+0x4] ;
        /*00b0*/               @P1 BRA 0x0020 ;
        /*00c0*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*00d0*/                   EXIT ;
        /*00e0*/                   BRA 0xe0;
        /*00f0*/                   NOP;
"""

# As nvdisasm -g prints a cubin, with labels and lines of the source.
LABELLED = """
.text._rows:
	//## File "/x/kernels/rows.py", line 31
        /*0000*/                   S2R R4, SR_TID.X ;
.L_x_1:
	//## File "/x/kernels/rows.py", line 35
        /*0010*/                   LDG.E.U8 R4, [R2] ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/                   EXIT ;
"""


def test_widths_come_from_suffixes() -> None:
    """128 bits are 16 bytes, U16 is 2, none is 4; a load to shared memory is a load."""
    mix = mix_of(list(parsed(RAW)))
    assert mix.loads == {16: 2, 2: 1}
    assert mix.stores == {8: 1}
    assert mix.local == {"STL": 1, "LDL.LU": 1}


def test_matrix_instructions_arent_fused_multiplications() -> None:
    """`HFMA2.MMA` is a fused multiplication on another pipe, and no matrix instruction."""
    assert mix_of(list(parsed(RAW))).matrix == {"HGMMA.64x128x16.F32.BF16": 1}


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("HMMA.16816.F32.BF16", 4096),
        ("HMMA.1688.F32.TF32", 2048),
        ("HGMMA.64x128x16.F32.BF16", 65_536),
        ("UTCHMMA", None),
    ],
)
def test_matrix_work_is_in_the_name(opcode: str, flops: int | None) -> None:
    """2 m n k for a warp; four warps issue an HGMMA together; Blackwell's names don't tell."""
    assert matrix_flops(opcode) == flops


def test_busy_loop_counts_what_every_trip_issues() -> None:
    """From the backward branch's target to it, without what a branch inside may jump over."""
    loop = mix_of(list(parsed(RAW))).busy_loop
    assert loop is not None
    assert loop.instructions == 8
    assert (loop.matrix, loop.matrix_flops, loop.special) == (1, 65_536, 1)
    assert loop.load_bytes == 32 * (16 + 16)


def test_lines_of_the_source_are_read() -> None:
    """An instruction knows the file and line above it; a label is no instruction."""
    places = [each.place for each in parsed(LABELLED)]
    assert places == ["/x/kernels/rows.py:31", *["/x/kernels/rows.py:35"] * 3]


def test_text_that_is_no_code_holds_no_instruction() -> None:
    """A tool's complaint, or nothing at all, is read as no code rather than as wrong code."""
    for text in ("", "nvdisasm fatal : Cannot open object file", "/* 12 */ hello"):
        assert list(parsed(text)) == []
    assert mix_of([]).busy_loop is None


def _elf(sections: dict[str, bytes]) -> bytes:
    """An ELF file of 64 bits with these sections, and one of their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    bodies = [*sections.values(), names]
    offset, places = 64, []
    for body in bodies:
        places.append((offset, len(body)))
        offset += len(body)
    header = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<Q", offset)
    header = header.ljust(58, b"\0") + struct.pack("<HHH", 64, len(bodies), len(bodies) - 1)
    tables = b""
    for name, (at, size) in zip([*sections, ".shstrtab"], places, strict=True):
        head = struct.pack("<IIQQQQ", names.index(name.encode() + b"\0"), 1, 0, 0, at, size)
        tables += head.ljust(64, b"\0")
    return header + b"".join(bodies) + tables


def test_code_of_a_cubin_is_its_text_sections_in_order() -> None:
    """The kernel's code and that of functions it calls, and nothing else of the file."""
    cubin = _elf({".text.rows": b"A" * 32, ".nv.info": b"no code", ".text.called": b"B" * 16})
    assert code_sections(cubin) == b"A" * 32 + b"B" * 16


def test_what_is_no_cubin_is_refused() -> None:
    """A file of another kind, or without code, is told and not read as empty code."""
    with pytest.raises(ValueError, match="no ELF file"):
        code_sections(b"PTX version 8.7")
    with pytest.raises(ValueError, match=r"no \.text section"):
        code_sections(_elf({".nv.info": b"no code"}))


@pytest.mark.parametrize("sm", [80, 90, 100])
def test_assembler_is_the_one_that_triton_takes(sm: int) -> None:
    """Which one serves a generation differs between Triton's versions."""
    path = get_ptxas(sm).path
    assert tool_paths(sm)["ptxas"] == str(path)
    assert Path(path).name in tool_versions(sm)
