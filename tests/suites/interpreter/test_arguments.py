"""A kernel's arguments in the interpreter have the types, and the values, that they have compiled.

Annotations are not postponed here: then each would be a text, and one that is a text would be a
text in quotes, which names no type to Triton either.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.builders.compiled_python import printed_by

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def _tell(PLACE: tl.constexpr, number: tl.int64):
    """The type of what a kernel passes; the annotation of a device function means nothing."""
    tl.static_print(PLACE, number.dtype)


# One argument of each type; a text is Triton's name of a type, and no name of Python's.
@triton.jit
def _annotated_kernel(  # noqa: PLR0913, PLR0917
    a: tl.int64,
    b: tl.uint32,
    c: "i64",  # type: ignore[name-defined]  # noqa: F821
    d: tl.int32,
    e: "tl.int8",
    f: tl.float64,
    g: "fp16",  # type: ignore[name-defined]  # noqa: F821
    h: tl.bfloat16,
    i: int,
    j: float,
    k: "u1",  # type: ignore[name-defined]  # noqa: F821
    m: tl.int16,
    n: tl.uint64 = 1,
):
    _tell(0, a)
    _tell(1, b)
    _tell(2, c)
    _tell(3, d)
    _tell(4, e)
    _tell(5, f)
    _tell(6, g)
    _tell(7, h)
    _tell(8, i)
    _tell(9, j)
    _tell(10, k)
    _tell(11, m)
    _tell(12, n)


@triton.jit(do_not_specialize=["h"])
def _plain_kernel(a, b, c, d, e, f, g, h, several):
    _tell(0, a)
    _tell(1, b)
    _tell(2, c)
    _tell(3, d)
    _tell(4, e)
    _tell(5, f)
    _tell(6, h)
    _tell(7, several[0])
    _tell(8, several[1])
    # A constant gives way to the type of a tensor, and has that of its value alone.
    short, half = tl.full((2,), 1, tl.int8), tl.full((2,), 1.0, tl.float16)
    _tell(9, short + g)
    _tell(10, short + h)
    _tell(11, short + several[2])
    _tell(12, half * e)
    _tell(13, half * several[0])
    kept = g
    _tell(14, kept)
    g += 1
    _tell(15, g)
    tl.static_print(16, several[2])


ANNOTATED: tuple[Any, ...] = (1, 1, 1, 1, 1, 1.0, 1, 1, 1, 1, 5, 1)
ANNOTATED_TYPES = [
    *("int64", "uint32", "int64", "int32", "int8", "fp64", "fp16", "bf16"),
    *("int32", "fp32", "int1", "int16", "uint64"),
]
PLAIN: tuple[Any, ...] = (0, -(2**31), 2**31, 2**63, 1.0, True, 1, 1, (2.5, False, 1))
PLAIN_TYPES = [
    *("int32", "int32", "int64", "uint64", "fp32", "int1", "int32", "fp32", "int1"),
    *("int8", "int32", "int8", "fp32", "fp32", "int32", "int32", "1"),
]


@triton.jit
def _integers_kernel(out_ptr, a: tl.int64, b: tl.uint32, c: tl.int8, d: tl.int1, e):
    tl.store(out_ptr, a + a)
    tl.store(out_ptr + 1, b + b)
    tl.store(out_ptr + 2, c + c)
    tl.store(out_ptr + 3, d)
    tl.store(out_ptr + 4, e)


@triton.jit
def _floats_kernel(out_ptr, a: tl.float64, b: tl.float16, c: tl.bfloat16, d, e: tl.float32 = 0.1):
    tl.store(out_ptr, a)
    tl.store(out_ptr + 1, b)
    tl.store(out_ptr + 2, c)
    tl.store(out_ptr + 3, d)
    tl.store(out_ptr + 4, e)
    tl.store(out_ptr + 5, tl.full((), 3.0, tl.float16) * d)


@triton.jit
def _size_kernel(out_ptr, pair, size: tl.int64, BLOCK: tl.constexpr, more: tl.int64 = 3):
    tl.store(out_ptr + tl.program_id(0) * BLOCK, pair[0] + size + more)


@triton.jit
def _cast_kernel(out_ptr, size):
    tl.store(out_ptr, size.to(tl.int64))


def _types(printed: str) -> list[str]:
    """By place."""
    told = [line.split() for line in printed.splitlines()]
    return [kind for _, kind in sorted((int(place), kind) for place, kind in told)]


def _compiled(cache: Path, *names: str) -> list[str]:
    """Return what is printed where these kernels are compiled for their arguments, with no GPU."""
    program = f"""
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile, make_backend
from triton.runtime.jit import create_function_from_signature
from tests.suites.interpreter import test_arguments as tested
target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
for name in {names}:
    kernel = getattr(tested, f"_{{name.lower()}}_kernel")
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, special, options = bind(*getattr(tested, name))
    options, signature, constants, attributes = kernel._pack_args(
        backend, {{}}, bound, special, options
    )
    source = ASTSource(kernel, signature, constants, attributes)
    compile(source, target=target, options=vars(options))
    print("end")
"""
    return printed_by(program, cache).split("end\n")[:-1]


def test_arguments_have_the_types_that_they_have_when_compiled(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By annotation, else by value; held against what this Triton's launcher and compiler take."""
    _annotated_kernel[(1,)](*ANNOTATED)
    assert _types(capfd.readouterr().out) == ANNOTATED_TYPES
    _plain_kernel[(1,)](*PLAIN)
    assert _types(capfd.readouterr().out) == PLAIN_TYPES
    annotated, plain = _compiled(tmp_path, "ANNOTATED", "PLAIN")
    assert _types(annotated) == ANNOTATED_TYPES
    assert _types(plain) == PLAIN_TYPES


def test_integers_are_computed_in_the_annotated_type() -> None:
    """Past 2^31 where it has 64 bits; cut where it has fewer than the number, by the launcher."""
    out = torch.zeros(5, dtype=torch.int64)
    _integers_kernel[(1,)](out, 2**30, 2**31, 127, d=True, e=1)
    assert out.tolist() == [2**31, 0, -2, 1, 1]
    _integers_kernel[(1,)](out, -(2**40), 2**32 + 3, 2**8 + 1, 2, 2**40)
    assert out.tolist() == [-(2**41), 6, 2, 0, 2**40]
    _integers_kernel[(1,)](out, a=True, b=0, c=-3, d=False, e=False)
    assert out.tolist() == [2, 0, -6, 0, 0]


def test_floats_are_rounded_to_their_type_and_widen_halves() -> None:
    """float32 unless annotated; Python's own has 53 bits, and gives way to a half."""
    out = torch.zeros(6, dtype=torch.float64)
    _floats_kernel[(1,)](out, 0.1, 0.1, 1 - 2.0**-20, 0.1)
    single, half = torch.tensor(0.1).item(), torch.tensor(0.1, dtype=torch.float16).item()
    product = (torch.tensor(0.1) * 3).item()
    assert out.tolist() == [0.1, half, 1 - 2.0**-8, single, single, product]
    _floats_kernel[(1,)](out, 3, 3, 3, 1e39, 3)
    assert out[:5].tolist() == [3, 3, 3, float("inf"), 3]


def test_what_no_launcher_takes_is_refused() -> None:
    """Numbers that 64 bits don't hold, those below 0 of unsigned type, and floats as integers."""
    out = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(OverflowError, match=f"argument a is {2**63}, which int64 doesn't hold"):
        _integers_kernel[(1,)](out, 2**63, 0, 0, 0, 0)
    with pytest.raises(OverflowError, match="argument b is -1, which uint32 doesn't hold"):
        _integers_kernel[(1,)](out, 0, -1, 0, 0, 0)
    with pytest.raises(TypeError, match=r"argument c is 2.5 and annotated int8; give an integer"):
        _integers_kernel[(1,)](out, 0, 0, 2.5, 0, 0)


def test_one_is_a_constant_without_a_cast() -> None:
    """A kernel that casts it doesn't compile either; as an int64 it does."""
    out = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(triton.runtime.errors.InterpreterError, match="no attribute 'to'"):
        _cast_kernel[(1,)](out, 1)
    kept = triton.jit(_cast_kernel.fn, do_not_specialize=["size"])
    kept[(1,)](out, 1)
    assert out.item() == 1


def test_grids_and_hooks_see_what_was_passed() -> None:
    """Python's numbers: a grid with defaults and constants, a hook without defaults."""
    out = torch.zeros(2, dtype=torch.int64)
    by_grid: list[dict[str, Any]] = []
    by_hook: list[tuple[Any, ...]] = []
    kernel = triton.jit(_size_kernel.fn)
    kernel.add_pre_run_hook(lambda *args, **kwargs: by_hook.append((args[1:], kwargs)))

    def grid(meta: dict[str, Any]) -> tuple[int]:
        by_grid.append({name: each for name, each in meta.items() if name != "out_ptr"})
        return (triton.cdiv(meta["size"], meta["BLOCK"]),)

    kernel[grid](out, (1, 2), size=2, BLOCK=1, num_warps=4)
    assert out.tolist() == [6, 6]
    assert [(args, kwargs["size"], "more" in kwargs) for args, kwargs in by_hook] == [
        (((1, 2),), 2, False)
    ]
    assert by_grid == [{"pair": (1, 2), "size": 2, "BLOCK": 1, "more": 3}]
    assert type(by_grid[0]["size"]) is int
