"""Variants as data: enumerated, named, sorted, and the first that fits taken."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kernel_workbench.kernels.attention.delta import delta
from kernel_workbench.kernels.attention.problem import AttentionCall, vector_elements
from kernel_workbench.kernels.attention.registration import need_of_call, need_of_case
from kernel_workbench.kernels.attention.tile_model import Pass
from kernel_workbench.kernels.attention.variants import (
    Need,
    NoVariantError,
    Variant,
    all_variants,
    key_passes,
    pick,
)
from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import Case

_PASSES: tuple[Pass, ...] = ("fwd", "dkdv", "dk", "dv", "dq")


def _every() -> list[Variant]:
    return [variant for kind in _PASSES for variant in all_variants(kind)]


def _need(
    dtype: str = "bf16",
    sm: int = 90,
    d: int = 64,
    *,
    aligned: bool = True,
    bias: bool = False,
    dropout: bool = False,
) -> Need:
    return Need(dtype, sm, aligned, d, bias, dropout)


def test_variants_have_names_of_their_own() -> None:
    """A record that names a variant names one."""
    names = [each.name for each in _every()]
    assert len(names) == len(set(names)) > 500


def test_variant_is_named_by_what_it_is() -> None:
    """Pass, dtype, alignment, tile, widest head, where it accumulates, features, sm."""
    assert pick("fwd", _need(d=100)).name == "fwd_bf16_aligned_128x64_d128_rf_sm90"
    wide = pick("fwd", _need(d=304, bias=True, dropout=True))
    assert wide.name == "fwd_bf16_aligned_64x64_d512_gmem_dropout_bias_sm90"


@pytest.mark.parametrize("kind", ["fwd", "dkdv", "dq"])
@pytest.mark.parametrize("sm", [75, 79, 80, 86, 89, 90, 100, 120])
def test_every_need_has_a_variant(kind: Pass, sm: int) -> None:
    """Whatever a domain lets through finds a variant: bf16 and tf32 from sm 80 on."""
    dtypes = ("f16", "f32") if sm < 80 else ("f16", "f32", "bf16", "tf32")
    flags = (False, True)
    for dtype, d, aligned, bias, dropout in product(
        dtypes, (1, 16, 64, 65, 128, 129, 256, 257, 512), flags, flags, flags
    ):
        need = _need(dtype, sm, d, aligned=aligned, bias=bias, dropout=dropout)
        assert pick(kind, need).reject(need) is None


def test_first_that_fits_is_taken() -> None:
    """Aligned before not, the narrowest head that holds, no dropout and no bias unless needed."""
    for need in (_need(d=64), _need(d=65), _need(d=200, bias=True), _need(aligned=False)):
        taken = pick("fwd", need)
        fitting = [each for each in all_variants("fwd") if each.reject(need) is None]
        assert taken.sort_index == min(each.sort_index for each in fitting)
    assert pick("fwd", _need()).aligned
    assert not pick("fwd", _need(aligned=False)).aligned
    assert pick("fwd", _need(d=65)).max_d == 128
    assert not pick("fwd", _need()).dropout
    assert pick("fwd", _need(bias=True)).bias


def test_half_of_sm_80_is_refused_below_it() -> None:
    """bf16 came with sm 80; what there is instead is said."""
    with pytest.raises(NoVariantError, match="serves sm 80 to 85, got sm 75"):
        pick("fwd", _need("bf16", 75))
    with pytest.raises(NoVariantError, match="serves heads of at most 512, got 513"):
        pick("fwd", _need(d=513))


def test_accumulators_of_wide_heads_are_in_memory() -> None:
    """`rf` up to 256, `gmem` past it."""
    assert {each.accumulator for each in _every() if each.max_d <= 256} == {"rf"}
    assert {each.accumulator for each in _every() if each.max_d > 256} == {"gmem"}


@pytest.mark.parametrize(("d", "passes"), [(128, ("dkdv",)), (129, ("dk", "dv")), (257, ("dkdv",))])
def test_wide_halves_make_dk_and_dv_apart(d: int, passes: tuple[Pass, ...]) -> None:
    """Two accumulators of 256 columns don't fit in a program's registers."""
    assert key_passes(_need(d=d)) == passes
    assert key_passes(_need("f32", d=d)) == ("dkdv",)


@pytest.mark.parametrize("op", ["attention_forward", "attention_backward", "attention_gradients"])
def test_case_and_call_need_the_same_variant(op: str) -> None:
    """The report's variant of a case is the one that the call with its inputs takes."""
    for case in (each for each in OPS[op].cases() if each.tier == "ci"):
        if "torch_dropout" in case.options:
            continue
        inputs = OPS[op].inputs(case, torch.device("cpu"))
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        tensors = [inputs[name] for name in ("do", "q", "k", "v", "out") if name in inputs]
        known = {"do", "q", "k", "v", "out", "lse"}
        given = {name: value for name, value in inputs.items() if name not in known}
        problem = AttentionCall.of(q, k, v, Options(**given))  # type: ignore[arg-type]
        need = need_of_call(problem, 90, vector_elements(*tensors), tf32=False)  # type: ignore[arg-type]
        assert need == need_of_case(case, 90, tf32=False), case.id()


def _delta_case(tier: str, name: str) -> Case:
    return next(
        each for each in OPS["attention_delta"].cases() if each.tier == tier and name in each.id()
    )


def test_delta_loads_as_wide_as_its_tensors_allow() -> None:
    """16 bytes where all is aligned, and single elements at an offset of one."""
    kernel = next(each for each in all_kernels() if each.function is delta)
    assert kernel.variant is not None
    assert kernel.variants is not None
    ci = [each for each in OPS["attention_delta"].cases() if each.tier == "ci"]
    taken = {kernel.variant(case, 90) for case in ci}
    assert taken == set(kernel.variants(90))
    assert kernel.variant(_delta_case("ci", "bfloat16-contiguous"), 90) == "delta_bf16_16bytes"


def test_full_tier_covers_every_variant() -> None:
    """Each variant of ours that an sm 90 has is taken by some case."""
    for kernel in all_kernels():
        if kernel.origin != "ours" or kernel.variants is None or kernel.variant is None:
            continue
        taken: set[str] = set()
        for case in kernel.op.cases():
            if kernel.domain.reject(case, 90) is None:
                taken |= set(kernel.variant(case, 90).split())
        assert set(kernel.variants(90)) - taken == set(), kernel.name


@pytest.mark.parametrize("sm", [75, 80, 120])
def test_every_case_that_a_domain_lets_through_has_a_variant(sm: int) -> None:
    """No kernel of ours is given a case on an sm and then finds nothing to run."""
    served = 0
    for kernel in all_kernels():
        if kernel.origin != "ours" or kernel.variant is None:
            continue
        cases = [case for case in kernel.op.cases() if kernel.domain.reject(case, sm) is None]
        served += len(cases)
        assert all(kernel.variant(case, sm) for case in cases)
    assert served > 1000
