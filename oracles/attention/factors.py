"""The factors of attention's cases. Sizes are small, so that an interpreter runs what is drawn."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_workbench.oracles.attention.geometry import ARGUMENTS, DELTA, FORWARD
from kernel_workbench.oracles.attention.layouts import BIAS_STRIDES, OFFSETS, STRIDES, moves
from kernel_workbench.oracles.attention.values import DISTRIBUTIONS
from kernel_workbench.oracles.cases import DTYPES, factors
from kernel_workbench.oracles.op import Case, Factor, Layout, Part

_BIAS = Part(options=frozenset({"bias"}))
_SINK = Part(options=frozenset({"sink"}))
_CAUSAL = Part(options=frozenset({"causal"}))
_TILE = 64


def _sizes(*names: str, of: tuple[tuple[int, ...], ...]) -> tuple[Part, ...]:
    return tuple(Part(sizes=dict(zip(names, sizes, strict=True))) for sizes in of)


def _lengths() -> Factor:
    def level(case: Case) -> str:
        s_q, s_kv = case.size("s_q"), case.size("s_kv")
        if not s_q or not s_kv:
            return "none"
        if s_q <= 8 < s_kv:
            return "few queries"
        if s_q == s_kv:
            return "equal, not in tiles" if s_q % _TILE else "equal, whole tiles"
        if s_q % _TILE == 1 or s_kv % _TILE == 1:
            return "one past a tile"
        if s_q % _TILE == 0 or s_kv % _TILE == 0:
            return "a whole tile of either"
        if max(s_q, s_kv) > 2 * _TILE:
            return "more queries, many" if s_q > s_kv else "more keys, many"
        return "more queries" if s_q > s_kv else "more keys"

    def parts(*of: tuple[int, int]) -> tuple[Part, ...]:
        return _sizes("s_q", "s_kv", of=of)

    return Factor(
        "lengths",
        {
            "more keys": parts((37, 41), (19, 70), (33, 47)),
            "more queries": parts((41, 37), (70, 19), (47, 34)),
            "equal, not in tiles": parts((37, 37), (70, 70), (33, 33), (96, 96)),
            "equal, whole tiles": parts((64, 64), (128, 128)),
            "one past a tile": parts((65, 37), (35, 65), (65, 129), (129, 34)),
            "a whole tile of either": parts((64, 35), (37, 64), (128, 70), (50, 128)),
            "few queries": parts((1, 37), (3, 70), (7, 130), (2, 65)),
            "more keys, many": parts((37, 150), (19, 200)),
            "more queries, many": parts((150, 37), (135, 19)),
            "none": parts((5, 0), (0, 7)),
        },
        level,
    )


def _heads(*, grouped: bool) -> Factor:
    def level(case: Case) -> str:
        h_q = case.size("h_q")
        h_kv = dict(case.sizes).get("h_kv", h_q)
        if h_q > 8:
            return "over 8, grouped" if h_q != h_kv else "over 8"
        if h_q != h_kv:
            return "grouped" if h_kv > 1 else "one key head"
        return "several" if h_q > 1 else "one"

    levels = {
        "several": _sizes("h_q", "h_kv", of=((2, 2), (3, 3))),
        "one": _sizes("h_q", "h_kv", of=((1, 1),)),
        "grouped": _sizes("h_q", "h_kv", of=((4, 2), (6, 3), (6, 2))),
        "one key head": _sizes("h_q", "h_kv", of=((3, 1), (4, 1), (8, 1))),
        "over 8": _sizes("h_q", "h_kv", of=((9, 9),)),
        "over 8, grouped": _sizes("h_q", "h_kv", of=((10, 5), (12, 3), (16, 1))),
    }
    kept = (
        levels
        if grouped
        else {level_name: levels[level_name] for level_name in ("several", "one", "over 8")}
    )
    return Factor("heads", kept, level)


def _batches() -> Factor:
    levels = {
        "1": _sizes("b", of=((1,),)),
        "2 to 4": _sizes("b", of=((2,), (3,))),
        "over 4": _sizes("b", of=((5,), (6,))),
    }

    def level(case: Case) -> str:
        b = case.size("b")
        return "none" if not b else "1" if b == 1 else "2 to 4" if b <= 4 else "over 4"

    return Factor("batches", levels, level)


def _head_size(*, two: bool) -> Factor:
    """Return the factor of d, and of d_v where an op has both."""

    def level(case: Case) -> str:
        d_v = case.size("d_v")
        d = dict(case.sizes).get("d", d_v)
        if d != d_v:
            return "d_v smaller" if d_v < d else "d_v larger"
        if d in (64, 128, 256):
            return str(d)
        if d > 256:
            return "over 256"
        if d % 8:
            return "no multiple of 8"
        return "a multiple of 8" if d < 64 else "a multiple of 8 past 64"

    alike = {
        "64": (64,),
        "128": (128,),
        "256": (256,),
        "a multiple of 8": (8, 16, 32, 40),
        "a multiple of 8 past 64": (80, 96, 192),
        "no multiple of 8": (3, 59, 111),
        "over 256": (257, 320),
    }
    names = ("d", "d_v") if two else ("d_v",)
    levels = {
        name: _sizes(*names, of=tuple((size,) * len(names) for size in of))
        for name, of in alike.items()
    }
    if two:
        levels["d_v smaller"] = _sizes(*names, of=((64, 24), (96, 64), (192, 128)))
        levels["d_v larger"] = _sizes(*names, of=((40, 59), (64, 80), (16, 64)))
    return Factor("head size", levels, level)


def _window() -> Factor:
    def level(case: Case) -> str:
        sizes = dict(case.sizes)
        sides = [side for side in ("left", "right") if f"window_{side}" in sizes]
        return " and ".join(sides) if sides else "no window"

    return Factor(
        "window",
        {
            "no window": (Part(),),
            "left": _sizes("window_left", of=((7,), (17,), (0,), (200,))),
            "right": _sizes("window_right", of=((3,), (20,))),
            "left and right": _sizes("window_left", "window_right", of=((5, 3), (33, 15), (0, 0))),
        },
        level,
    )


def _bias() -> Factor:
    over = [f"bias_over_{axis}" for axis in ("batch", "heads", "queries")]
    levels: dict[str, tuple[Part, ...]] = {"no bias": (Part(),), "bias": (_BIAS,)}
    levels |= {word: (Part(options=frozenset({"bias", word})),) for word in over}

    def level(case: Case) -> str:
        present = [word for word in over if word in case.options]
        if len(present) > 1:
            return "bias over several"
        return present[0] if present else "bias" if "bias" in case.options else "no bias"

    levels["bias over several"] = (
        Part(options=frozenset({"bias", *over[:2]})),
        Part(options=frozenset({"bias", *over})),
    )
    return Factor("bias", levels, level)


_NEEDS = {
    "near_overflow": Part(dtypes=(DTYPES[1], DTYPES[1])),
    "nan_masked": _CAUSAL,
    **dict.fromkeys(("sink_large", "nan_sink", "minus_inf_sink"), _SINK),
    "nan_slopes": Part(options=frozenset({"alibi"})),
    **dict.fromkeys(
        ("nan_bias", "bias_large", "bias_inf_first", "bias_finfo_min", "bias_inf_row"), _BIAS
    ),
}
_MAGNITUDES = frozenset(
    {"near_flat", "one_hot", "logits1e4", "near_overflow", "subnormals", "qk_subnormals"}
    | {"bias_large", "sink_large", "large_do"}
)
_OPTIONS = ("causal", "alibi", "softcap", "sink", "dropout", "varlen", "scale")
_ALIKE = frozenset({"constant", "negative_zero"})
# By a tensor that an op has to have: q where scores are changed.
_CHANGED = {
    **dict.fromkeys(("nan_q", "inf_q", "near_flat", "one_hot", "logits1e4", "qk_subnormals"), "q"),
    **dict.fromkeys(("nan_sink", "minus_inf_sink", "sink_large", "nan_slopes"), "q"),
    **dict.fromkeys(("nan_k", "inf_k", "k_plus8", "nan_masked"), "k"),
    **dict.fromkeys(("nan_v", "inf_v", "v_plus8"), "v"),
    **dict.fromkeys(("nan_do", "inf_do", "large_do"), "do"),
    "nan_out": "out",
}


def _all_of(words: str) -> Part:
    return Part(options=frozenset(words.split()))


_GROUPED = _sizes("h_q", "h_kv", of=((4, 2), (3, 1)))
# Kernels may fail where three of these meet, and not where two of them do.
TOGETHER = (
    ((_all_of("softcap"),), (_all_of("alibi"),), (_all_of("causal bottom_right"),)),
    (
        (_all_of("dropout"),),
        _GROUPED,
        (_BIAS, *(_all_of(f"bias bias_over_{axis}") for axis in ("batch", "heads", "queries"))),
    ),
    (
        tuple(
            _all_of(f"bias {over}")
            for over in (
                "bias_over_batch",
                "bias_over_queries",
                "bias_over_batch bias_over_queries",
            )
        ),
        (_SINK,),
        _sizes("b", of=((3,),)),
    ),
    (
        (_all_of("dropout"),),
        (
            *_sizes("window_left", of=((7,),)),
            *_sizes("window_right", of=((3,),)),
            *_sizes("window_left", "window_right", of=((5, 3),)),
        ),
        _GROUPED,
    ),
)


def layouts_of(op: str) -> dict[str, Layout]:
    """Return the layouts of the op's tensors by name, without far strides."""
    tensors = ARGUMENTS[op] if op == DELTA else (*ARGUMENTS[op], "bias")
    return {
        offset.name: offset
        for offset in (*OFFSETS, *STRIDES, *BIAS_STRIDES)
        if moves(offset, tensors)
    }


def distributions_of(op: str, own: set[str]) -> tuple[str, ...]:
    """Return the distributions that change a tensor of the op, without those in `own`."""
    tensors = set(ARGUMENTS[op]) if op != "attention_backward" else set(ARGUMENTS[op]) - {"out"}
    of_delta = {name for name in DISTRIBUTIONS if "bias" in name}
    return tuple(
        distribution
        for distribution in DISTRIBUTIONS
        if distribution not in own
        and _CHANGED.get(distribution, "do" if op != FORWARD else "q") in tensors
        and not (op == DELTA and distribution in of_delta)
    )


def _kinds_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the distributions by their kind, as `factors.distributions` has it."""
    result: dict[str, list[str]] = {kind: [] for kind in ("ordinary", "magnitudes", "alike")}
    for name in names:
        is_finite = not name.startswith(("nan", "inf", "minus_inf", "bias_inf", "bias_finfo"))
        kind = "magnitudes" if name in _MAGNITUDES else "alike" if name in _ALIKE else "ordinary"
        result.setdefault(kind if is_finite else factors.NOT_FINITE, []).append(name)
    return result


def factors_of(op: str, own: set[str]) -> tuple[Factor, ...]:
    """The op's factors; own: the distributions with cases of their own."""
    values = factors.distributions(
        _kinds_of(distributions_of(op, own)), _NEEDS, ("dtype", "window", "bias", *_OPTIONS)
    )
    placed = factors.layouts(layouts_of(op), "dk", {"bias": _BIAS})
    kinds = factors.dtypes((dtype, dtype) for dtype in DTYPES)
    if op == DELTA:
        rows = Factor(
            "rows",
            {
                "several": _sizes("s_q", of=((37,), (5,), (70,))),
                "one": _sizes("s_q", of=((1,),)),
                "many": _sizes("s_q", of=((129,), (200,))),
                "none": _sizes("s_q", of=((0,),)),
            },
            lambda case: _rows(case.size("s_q")),
        )
        return (
            kinds,
            placed,
            *values,
            rows,
            _heads(grouped=False),
            _batches(),
            _head_size(two=False),
        )
    return (
        kinds,
        placed,
        *values,
        _lengths(),
        _heads(grouped=True),
        _batches(),
        _head_size(two=True),
        _window(),
        factors.option("bottom_right", "causal", "alibi"),
        _bias(),
        *map(factors.option, _OPTIONS),
    )


def _rows(s_q: int) -> str:
    return "none" if not s_q else "one" if s_q == 1 else "several" if s_q <= 2 * _TILE else "many"
