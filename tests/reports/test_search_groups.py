"""Finds that a user would call one defect are one, and those on ordinary values come first."""

from __future__ import annotations

from kernel_workbench.reports.phrases import VALUES_NOT_FINITE, alike_word
from kernel_workbench.reports.record import FindRow
from kernel_workbench.reports.views.search import distinct


def _find(*essence: str, output: str = "dq", rule: str = "non-finite values") -> FindRow:
    """Return a find with what its grouping goes by."""
    return FindRow.model_construct(
        op="attention_backward", kernel="mine", rule=rule, output=output, essence=essence,
        needs=essence, dtypes=("float32",), confirmed=2,
    )  # fmt: skip


def test_finds_that_differ_in_what_is_not_finite_are_one() -> None:
    """Also where they show in another output; with an option more they are two."""
    names = ("nan_k", "nan_v", "inf_k", "nan_masked")
    finds = [_find(f"values {name}", output=f"d{name[-1]}") for name in names]
    assert len(distinct(finds)) == 1
    assert len(distinct([*finds, _find("values nan_k", "causal")])) == 2


def test_finds_that_differ_in_an_offset_are_one() -> None:
    """Offsets of one tensor are; those of two tensors aren't, nor are finds of two outputs."""
    rule = "deterministic bound"
    one = _find("layout q_offset1", rule=rule)
    assert len(distinct([one, _find("layout q_offset5", rule=rule)])) == 1
    assert len(distinct([one, _find("layout k_offset1", rule=rule)])) == 2
    assert len(distinct([one, _find("layout q_offset1", rule=rule, output="dk")])) == 2


def test_finds_on_ordinary_values_come_first() -> None:
    """Then those on other finite values, and last those that need a NaN."""
    wild, scaled, plain = _find("values nan_q"), _find("values times3"), _find("causal")
    assert distinct([wild, scaled, plain]) == [plain, scaled, wild]


def test_words_of_values_that_are_finite_stay() -> None:
    """A name that has the letters of a NaN's in another word isn't one."""
    assert alike_word("values inf_k") == VALUES_NOT_FINITE
    assert alike_word("values infinitesimal") == "values infinitesimal"
    assert alike_word("causal") == "causal"
