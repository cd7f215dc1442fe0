"""Layer norm's peers from elsewhere: how they are called, what they refuse, how they are absent."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console
from torch import Tensor

from kernel_workbench.kernels import all_kernels, registry
from kernel_workbench.kernels.baselines import layer_norm_inductor, layer_norm_liger
from kernel_workbench.kernels.baselines.layer_norm_torch import torch_eager
from kernel_workbench.kernels.baselines.optional import imported_without
from kernel_workbench.kernels.registry import all_absent
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Layout, TensorLayout
from kernel_workbench.reports.record import AbsentKernel, RecordWriter, RunEnd, read
from kernel_workbench.reports.report import print_report
from tests.builders.accuracy_records import example_header, example_row
from tests.builders.by_hand import DTYPES, kernel_of, run_on

CPU = torch.device("cpu")
SM = 90
F32, F16, BF16 = DTYPES


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_kernels()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_absent", dict(registry._absent))
    module = layer_norm_liger.__dict__.copy()
    yield
    layer_norm_liger.__dict__.update(module)


def _case(
    options: str = "",
    dtype: torch.dtype = BF16,
    weight: torch.dtype | None = None,
    layout: Layout = CONTIGUOUS,
    **sizes: int,
) -> Case:
    return Case(
        op=LAYER_NORM_BACKWARD.name,
        sizes=tuple(({"m": 13, "n": 264} | sizes).items()),
        dtype=dtype,
        weight_dtype=weight or dtype,
        layout=layout,
        options=frozenset(options.split()),
    )


def _padded(dtype: torch.dtype) -> Case:
    rows = TensorLayout(row_padding=3)
    return _case(dtype=dtype, layout=Layout("rowpad3", (("dy", rows), ("x", rows))))


def _like_liger(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor,
    mean: Tensor,
    rstd: Tensor,
    needs_dw: bool,  # noqa: FBT001  (Liger's own signature)
    needs_db: bool,  # noqa: FBT001  (likewise)
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """A backward of Liger's signature; where no bias is asked for it gives none."""
    dx, dweight, dbias = torch_eager(dy.view(-1, dy.shape[-1]), x, w, mean, rstd, has_bias=needs_db)
    assert dbias is None or dbias.dtype == b.dtype
    return dx.view(dy.shape), dweight if needs_dw else None, dbias


@pytest.fixture
def _liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger's function, or one with its arguments where it isn't installed."""
    if importlib.util.find_spec("liger_kernel") is not None:
        return
    module = ModuleType("liger_kernel.ops.layer_norm")
    module.layer_norm_backward = _like_liger  # type: ignore[attr-defined]
    for name in ("liger_kernel", "liger_kernel.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_peer_is_imported_without_a_package_that_it_only_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Liger imports peft to learn whether it is installed; later imports find peft again."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_to_import.py").write_text("loaded = True")
    asks = "try:\n    import slow_to_import\nexcept ImportError:\n    slow_to_import = None"
    for name in ("asks_first", "asks_later"):
        (tmp_path / f"{name}.py").write_text(asks)
    for name in ("asks_first", "asks_later", "slow_to_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert imported_without("asks_first", "slow_to_import").slow_to_import is None
    assert importlib.import_module("slow_to_import").loaded
    assert imported_without("asks_first", "slow_to_import").slow_to_import is None
    assert imported_without("asks_later", "slow_to_import").slow_to_import.loaded
    with pytest.raises(ModuleNotFoundError, match="is_not_there"):
        imported_without("is_not_there", "another_package")
    assert "another_package" not in sys.modules


@pytest.mark.usefixtures("_liger")
@pytest.mark.parametrize(
    "case",
    [_case(), _case(dtype=F32), _case("no_bias", F16), _case(weight=F32), _case(m=0), _padded(F16)],
    ids=Case.id,
)
def test_liger_is_called_as_it_asks_to_be(case: Case) -> None:
    """Arguments in its order, a bias for its dtype alone, None where none is asked for."""
    assert layer_norm_liger._DOMAIN.reject(case, SM) is None
    row = run_on(CPU).try_pair(kernel_of(layer_norm_liger.liger, features={"no_bias"}), case)
    assert row.status == "passed", row.reason


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (_case(n=65537), "serves n of 1 to 65536, got 65537"),
        (_case("no_weight"), "doesn't serve no_weight"),
        (_case("rms_norm residual"), "doesn't serve residual, rms_norm"),
        (_case(layout=Layout("rank3", batches=13)), "needs inputs of rank 2, got rank 3"),
    ],
)
def test_liger_refuses_what_it_does_not_serve(case: Case, said: str) -> None:
    """Wider rows than a block holds, options that it lacks, and rows in batches."""
    assert layer_norm_liger._DOMAIN.reject(case, SM) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("rms_norm", "serves RMS norm without a bias"),
        ("rms_norm no_bias", None),
        ("rms_norm no_weight", None),
        ("no_bias", None),
    ],
)
def test_torch_serves_rms_norm_without_a_bias(options: str, said: str | None) -> None:
    """Its operator has no gradient of a bias."""
    kernels = [each for each in all_kernels() if each.op is LAYER_NORM_BACKWARD]
    (domain,) = (each.domain for each in kernels if each.name == "torch_native")
    assert domain.reject(_case(options), SM) == said


def _reloaded(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    """Import the file again, where liger-kernel is installed or isn't."""
    found = importlib.util.find_spec("json") if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_absent", {})
    importlib.reload(layer_norm_liger)


def test_liger_is_a_baseline_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is registered, and not absent."""
    _reloaded(monkeypatch, installed=True)
    (made,) = registry._registered.values()
    assert (made.name, made.origin, made.domain.devices) == ("liger", "baseline", ("cuda",))
    assert registry._absent == {}


def test_liger_is_absent_with_the_reason_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is registered, and what is said has the command that installs it."""
    _reloaded(monkeypatch, installed=False)
    assert registry._registered == {}
    (made,) = all_absent()
    assert (made.op.name, made.name) == (LAYER_NORM_BACKWARD.name, "liger")
    assert made.reason == "not installed: pip install liger-kernel"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_report_names_the_absent(tmp_path: Path, width: int) -> None:
    """Beside the environment, as text: a reason's escape sequences are spelled out."""
    reason = "not installed: pip install liger-kernel \x1b[31m[bold]"
    absent = AbsentKernel(op=LAYER_NORM_BACKWARD.name, name="liger", reason=reason)
    header = example_header(1).model_copy(update={"absent": (absent,)})
    with RecordWriter(tmp_path / "a.jsonl", header) as writer:
        writer.write(example_row())
        writer.close(RunEnd(finished_at="", duration_s=1, rows=1, interrupted=False, exit_status=0))
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        print_report(read(tmp_path / "a.jsonl"), console, details=True)
    said = " ".join(captured.get().split())
    assert r"absent liger, not installed: pip install liger-kernel \x1b[31m[bold]" in said
    assert "\x1b" not in said


@pytest.fixture
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes seconds a shape, and a compiler: the function runs as it is."""

    def as_it_is(function: Callable[..., object], *_: object) -> Callable[..., object]:
        return function

    monkeypatch.setattr(layer_norm_inductor, "compiled", as_it_is)


_OPTIONS = sorted({"no_weight", "no_bias", "zero_centred", "rms_norm", "residual"})


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("options", ["", *_OPTIONS, "no_bias zero_centred rms_norm residual"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_inductor_is_asked_for_the_closed_form(options: str, dtype: torch.dtype) -> None:
    """With every option of its domain, each argument at its place."""
    candidate = kernel_of(layer_norm_inductor.inductor, features=_OPTIONS)
    row = run_on(CPU).try_pair(candidate, _case(options, dtype))
    assert row.status == "passed", row.reason


def test_inductor_compiles_for_large_cases_alone() -> None:
    """`full` ends within its minutes, and `ci` never compiles."""
    named = (each for each in all_kernels() if each.name == "inductor")
    (made,) = (each for each in named if each.op is LAYER_NORM_BACKWARD)
    served = [case for case in LAYER_NORM_BACKWARD.cases() if made.domain.reject(case, SM) is None]
    assert 1 <= len(served) <= 60
    assert all(case.tier == "full" for case in served)
    said = made.domain.reject(_case(m=128, n=65535), SM)
    assert said == "is compiled for 8,388,608 to 2,147,483,647 elements alone, got 8,388,480"
    assert made.domain.reject(_case(m=128, n=65536), SM) is None
