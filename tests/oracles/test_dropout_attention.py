"""The dropout mask: Philox's words, what they depend on, and how often an element is kept."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_workbench.oracles.attention.dropout import keep_mask, philox, torch_keep_mask

_WORD = 0xFFFFFFFF
# Random123's known answers for philox4x32 with 10 rounds: counter, key, words.
KNOWN = (
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (_WORD, _WORD, _WORD, _WORD),
        (_WORD, _WORD),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def _philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Philox 4x32-10 in Python's integers, as Salmon et al. (2011) draw it: L and R halves."""
    left, right = [counter[0], counter[2]], [counter[1], counter[3]]
    k = list(key)
    for _ in range(10):
        products = left[0] * 0xD2511F53, left[1] * 0xCD9E8D57
        left = [
            (products[1] // 2**32) ^ right[0] ^ k[0],
            (products[0] // 2**32) ^ right[1] ^ k[1],
        ]
        right = [products[1] % 2**32, products[0] % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return left[0], right[0], left[1], right[1]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    """Random123's vectors, by the oracle and by the integers that it is compared with below."""
    c0, c1, c2, c3 = (torch.tensor(each) for each in counter)
    made = philox(key[0] | key[1] << 32, (c0, c1, c2, c3))
    assert tuple(int(each) for each in made) == words
    assert _philox(key, counter) == words


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 0x123456789ABCDEF])
def test_mask_is_that_of_the_counters(seed: int) -> None:
    """Each element takes word key % 4 of the counter (key // 4, query, batch_head, 0)."""
    p, queries, keys = 0.3, (0, 5, 70000), range(3, 22)
    blocks = torch.tensor([[0, 1], [7, 2**20]])
    got = keep_mask(seed, p, blocks, torch.tensor(queries), keys)
    assert got.shape == (2, 2, 3, 19)
    threshold = round(p * 2**32)
    halves = seed & _WORD, seed >> 32
    for (b, row), (i, query), (j, key) in (
        (block, place, column)
        for block in enumerate(blocks.flatten().tolist())
        for place in enumerate(queries)
        for column in enumerate(keys)
    ):
        word = _philox(halves, (key // 4, query, row, 0))[key % 4]
        assert bool(got.flatten(0, 1)[b, i, j]) == (word >= threshold)


def test_mask_of_a_part_is_the_part_of_the_mask() -> None:
    """Any tile, starting anywhere, draws what the whole does."""
    blocks, queries = torch.arange(6).view(2, 3), torch.arange(23)
    whole = keep_mask(11, 0.4, blocks, queries, range(37))
    for rows in (slice(0, 23), slice(5, 6), slice(16, 23)):
        for first, end in ((0, 37), (1, 2), (3, 36), (4, 8), (7, 7), (36, 37)):
            part = keep_mask(11, 0.4, blocks[1:], queries[rows], range(first, end))
            assert torch.equal(part, whole[1:, :, rows, first:end])


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_rate_is_binomial(p: float) -> None:
    """Kept elements in all, in each row, column and key modulo 4 are as many as chance allows.

    z of each count beyond 6 has a probability of 2e-9; there are 700 of them.
    """
    mask = keep_mask(5, p, torch.arange(4), torch.arange(300), range(400)).double()
    counts = (
        (mask.sum((0, 1)), 1200),
        (mask.sum((0, 2)), 1600),
        (mask.view(4, 300, 100, 4).sum((0, 1, 2)), 120000),
        (mask.sum(), mask.numel()),
    )
    for kept, drawn in counts:
        z = (kept - drawn * (1 - p)) / math.sqrt(drawn * p * (1 - p))
        assert (z.abs() <= 6).all()


def test_neighbours_are_independent() -> None:
    """Elements beside one another, in the next row, head and seed agree half of the time."""
    draw = torch.arange(300)
    mask = keep_mask(5, 0.5, torch.arange(2), draw, range(400))
    pairs = (
        (mask[..., :-1], mask[..., 1:]),
        (mask[..., :-4], mask[..., 4:]),
        (mask[:, :-1], mask[:, 1:]),
        (mask[0], mask[1]),
        (mask, keep_mask(6, 0.5, torch.arange(2), draw, range(400))),
    )
    for one, other in pairs:
        agreed = (one == other).double()
        z = (agreed.sum() - agreed.numel() / 2) / math.sqrt(agreed.numel() / 4)
        assert abs(float(z)) <= 6


def test_nothing_is_dropped_at_a_rate_of_zero() -> None:
    """The threshold is then 0, which no word is below."""
    assert keep_mask(3, 0.0, torch.arange(2), torch.arange(50), range(50)).all()


def test_torch_mask_says_that_it_needs_a_gpu() -> None:
    """It is the CUDA kernel's generator that is asked."""
    with pytest.raises(ValueError, match="on a GPU, not on cpu"):
        torch_keep_mask(1, 0.5, (1, 1, 4, 4), torch.device("cpu"))
