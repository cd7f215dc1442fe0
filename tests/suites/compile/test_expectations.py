"""Expectations are about the rows they name, and are broken exactly where their claim is."""

from __future__ import annotations

import pytest

from kernel_workbench.kernels.expectation import (
    Claim,
    Expectation,
    Fits,
    Loads,
    Spills,
    Stores,
    Unfit,
    Uses,
)
from kernel_workbench.suites.compile.expectations import broken, counting, is_about, offender
from kernel_workbench.suites.compile.sass import parsed
from tests.builders.compiled_records import case, mix, row
from tests.suites.compile.test_sass import LABELLED, RAW

ANY = Spills()


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({}, True),
        ({"kernels": ("flash*",)}, True),
        ({"kernels": ("two_pass*", "split_keys")}, False),
        ({"functions": ("forward",)}, True),
        ({"functions": ("forward_wide",)}, False),
        ({"dtypes": ("bfloat16", "float16")}, True),
        ({"dtypes": ("float32",)}, False),
        ({"aligned": True}, True),
        ({"aligned": False}, False),
        ({"sizes": {"d": (65, 128)}}, True),
        ({"sizes": {"d": (129, 256)}}, False),
        ({"sizes": {"n": (1, 8192)}}, False),  # a size that the case doesn't have
        ({"options": frozenset()}, True),
        ({"sm": (90, 90)}, True),
        ({"sm": (75, 89)}, False),
    ],
)
def test_expectation_is_about_what_its_fields_let_in(
    fields: dict[str, object], *, about: bool
) -> None:
    """Every field is asked, and one that doesn't let a row in suffices."""
    expectation = Expectation(says="", claim=ANY, **fields)  # type: ignore[arg-type]
    assert is_about(expectation, row()) is about


def test_expectation_without_options_is_about_plain_cases_alone() -> None:
    """A case with an option that the expectation doesn't list isn't meant."""
    dropped = row(case=case().model_copy(update={"options": ("dropout",)}))
    plain = Expectation(says="", claim=ANY, options=frozenset())
    also = Expectation(says="", claim=ANY, options=frozenset({"dropout", "bias"}))
    assert not is_about(plain, dropped)
    assert is_about(also, dropped)


def test_second_launch_of_a_function_is_meant_by_its_name() -> None:
    """`key_gradients 2`, the second of a call, is a `key_gradients`, and by its own name itself."""
    first, second = row(function="key_gradients"), row(function="key_gradients 2")
    both = Expectation(says="", claim=ANY, functions=("key_gradients",))
    assert is_about(both, first)
    assert is_about(both, second)
    latter = Expectation(says="", claim=ANY, functions=("key_gradients 2",))
    assert not is_about(latter, first)
    assert is_about(latter, second)


@pytest.mark.parametrize(
    ("claim", "changes", "reason"),
    [
        (Loads(16), {}, None),
        # 4 x 16 of 4 x 16 + 320 x 2 bytes: a dropped divisibility.
        (Loads(16), {"mix": mix(loads={16: 4, 2: 320})}, "9% of the bytes of its loads"),
        # 56 x 16 bytes and a statistic's 12 x 4: 95% are wide.
        (Loads(16), {"mix": mix(loads={16: 56, 4: 12})}, None),
        (Loads(16, share=1.0), {"mix": mix(loads={16: 56, 4: 12})}, "expected 100%"),
        (Loads(16), {"mix": mix(loads={})}, None),
        (Stores(16), {}, None),
        (Stores(16), {"mix": mix(stores={2: 64})}, "0% of the bytes of its stores"),
        (Spills(), {}, None),
        (Spills(), {"spill_store_bytes": 4}, "4 bytes a thread are spilled, expected none"),
        (Spills(60), {"spill_store_bytes": 60}, None),
        (Spills(60), {"spill_store_bytes": 64}, "expected at most 60"),
        (Uses("HGMMA"), {}, None),
        (Uses("HGMMA.64x64x16"), {}, None),
        (Uses("HGMMA"), {"mix": mix(matrix={"HMMA.16816.F32": 8})}, "which has HMMA.16816.F32"),
        (Uses("HMMA"), {"mix": mix(matrix={})}, "no matrix instruction at all"),
        (Fits(), {}, None),
        (Fits(), {"shared_bytes": 232_449}, "it can't be launched"),
        (Unfit(), {"shared_bytes": 232_449}, None),
        (Unfit(), {}, "it fits by now"),
    ],
)
def test_claim_is_broken_where_it_doesnt_hold(
    claim: Claim, changes: dict[str, object], reason: str | None
) -> None:
    """Each kind of claim at its edge, and the reason that it gives."""
    found = broken(claim, row(**changes))
    if reason is None:
        assert found is None
    else:
        assert reason in (found or "")


def test_of_one_kind_the_last_that_is_about_a_row_counts() -> None:
    """A later exception replaces the general expectation on rows that the exception is about."""
    general = Expectation(says="none", claim=Spills())
    allowed = Expectation(says="some", claim=Spills(60), sm=(90, 90))
    elsewhere = Expectation(says="more", claim=Spills(600), sm=(75, 75))
    fits, unfit = Expectation(says="", claim=Fits()), Expectation(says="", claim=Unfit())
    hopper, older = (Expectation(says="", claim=Uses(name)) for name in ("HGMMA", "HMMA"))
    assert counting([general, allowed, elsewhere], row()) == [allowed]
    assert counting([general, allowed, elsewhere], row(sm=80)) == [general]
    assert counting([fits, unfit], row()) == [unfit]
    assert counting([hopper, older], row()) == [hopper, older]


@pytest.mark.parametrize("claim", [Loads(16), Stores(16), Spills(), Uses("HGMMA"), Fits(), Unfit()])
def test_what_couldnt_be_read_breaks_nothing(claim: Claim) -> None:
    """A figure that is missing is no evidence against a kernel, and none for it."""
    assert broken(claim, row(mix=None, spill_store_bytes=None, shared_bytes=None)) is None


def test_offender_is_the_instruction_that_breaks_the_claim() -> None:
    """The narrowest access, the first spilled register, the matrix instruction that is there."""
    code = tuple(parsed(RAW))
    assert "LDG.E.U16" in str(offender(Loads(16), code))
    assert "STG.E.64" in str(offender(Stores(16), code))
    assert "STL [R1+0x4]" in str(offender(Spills(), code))
    assert "HGMMA" in str(offender(Uses("UTCHMMA"), code))
    assert offender(Fits(), code) is None


def test_offender_is_told_with_its_line() -> None:
    """The line of the source stands behind the instruction."""
    found = str(offender(Loads(16), tuple(parsed(LABELLED))))
    assert found.startswith("/*0010*/ LDG.E.U8")
    assert found.endswith("/x/kernels/rows.py:35")
