"""Which cases stand for all that a kernel compiles to, and what is kept of what was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.suites.compile.cache import Cache
from kernel_workbench.suites.compile.cases import GENERATIONS, alignment_bytes, standing
from kernel_workbench.suites.compile.compiler import Measured, unknown_version
from kernel_workbench.suites.compile.session import CompileRun
from kernel_workbench.suites.compile.workers import CompileWorkers
from kernel_workbench.suites.run.option_table import CompileOptions

TOOLS = {"triton": "3.7.1", "ptxas": "12.8.93"}


def named(name: str) -> Kernel:
    """A kernel of ours."""
    return next(each for each in all_kernels() if each.name == name)


def test_unknown_version_of_triton_is_told() -> None:
    """A version that the suite wasn't tried with says so; patch releases are known."""
    assert unknown_version("3.6.0") is None
    assert unknown_version("3.7.1") is None
    assert "triton 3.9.0 isn't a version that this suite was tried with" in (
        unknown_version("3.9.0") or ""
    )


def test_cache_gives_back_what_was_put(tmp_path: Path) -> None:
    """By key and tools: another version of a tool has nothing kept, and neither has damage."""
    cache = Cache(tmp_path)
    measured = Measured(1.5, warps=4, registers=128, mix={"loads": {"16": 8}}, unread=["a"])
    assert cache.get("key", TOOLS) is None
    cache.put("key", TOOLS, measured)
    assert cache.get("key", TOOLS) == measured
    assert cache.get("key", TOOLS | {"triton": "3.6.0"}) is None
    assert cache.get("other", TOOLS) is None
    for file in tmp_path.rglob("*.json"):
        file.write_text(file.read_text()[:40])
    assert cache.get("key", TOOLS) is None


def test_cache_keeps_no_failure(tmp_path: Path) -> None:
    """Code that didn't compile, for want of memory perhaps, is tried again."""
    cache = Cache(tmp_path)
    cache.put("key", TOOLS, Measured(0.1, problem="it doesn't compile"))
    assert cache.get("key", TOOLS) is None


def test_cache_that_cant_be_written_keeps_nothing(tmp_path: Path) -> None:
    """A file stands where its folder should be: the run goes on without a cache."""
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    cache.put("key", TOOLS, Measured(1.0))
    assert cache.get("key", TOOLS) is None


def test_cases_that_stand_for_the_rest_are_few_and_reach_every_dispatch() -> None:
    """Every tile of a half's plain heads on every sm, aligned; a case of unaligned ones too."""
    flash = named("flash")
    few = standing(flash, GENERATIONS)
    every = standing(flash, GENERATIONS, everything=True)
    assert len(few) < len(every) / 4
    assert flash.variants is not None
    for sm in GENERATIONS:
        names = set(flash.variants(sm))
        assert {flash.variant(each.cases[sm], sm) for each in every if sm in each.cases} == names  # type: ignore[misc]
        taken = {flash.variant(each.cases[sm], sm) for each in few if sm in each.cases}  # type: ignore[misc]
        half = "f16" if sm == 75 else "bf16"
        plain = {
            name
            for name in names
            if f"_{half}_aligned" in name and "dropout" not in name and "bias" not in name
        }
        assert plain <= taken
        assert any("_notaligned" in name for name in taken)
        assert any("dropout" in name for name in taken)
        assert any("bias" in name for name in taken)


def test_kinds_of_tile_of_one_width_stand_beside_one_another() -> None:
    """Heads of 64 have two tiles of `split_keys`: neither hides the other, and labels tell them."""
    split = named("split_keys")
    found = {each.label: each for each in standing(split, (90,))}
    assert split.variant is not None
    for width in (64, 128, 256):
        labels = [each for each in found if each.startswith(f"bfloat16 d{width} aligned")]
        kinds = {split.variant(found[each].cases[90], 90).split("_")[0] for each in labels}
        assert kinds == {"split16", "split64"}


def test_case_stands_only_for_a_kernel_that_dispatch_gives_it() -> None:
    """`flash` is stood for by cases that `split_keys`, asked first, leaves to it."""
    flash, split = named("flash"), named("split_keys")
    plain = [
        each.cases[90]
        for each in standing(flash, (90,), before=(split,))
        if not each.cases[90].options
    ]
    assert len(plain) >= 4
    assert all(split.domain.reject(case, 90) is not None for case in plain)


@pytest.mark.parametrize("name", ["row_persistent", "column_owning"])
def test_kernel_named_alone_stands_for_what_dispatch_gives_it(name: str, tmp_path: Path) -> None:
    """The same cases as in a run of all kernels: aligned ones are the twin's, asked for or not."""
    results = str(tmp_path)
    of_kernel, of_op = (
        [
            run
            for run in CompileRun(options, "", CompileWorkers(1, (), tmp_path)).chosen()
            if run.kernel.name == name
        ]
        for options in (
            CompileOptions(results=results, kernel=(name,)),
            CompileOptions(results=results, op=("layer_norm_backward",)),
        )
    )
    assert of_kernel == of_op
    labels = [run.label for run in of_kernel]
    assert labels and not any("aligned" in each.split() for each in labels)


def test_generation_without_bfloat16_gets_the_twin_in_float16() -> None:
    """sm 75 is stood for by the float16 case of the same sizes."""
    flash = named("flash")
    for each in standing(flash, GENERATIONS):
        if "bfloat16" in each.label:
            assert str(each.cases[75].dtype) == "torch.float16"
            assert str(each.cases[80].dtype) == "torch.bfloat16"
            assert each.cases[75].sizes == each.cases[80].sizes


def test_labels_say_how_a_case_is_aligned() -> None:
    """`aligned` stands for rows of whole 16 bytes, and a width for the others."""
    delta = named("delta")
    for each in standing(delta, GENERATIONS, everything=True):
        width = alignment_bytes(each.cases[90])
        assert ("aligned" in each.label.split()) == (width == 16)
        assert (f"{width}-byte" in each.label) == (width < 16)
