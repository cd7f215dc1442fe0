"""The registry: which kernel a case gets, and how kernels come to be in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels import registry
from kernel_workbench.kernels.baselines import liger
from kernel_workbench.kernels.registry import (
    Domain,
    Kernel,
    KernelError,
    NoKernelError,
    all_absent,
    all_kernels,
    choose,
    kernel,
    load_file,
)
from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD, LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Layout, Numerics, TensorLayout
from tests import ROOT

F32, F16 = torch.float32, torch.float16


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget a test's registrations after it; the checkout's own kernels are there from the start.

    all_kernels comes first: a module is imported once, so a kernel that a test dropped is lost.
    """
    all_kernels()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("user_kernels_"):
            del sys.modules[name]


def _case(n: int = 64, dtype: torch.dtype = F32, layout: Layout = CONTIGUOUS) -> Case:
    return layer_norm_case(4, n, (dtype, dtype), layout=layout)


def _kernel(name: str, domain: Domain, priority: int = 0) -> Kernel:
    return Kernel(
        op=LAYER_NORM_BACKWARD,
        name=name,
        domain=domain,
        numerics=Numerics(),
        priority=priority,
        function=lambda: None,
        origin="ours",
        path=__file__,
    )


def test_choose_takes_rows_then_shared_rows_then_columns_aligned_ones_first() -> None:
    """In priority order, each kernel of ours gets the cases that those before it refuse."""
    misaligned = Layout("offset1", (("x", TensorLayout(offset=1)),))
    wide = 8192 + 8  # past the rows that fit in registers, and still whole 16 bytes
    wider = 65536 + 8  # past the rows that programs share
    layouts = (_case(), _case(layout=misaligned))
    widths = (_case(n=n) for n in (wide, wide + 1, wider, wider + 1))
    chosen = [choose(LAYER_NORM_BACKWARD, case, 90).name for case in (*layouts, *widths)]
    assert chosen == [
        "row_persistent_aligned",
        "row_persistent",
        "row_sharing_aligned",
        "row_sharing",
        "column_owning_aligned",
        "column_owning",
    ]


def test_choose_never_falls_back_to_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer is compared with, never chosen, though torch_eager would serve this case."""
    with pytest.raises(NoKernelError, match="row_persistent_aligned: serves float32"):
        choose(LAYER_NORM_BACKWARD, _case(dtype=torch.float64), 90)
    peers = tuple(each for each in all_kernels() if each.origin == "baseline")
    assert choose(LAYER_NORM_BACKWARD, _case(), 90, among=peers).origin == "baseline"
    monkeypatch.setattr(registry, "all_kernels", lambda: peers)
    with pytest.raises(NoKernelError, match="no kernel of this op is registered"):
        choose(LAYER_NORM_BACKWARD, _case(), 90)


def test_choose_goes_by_priority_then_by_name() -> None:
    """The order of registration, which is that of the files, means nothing."""
    serving, refusing = Domain(dtypes=(F32,)), Domain(dtypes=(F16,))
    among = [
        _kernel("b", serving),
        _kernel("a", serving),
        _kernel("low", serving, priority=-1),
        _kernel("high", refusing, priority=1),
    ]
    for listed in (among, among[::-1]):
        assert choose(LAYER_NORM_BACKWARD, _case(), 90, among=listed).name == "a"


def test_choose_lists_every_refusal_where_all_refuse() -> None:
    """The error says, in priority order, what each kernel would have needed."""
    among = [
        _kernel("half", Domain(dtypes=(F16,))),
        _kernel("new", Domain(dtypes=(F32,), sm=(100, 120)), priority=1),
    ]
    with pytest.raises(NoKernelError) as caught:
        choose(LAYER_NORM_BACKWARD, _case(), 90, among=among)
    assert str(caught.value) == (
        "no kernel of layer_norm_backward serves layer_norm_backward-m4-n64-float32-contiguous: "
        "new: serves sm 100 to 120, got sm 90; half: serves float16, got float32"
    )


def test_choose_says_that_no_kernel_is_registered() -> None:
    """An op without kernels isn't an error without a reason."""
    with pytest.raises(NoKernelError, match="no kernel of this op is registered"):
        choose(LAYER_NORM_BACKWARD, _case(), 90, among=())


def test_all_kernels_come_in_an_order_that_registration_doesnt_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Op by op, highest priority first, then by name; whatever file was imported first."""
    listed = all_kernels()
    assert [(each.op.name, -each.priority, each.name) for each in listed] == sorted(
        (each.op.name, -each.priority, each.name) for each in listed
    )
    backwards = dict(reversed(registry._registered.items()))
    monkeypatch.setattr(registry, "_registered", backwards)
    assert all_kernels() == listed


def test_kernels_of_ours_list_features_that_exist() -> None:
    """A feature that the op doesn't have is a misspelt one, and its case would never be served."""
    for each in all_kernels():
        assert each.domain.features <= set(each.op.options), each.name


def _register(function: Callable[..., object], name: str) -> None:
    kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(F32,)), name=name)(function)


def _nothing() -> None:
    """Stand in for a kernel that is registered and never called."""


def test_kernel_with_an_unknown_feature_is_refused() -> None:
    """The message names the feature, and the one that is meant."""
    domain = Domain(dtypes=(F32,), features=frozenset({"no_wieght", "no_bias"}))
    with pytest.raises(KernelError, match=r"no_wieght; did you mean no_weight\?"):
        kernel(LAYER_NORM_BACKWARD, domain)(_nothing)


def test_second_kernel_of_a_name_is_refused_with_both_files() -> None:
    """The message says where both are, and what to do."""
    ours = next(each for each in all_kernels() if each.name == "row_persistent")
    with pytest.raises(KernelError) as caught:
        _register(_nothing, "row_persistent")
    assert str(caught.value) == (
        "two kernels of layer_norm_backward are called row_persistent: "
        f"one in {ours.path}, one in {__file__}; give the second another name"
    )
    assert ours in all_kernels()


def test_two_ops_may_have_kernels_of_one_name() -> None:
    """A name is one of its op's; the same function may even serve two."""
    for op in (ATTENTION_FORWARD, ATTENTION_BACKWARD):
        kernel(op, Domain(dtypes=(F32,)), name="twin")(_nothing)
    twins = [each.op.name for each in all_kernels() if each.name == "twin"]
    assert twins == ["attention_backward", "attention_forward"]


def test_kernel_says_what_it_runs_and_what_memory_it_takes() -> None:
    """Variants and workspace are registered with the kernel; by default it says neither."""
    case = _case(n=128)
    kernel(
        LAYER_NORM_BACKWARD,
        Domain(dtypes=(F32,)),
        name="telling",
        variant=lambda case, sm: f"n{case.size('n')}_sm{sm}",
        variants=lambda sm: (f"n64_sm{sm}", f"n128_sm{sm}"),
        workspace=lambda case: 4 * case.size("n"),
    )(_nothing)
    _register(_nothing, "silent")
    found = {each.name: each for each in all_kernels()}
    telling, silent = found["telling"], found["silent"]
    assert telling.variant is not None
    assert telling.variants is not None
    assert telling.workspace is not None
    assert telling.variant(case, 90) in telling.variants(90)
    assert telling.workspace(case) == 512
    assert (silent.variant, silent.variants, silent.workspace) == (None, None, None)


def test_registering_returns_the_function_itself() -> None:
    """A decorated kernel can still be called and tested as what it is."""
    decorate = kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(F32,)))
    assert decorate(_nothing) is _nothing
    assert [entry.origin for entry in all_kernels() if entry.name == "_nothing"] == ["ours"]


_USERS_FILE = """
import functools
import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

def plain(**arguments):
    return None

@functools.wraps(plain)
def wrapped(**arguments):
    return plain(**arguments)

kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)), name="one")(torch.no_grad()(plain))
kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)), name="two", priority=99)(wrapped)
"""


def test_users_file_registers_kernels_of_its_own(tmp_path: Path) -> None:
    """They are the user's, and have the file's path though torch made the function of one."""
    file = tmp_path / "mine.py"
    file.write_text(_USERS_FILE)
    loaded = load_file(file)
    assert {(each.name, each.origin, each.path) for each in loaded} == {
        ("one", "user", str(file)),
        ("two", "user", str(file)),
    }
    assert all(each in all_kernels() for each in loaded)
    assert choose(LAYER_NORM_BACKWARD, _case(), 90).name == "row_persistent_aligned"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n\nassert x == 2, 'two\\nlines'", "raised AssertionError: two lines (line 3)"),
        ("def f(:\n", "raised SyntaxError: invalid syntax (mine.py, line 1)"),
        ("raise SystemExit", "raised SystemExit (line 1)"),
        ("import no_such_module", "No module named 'no_such_module' (line 1)"),
        ("import kernel_workbench", "it registers no kernel; decorate a function with @kernel("),
    ],
    ids=["assertion", "syntax", "exit", "import", "empty"],
)
def test_users_file_that_cant_be_loaded_says_why(tmp_path: Path, text: str, sentence: str) -> None:
    """One line, with what was raised and where."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(KernelError) as caught:
        load_file(file)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"--kernels {file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "mistake",
    [
        "raise SystemExit",
        'kernel("no op", Domain(dtypes=(torch.float32,)))(plain)',
        "kernel(LAYER_NORM_BACKWARD, Domain(dtype=(torch.float32,)))(plain)",
    ],
    ids=["exit", "op", "keyword"],
)
def test_users_file_loads_once_its_mistake_is_mended(tmp_path: Path, mistake: str) -> None:
    """The kernels that it registered before the mistake are undone, whatever the mistake is."""
    file = tmp_path / "mine.py"
    file.write_text(f"{_USERS_FILE}\n{mistake}\n")
    with pytest.raises(KernelError):
        load_file(file)
    file.write_text(_USERS_FILE)
    assert {each.name for each in load_file(file)} == {"one", "two"}


@pytest.mark.parametrize("name", ["none.py", "a" * 300 + ".py", "~no-such-user/mine.py"])
def test_file_that_cant_be_there_is_no_such_file(name: str) -> None:
    """A missing file, a name too long for any file system and a home of nobody's are told alike."""
    with pytest.raises(KernelError, match="there is no such file"):
        load_file(Path(name))


Beside = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Beside:
    """A copy of the checkout with one file more, and what a Python of its own lists there.

    Whatever takes a gradient in it, or asks CUDA for anything, fails.
    """
    folder = tmp_path_factory.mktemp("copy")
    for room in ("kernel_workbench", "kernels", "oracles"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, folder / room, symlinks=True, ignore=ignored)
    newcomer = """
        import torch
        from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

        @kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)), priority=99)
        def newcomer(dy, x, weight, mean, rstd):
            return x, weight, weight
    """
    (folder / "kernels" / "newcomer.py").write_text(textwrap.dedent(newcomer))
    program = """
        import torch
        from torch.autograd import graph

        def refused(*_, **__):
            raise AssertionError("a gradient was taken")

        graph._engine_run_backward = torch.autograd._engine_run_backward = refused
        torch.cuda.is_available = torch.cuda.device_count = torch.cuda.init = refused
        from kernel_workbench import all_kernels
        print(*((k.name, k.path) for k in all_kernels()))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return folder, done


def test_new_file_under_kernels_is_a_new_kernel(beside: Beside) -> None:
    """With no other edit: a copy of the checkout lists what one file more registers."""
    folder, done = beside
    expected = [(each.name, each.path.replace(str(ROOT), str(folder))) for each in all_kernels()]
    first = next(
        place
        for place, each in enumerate(all_kernels())
        if each.op.name == LAYER_NORM_BACKWARD.name
    )
    expected.insert(first, ("newcomer", str(folder / "kernels" / "newcomer.py")))
    assert done.stdout.strip() == " ".join(map(str, expected))


def test_no_gradient_is_taken_while_kernels_are_loaded(beside: Beside) -> None:
    """Autograd's engine asks CUDA for its devices, and a process forked after that has none."""
    assert beside[1].returncode == 0, beside[1].stderr


def test_liger_is_a_peer_of_its_ops_or_absent() -> None:
    """Each op that Liger's file names has the peer or its absence, once."""
    present = {each.op.name for each in all_kernels() if each.name == "liger"}
    missing = {each.op.name for each in all_absent() if each.name == "liger"}
    named = {op.name for op, *_ in liger._PEERS}
    assert len(named) == len(liger._PEERS) == 17
    assert named <= present | missing
    assert not present & missing


def test_folder_in_place_of_a_definition_is_answered_with_a_definitions_kind(
    tmp_path: Path,
) -> None:
    """A definition is JSON, and other files are Python."""
    with pytest.raises(KernelError, match="it is a folder; name a JSON file"):
        registry.load_definition(tmp_path)
    with pytest.raises(KernelError, match="it is a folder; name a Python file"):
        registry.load_ops(tmp_path)
