"""Exact probes of attention: what they promise of their values, and what they find."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import (
    BACKWARD,
    DELTA,
    FORWARD,
    GRADIENTS,
    key_ranges,
)
from kernel_workbench.oracles.attention.probes import NEEDLES, edges
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.op import Case, Numerics, dtype_name
from tests.builders.by_hand import DTYPES, kernel_of, run_on
from tests.builders.plain_attention import Attention, Given, Part

CPU = torch.device("cpu")
# Heads times batches are as many as the keys beside the edges of tiles of 16 to 64.
SIZES = (4, 5, 5, 70, 67, 64, 64)
PROBES = [
    case
    for name in (FORWARD, BACKWARD, GRADIENTS)
    for case in OPS[name].cases()
    if case.tier == "ci" and case.distribution == NEEDLES
]
DECLARED = (
    Numerics(),
    Numerics(accumulation_roundoff=2.0**-23, tf32_operands=True, casts="factors"),
)


def _needles(
    op: str, dtype: torch.dtype, sizes: tuple[int, ...] = SIZES, options: str = ""
) -> Case:
    """With "window" for an option one of 12 keys to the left, and 4 to the right."""
    window = (12, 4) if options == "window" else None
    wanted = "" if window else options
    return attention_case(
        op, sizes, dtype, "ci", options=wanted, window=window, distribution=NEEDLES
    )


def _tensors(case: Case) -> dict[str, Tensor]:
    made = OPS[case.op].inputs(case, CPU)
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}


def _found(case: Case) -> Tensor:
    """The needle of each query, [b, h_q, s_q], of a dense case."""
    made = {name: each.double() for name, each in _tensors(case).items()}
    keys = made["k"].repeat_interleave(case.size("h_q") // case.size("h_kv"), 2)
    scores = torch.einsum("bihd,bjhd->bhij", made["q"], keys)
    first, last = key_ranges(case, case.size("s_q"), case.size("s_kv"))
    j = torch.arange(case.size("s_kv"))
    allowed = (first[:, None] <= j) & (j <= last[:, None])
    best = scores.masked_fill(~allowed, -math.inf).max(-1)
    assert bool(((best.values == 0) | ~allowed.any(1)).all())
    return best.indices


@pytest.mark.parametrize("case", PROBES, ids=Case.id)
def test_needles_leave_no_rounding_to_their_outputs(case: Case) -> None:
    """The truth is of few bits: lse is 0, out a row of v, and the type holds every gradient."""
    truth = OPS[case.op].oracle(case, OPS[case.op].inputs(case, CPU))
    plain = math.log2(case.size("d")) % 2 == 0  # then scale is a power of two
    for name, exact in truth.items():
        if exact is None:
            continue
        if name == "lse":
            assert bool(((exact == 0) | exact.isneginf()).all())
        elif plain or name in {"out", "dv"}:
            assert torch.equal(exact.to(case.dtype).double(), exact), name
    gradients = {name: each for name, each in truth.items() if each is not None and name[0] == "d"}
    if case.op != FORWARD:
        assert bool(gradients["dv"].any())
        assert bool(gradients["dq"].any()) == (case.op == BACKWARD)


@pytest.mark.parametrize("numerics", DECLARED, ids=["plain", "tensor cores"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_bounds_of_needles_ask_for_equality(dtype: torch.dtype, numerics: Numerics) -> None:
    """0 for out and dv, and in the halves for every element of dq and dk that isn't 0."""
    for op in (FORWARD, BACKWARD, GRADIENTS):
        case = _needles(op, dtype, (1, 2, 2, 19, 23, 64, 64))
        inputs = OPS[op].inputs(case, CPU)
        truth = OPS[op].oracle(case, inputs)
        for name, bound in OPS[op].bound(case, inputs, truth, numerics).items():
            limit, exact = bound.deterministic, truth[name]
            assert exact is not None
            assert bound.probabilistic is None
            if name == "lse":
                assert float(limit.max()) <= 2.0**-4  # q times the scale; a lost key is log 2
            elif name == "out" or dtype != torch.float32 or (name, op) == ("dv", BACKWARD):
                assert not bool(limit[exact != 0].any()), name
            elif not numerics.tf32_operands:
                unit = 2.0**-4 / 8  # of dq: do / 16, times scale; of dk times m at least
                assert float(limit.max()) < (unit * 512 if name == "dk" else unit), name


def test_needles_meet_every_pair_of_tile_edges() -> None:
    """Each query beside an edge of tiles of 16 to 64 finds each key beside one, in some head."""
    found = _found(_needles(FORWARD, torch.float32))
    keys = {
        at
        for tile in (16, 32, 64)
        for start in range(0, 67, tile)
        for at in (start, start + 1, start + tile - 1, start + tile - 2)
        if at < 67
    } | {65, 66}
    for tile, row in itertools.product((16, 32, 64), range(70)):
        if row % tile in {0, tile - 1} or row == 69:
            assert keys <= set(found[:, :, row].flatten().tolist())


def test_needles_of_few_heads_meet_the_edges_of_the_largest_tiles() -> None:
    """Nine heads find the last key and those beside 128, of a query on either side of 128."""
    found = _found(_needles(FORWARD, torch.float32, (3, 3, 3, 131, 133, 64, 64)))
    for row in (0, 127, 128, 130):
        assert {0, 126, 127, 128, 129, 132} <= set(found[:, :, row].flatten().tolist())


def test_causal_needles_lie_on_the_diagonal_too() -> None:
    """The last key that a row may attend to is some row's needle, beside tile edges among them."""
    found = _found(_needles(FORWARD, torch.float32, (1, 4, 2, 70, 70, 64, 64), "causal"))
    on_diagonal = found == torch.arange(70)
    assert all(bool(on_diagonal[:, :, row].any()) for row in (0, 15, 16, 31, 32, 63))


def test_edges_come_by_the_largest_tile_and_once_each() -> None:
    """The first of the list are what few heads cover: the ends, then 256, then 128."""
    assert edges(300, beside=False)[:6] == [299, 0, 255, 256, 127, 128]
    for length in (1, 2, 17, 64, 300):
        listed = edges(length, beside=True)
        assert len(set(listed)) == len(listed) <= length
        assert all(0 <= each < length for each in listed)


def test_needles_without_codes_are_refused() -> None:
    """More keys than a head of that width can tell apart are told in a sentence."""
    with pytest.raises(ValueError, match="40 keys have no codes in 4 columns"):
        _tensors(_needles(FORWARD, torch.float32, (1, 1, 1, 3, 40, 4, 4)))


def test_needles_of_many_queries_stay_exact() -> None:
    """Ninety queries of one key: nine have a gradient, so that dv is an integer of few bits."""
    made = _tensors(_needles(BACKWARD, torch.bfloat16, (1, 1, 1, 90, 1, 8, 8)))
    assert int((made["do"] != 0).all(3).sum()) == 9
    assert int((made["do"] != 0).any(3).sum()) == 9


class _KeyDropped(Attention):
    """One key is attended to by nobody, in the forward alone or the backward alone too."""

    def __init__(self, key: int) -> None:
        self.key = key

    def mask(self, given: Given, m: int, n: int, *, backward: bool) -> Tensor:
        mask = super().mask(given, m, n, backward=backward)
        mask[:, self.key] = False
        return mask


class _PairDropped(Attention):
    """The last query of a tile of 32 doesn't see the first key of another."""

    def mask(self, given: Given, m: int, n: int, *, backward: bool) -> Tensor:
        mask = super().mask(given, m, n, backward=backward)
        mask[31, 32] = False
        return mask


class _TilesSwapped(Attention):
    """The values of the second and the third tile of 16 keys are taken for each other."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        wide = super().read(name, tensor, backward=backward)
        if name != "v":
            return wide
        return torch.cat([wide[:, :16], wide[:, 32:48], wide[:, 16:32], wide[:, 48:]], 1)


class _TileTwice(Attention):
    """The keys from 32 on are added up once more."""

    def tiles(self, n: int) -> Iterator[slice]:
        yield from super().tiles(n)
        yield slice(32, min(64, n))


class _LastRowNotFolded(Attention):
    """dk and dv leave the last query out."""

    def dk(self, part: Part, dx: Tensor) -> Tensor:
        return super().dk(part, torch.cat([dx[..., :-1, :], dx[..., -1:, :] * 0], -2))

    def dv(self, weights: Tensor, do: Tensor) -> Tensor:
        return super().dv(weights[..., :-1, :], do[..., :-1, :])


class _DiagonalShifted(Attention):
    """Causal is taken as j <= i + 1, or j < i."""

    def __init__(self, by: int) -> None:
        self.by = by

    def shift(self, given: Given, m: int, n: int, *, backward: bool) -> int:
        return super().shift(given, m, n, backward=backward) + self.by


class _WindowWider(Attention):
    """A window's left end is one key too far."""

    def mask(self, given: Given, m: int, n: int, *, backward: bool) -> Tensor:
        left, right = given["window"]
        wider = Given(**{**given, "window": (None if left is None else left + 1, right)})
        return super().mask(wider, m, n, backward=backward)


class _KeysOfNext(Attention):
    """A sequence's keys end one too late, with the first of the next one."""

    def sequences(self, given: Given, m: int, n: int) -> Iterator[tuple[int, slice, slice]]:
        for number, rows, keys in super().sequences(given, m, n):
            yield number, rows, slice(keys.start, min(keys.stop + 1, n))


class _ColumnDropped(Attention):
    """Scores, or delta, leave the last column out."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        wide = super().read(name, tensor, backward=backward)
        if name in {"k", "do"}:
            wide = wide.clone()
            wide[..., -1] = 0
        return wide


class _DkOfOtherRows(Attention):
    """dk is stored one key too far."""

    def dk(self, part: Part, dx: Tensor) -> Tensor:
        return super().dk(part, dx).roll(1, -2)


WRONG: dict[str, tuple[str, Attention, str]] = {
    "last key": (FORWARD, _KeyDropped(-1), ""),
    "first key": (FORWARD, _KeyDropped(0), ""),
    "key before a tile": (FORWARD, _KeyDropped(31), ""),
    "last key in the backward": (BACKWARD, _KeyDropped(-1), ""),
    "last key end to end": (GRADIENTS, _KeyDropped(-1), ""),
    "one pair": (FORWARD, _PairDropped(), ""),
    "one pair in the backward": (BACKWARD, _PairDropped(), ""),
    "tiles swapped": (FORWARD, _TilesSwapped(), ""),
    "tiles swapped in the backward": (BACKWARD, _TilesSwapped(), ""),
    "tile twice": (FORWARD, _TileTwice(), ""),
    "last row": (BACKWARD, _LastRowNotFolded(), ""),
    "diagonal too wide": (FORWARD, _DiagonalShifted(1), "causal"),
    "diagonal too wide in the backward": (BACKWARD, _DiagonalShifted(1), "causal"),
    "window too wide": (FORWARD, _WindowWider(), "window"),
    "window too wide in the backward": (BACKWARD, _WindowWider(), "window"),
    "next sequence's key": (FORWARD, _KeysOfNext(), "varlen"),
    "diagonal too narrow": (FORWARD, _DiagonalShifted(-1), "causal"),
    "diagonal too narrow in the backward": (BACKWARD, _DiagonalShifted(-1), "causal"),
    "last column": (BACKWARD, _ColumnDropped(), ""),
    "dk one key too far": (BACKWARD, _DkOfOtherRows(), ""),
}


def _function(op: str, attention: Attention) -> Callable[..., object]:
    functions: dict[str, Callable[..., object]] = {
        FORWARD: attention.forward,
        BACKWARD: attention.backward,
        GRADIENTS: attention.gradients,
    }
    return functions[op]


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_attention_fails_on_needles(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    """One key, row, column, pair or tile too few, too many or in another's place is found."""
    op, attention, options = WRONG[name]
    sizes = {"": (2, 5, 5, 70, 67, 64, 64), "varlen": (6, 2, 2, 66, 67, 64, 64)}.get(
        options, (1, 3, 3, 70, 70, 64, 64)
    )
    case = _needles(op, dtype, sizes, options)
    function = _function(op, attention)
    kernel = kernel_of(function, op=OPS[op], features=OPS[op].options)
    row = run_on(device).try_pair(kernel, case)
    assert (row.status, row.rule) in {
        ("failed", "deterministic bound"),
        ("failed", "non-finite values"),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("op", [FORWARD, BACKWARD, GRADIENTS])
def test_sound_attention_passes_on_needles(
    op: str, dtype: torch.dtype, device: torch.device
) -> None:
    """The attention that the wrong ones are made from has every bit right, whatever its tiles."""
    attention = Attention()
    for tile in (16, 32, 128):
        attention.tile = tile
        function = _function(op, attention)
        kernel = kernel_of(function, op=OPS[op], features=OPS[op].options)
        for options, s_kv in (("", 67), ("causal", 70)):
            case = _needles(op, dtype, (2, 2, 1, 70, s_kv, 64, 64), options)
            row = run_on(device).try_pair(kernel, case)
            assert row.status == "passed", row.reason


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_integers_find_a_column_that_delta_leaves_out(
    dtype: torch.dtype, device: torch.device
) -> None:
    """A sound delta is exact on them; one without its last column fails, at 64 columns and 257."""
    for d_v in (64, 257):
        case = attention_case(DELTA, (2, 3, 3, 37, 5, d_v, d_v), dtype, "ci", distribution=INTEGERS)
        sound = kernel_of(Attention().delta, op=OPS[DELTA])
        wrong = kernel_of(_ColumnDropped().delta, op=OPS[DELTA])
        assert run_on(device).try_pair(sound, case).status == "passed"
        assert run_on(device).try_pair(wrong, case).rule == "deterministic bound"
