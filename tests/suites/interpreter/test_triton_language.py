"""Parts of triton.language that attention needs, under the mended and strict interpreter."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def _philox_kernel(counter_ptr, seed, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    c0 = tl.load(counter_ptr + offs)
    a, b, c, d = tl.philox(seed, c0, c0, c0, c0)
    tl.store(out_ptr + offs, a)
    tl.store(out_ptr + BLOCK + offs, b)
    tl.store(out_ptr + 2 * BLOCK + offs, c)
    tl.store(out_ptr + 3 * BLOCK + offs, d)


@triton.jit
def _randint_kernel(offset_ptr, seed, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, tl.load(offset_ptr + offs))
    pairs = tl.join(tl.join(a, b), tl.join(c, d))  # [BLOCK, 2, 2]: a c, b d
    tl.store(out_ptr + tl.arange(0, 4 * BLOCK), tl.reshape(pairs, (4 * BLOCK,)))


@triton.jit
def _high_kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.umulhi(tl.load(a_ptr + offs), tl.load(b_ptr + offs)))


@triton.jit
def _dot_kernel(a_ptr, b_ptr, out_ptr, PRECISION: tl.constexpr, SIZE: tl.constexpr):
    offs = tl.arange(0, SIZE)
    square = offs[:, None] * SIZE + offs[None, :]
    a, b = tl.load(a_ptr + square), tl.load(b_ptr + square)
    product = tl.dot(a, b) if PRECISION is None else tl.dot(a, b, input_precision=PRECISION)
    tl.store(out_ptr + square, product)


@triton.jit
def _turned_kernel(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(out_ptr + columns[:, None] * ROWS + rows[None, :], tl.trans(x))


@triton.jit
def _adding_kernel(out_ptr, stride, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    values = rows[:, None] * 10.0 + columns[None, :]
    mask = rows[:, None] * COLUMNS + columns[None, :] < size
    tl.atomic_add(out_ptr + rows[:, None] * stride + columns[None, :], values, mask=mask)


@triton.jit
def _described_kernel(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    out = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    start = tl.program_id(0) * ROWS
    for first in tl.range(0, columns, COLUMNS):
        out.store([start, first], x.load([start, first]) * 2)


@triton.jit
def _wrapping_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, x * x + x)


@pytest.mark.parametrize(
    ("seed", "counter", "words"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, 2**32 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_published_words(seed: int, counter: int, words: tuple[int, ...]) -> None:
    """The known answers of Philox4x32-10 (Random123, kat_vectors), for counters of equal words."""
    counters = torch.tensor([counter, 1], dtype=torch.uint32)
    out = torch.zeros(8, dtype=torch.uint32)
    assert violation_of(lambda: _philox_kernel[(1,)](counters, seed, out, BLOCK=2)) is None
    assert tuple(out[::2].tolist()) == words
    assert not set(out[1::2].tolist()) & set(words)


def _philox(seed: int, counter: int) -> list[int]:
    """Philox4x32-10 of the counter (counter, 0, 0, 0): Salmon et al. 2011, section 3.3."""
    c, k = [counter, 0, 0, 0], [seed % 2**32, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (second >> 32) ^ c[1] ^ k[0],
            second % 2**32,
            (first >> 32) ^ c[3] ^ k[1],
            first % 2**32,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize("seed", [0, 5, 2**31 + 7, 2**63 + 11])
def test_random_integers_are_philoxs(seed: int) -> None:
    """All four words, of counters on both sides of 2^31; and joining and reshaping them."""
    counters = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 77, 123456789, 3]
    offsets = torch.tensor(counters, dtype=torch.uint32)
    out = torch.zeros(4 * len(counters), dtype=torch.uint32)
    call = lambda: _randint_kernel[(1,)](offsets, seed, out, BLOCK=len(counters))  # noqa: E731
    assert violation_of(call) is None
    expected = [[w[0], w[2], w[1], w[3]] for w in (_philox(seed, each) for each in counters)]
    assert out.view(-1, 4).tolist() == expected


def test_high_word_of_a_product_is_exact() -> None:
    """Philox is made of high words of products, in 32 and in 64 bits."""
    pairs = [(2**32 - 1, 2**32 - 1), (0xD2511F53, 0xCD9E8D57), (2**31, 2), (65535, 65537)]
    a, b = (torch.tensor(each, dtype=torch.uint32) for each in zip(*pairs, strict=True))
    out = torch.zeros(4, dtype=torch.uint32)
    assert violation_of(lambda: _high_kernel[(1,)](a, b, out, BLOCK=4)) is None
    assert out.tolist() == [x * y >> 32 for x, y in pairs]


def _product(a: Tensor, b: Tensor, precision: str | None) -> Tensor:
    out = torch.empty(a.shape)
    call = lambda: _dot_kernel[(1,)](a, b, out, PRECISION=precision, SIZE=a.shape[0])  # noqa: E731
    assert violation_of(call) is None
    return out


def _cut(x: Tensor) -> Tensor:
    """fp32 numbers without the 13 bits of fraction that tf32 lacks."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_dot_has_the_bits_that_its_precision_says() -> None:
    """tf32 is the default and truncates its operands; ieee doesn't; tf32x3 is nearly as exact."""
    torch.manual_seed(3)
    a, b = torch.randn(2, 32, 32)
    exact, cut = a.double() @ b.double(), _cut(a).double() @ _cut(b).double()
    # 32 products in fp32: gamma_33 with |a||b|, three times for tf32x3.
    room = 33 * 2.0**-24 * (a.double().abs() @ b.double().abs())
    for precision, truth in ((None, cut), ("tf32", cut), ("ieee", exact)):
        assert ((_product(a, b, precision).double() - truth).abs() <= room).all(), precision
    assert not ((cut - exact).abs() <= room).all()
    split = _product(a, b, "tf32x3").double()
    # The part of a's fraction past two times 10 bits: 2^-22, and the product of the low parts.
    assert ((split - exact).abs() <= 3 * room + 2.0**-19 * (a.abs() @ b.abs())).all()
    assert not ((cut - exact).abs() <= 3 * room + 2.0**-19 * (a.abs() @ b.abs())).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_dot_of_halves_sums_in_fp32(dtype: torch.dtype) -> None:
    """4096 and 31 ones come to 4127, which neither half can count up to one by one."""
    a = torch.ones(32, 32, dtype=dtype)
    a[:, 0] = 4096
    for precision in (None, "tf32", "ieee"):
        product = _product(a, torch.ones_like(a), precision)
        assert product.unique().tolist() == [4127.0]


def test_transposed_tile_is_stored_transposed() -> None:
    """And each of its elements is checked where it is stored."""
    x, out = torch.randn(8, 16), torch.empty(16, 8)
    call = lambda into: _turned_kernel[(1,)](x, into, ROWS=8, COLUMNS=16)  # noqa: E731
    assert violation_of(lambda: call(out)) is None
    assert torch.equal(out, x.mT)
    found = violation_of(lambda: call(out[:15]))
    assert found is not None
    assert "writes up to 8 elements past the end of out_ptr" in found


def test_tile_is_added_atomically_where_its_mask_says() -> None:
    """By five programs, to every element in a row-strided matrix; none past its end."""
    out = torch.zeros(4, 9)[:, :8]
    call = lambda into, size: _adding_kernel[(5,)](into, 9, size, ROWS=4, COLUMNS=8)  # noqa: E731
    assert violation_of(lambda: call(out, 27)) is None
    tile = torch.arange(4.0)[:, None] * 10 + torch.arange(8.0)
    tile.view(-1)[27:] = 0
    assert torch.equal(out, 5 * tile)
    found = violation_of(lambda: call(out[:3], 32))
    assert found is not None
    assert "_adding_kernel updates up to 9 elements past the end of out_ptr" in found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_descriptors_load_and_store_within_their_tensors(dtype: torch.dtype) -> None:
    """The part of a block that is past the described shape reads 0 and isn't written."""
    x, out = torch.randn(13, 40).to(dtype), torch.zeros(14, 40, dtype=dtype)
    call = lambda rows: _described_kernel[(2,)](x, out, rows, 40, ROWS=8, COLUMNS=16)  # noqa: E731
    assert violation_of(lambda: call(13)) is None
    assert torch.equal(out[:13], x * 2)
    assert not out[13].any()


def test_descriptor_of_more_than_its_tensor_is_found() -> None:
    """It says that there is a row which the argument doesn't have."""
    x, out = torch.randn(14, 40)[:13], torch.empty(14, 40)
    call = lambda: _described_kernel[(2,)](x, out, 14, 40, ROWS=8, COLUMNS=16)  # noqa: E731
    found = violation_of(call)
    assert found is not None
    assert "reads up to 16 elements past the end of x_ptr" in found


def test_integers_wrap_as_on_a_gpu() -> None:
    """Without a word, and with the low 32 bits of the result."""
    x = torch.tensor([2**20, -(2**31), 2**31 - 1, 46341], dtype=torch.int32)
    out = torch.empty_like(x)
    assert violation_of(lambda: _wrapping_kernel[(1,)](x, out, BLOCK=4)) is None
    wide = x.long() * x.long() + x.long()
    assert torch.equal(out, ((wide + 2**31) % 2**32 - 2**31).int())


def test_language_is_as_it_was_after_a_launch() -> None:
    """Each launch takes back what it puts in the place of tl.load and the rest."""
    before = tl.load, tl.sum, tl.tensor.__add__, tl.range, tl.core.reduce
    x, out = torch.randn(8, 16), torch.empty(16, 8)
    for _ in range(3):
        _turned_kernel[(1,)](x, out, ROWS=8, COLUMNS=16)
        assert (tl.load, tl.sum, tl.tensor.__add__, tl.range, tl.core.reduce) == before
    assert tl.core.is_builtin(tl.load)
