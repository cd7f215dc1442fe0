"""Candidates that misbehave are rows with a rule and a sentence, and never end the run."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.oracles import LAYER_NORM_BACKWARD, LayerNormNumerics
from kernel_workbench.oracles.op import Case, Inputs, Numerics, Op, Outputs
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.run.descriptions import kernel_info
from tests import ROOT
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.wrong_layer_norms import closed_form

SUITES = ROOT / "suites"
_sound: Callable[..., tuple[Tensor, Tensor, Tensor]] = closed_form
CASE = Case(
    op=LAYER_NORM_BACKWARD.name,
    sizes=(("m", 3), ("n", 5)),
    dtype=torch.float32,
    weight_dtype=torch.float32,
)


def _row(function: Callable[..., object], device: torch.device, case: Case = CASE) -> AccuracyRow:
    return run_on(device).try_pair(kernel_of(function, dtypes=(torch.float32,)), case)


def _instead(**replaced: Callable[[Tensor], object]) -> Callable[..., object]:
    """A sound kernel, with some of its outputs passed through something."""

    def function(**arguments: Tensor) -> tuple[object, ...]:
        outputs = zip(LAYER_NORM_BACKWARD.outputs, _sound(**arguments), strict=True)
        return tuple(
            replaced[name](value) if name in replaced else value for name, value in outputs
        )

    return function


class _Subclass(Tensor):
    """A tensor whose comparisons could say whatever they like."""


_WRONG_OUTPUTS: dict[str, tuple[Callable[..., object], str]] = {
    "none": (lambda **_: None, "it returned a NoneType, not a tuple of dx, dweight, dbias"),
    "a tensor": (lambda dy, **_: dy, "it returned a Tensor, not a tuple of dx, dweight, dbias"),
    "two": (
        lambda **arguments: _sound(**arguments)[:2],
        "it returned 2 outputs, not 3: dx, dweight, dbias",
    ),
    "shape": (_instead(dx=lambda dx: dx.mT), "dx must have shape (3, 5), got (5, 3)"),
    "a column more": (
        _instead(dbias=lambda dbias: dbias.unsqueeze(0)),
        "dbias must have shape (5,), got (1, 5)",
    ),
    "dtype": (
        _instead(dweight=lambda dweight: dweight.double()),
        "dweight must be float32, got float64",
    ),
    "subclass": (
        _instead(dx=lambda dx: dx.as_subclass(_Subclass)),
        "dx must be a torch.Tensor, got a _Subclass",
    ),
    "none in place of a tensor": (
        _instead(dbias=lambda _: None),
        "dbias must be a torch.Tensor, got a NoneType",
    ),
}


@pytest.mark.parametrize("name", _WRONG_OUTPUTS)
def test_outputs_of_another_form_fail_in_one_sentence(name: str, device: torch.device) -> None:
    """Number, type, shape and dtype are the op's, and the sentence says both sides."""
    function, sentence = _WRONG_OUTPUTS[name]
    row = _row(function, device)
    assert (row.status, row.rule, row.reason) == ("failed", "wrong outputs", sentence)


def test_output_on_another_device_fails(device: torch.device) -> None:
    """A meta tensor has the right shape and dtype, and no values that could be wrong."""
    row = _row(_instead(dx=lambda dx: dx.to("meta")), device)
    assert (row.status, row.rule) == ("failed", "wrong outputs")
    assert row.reason is not None
    assert row.reason.startswith(f"dx must be on {device}")
    assert row.reason.endswith("got meta")


def test_output_that_the_case_leaves_out_must_be_none(device: torch.device) -> None:
    """Without a bias there is no dbias, and a tensor in its place is a misunderstanding."""
    case = dataclasses.replace(CASE, options=frozenset({"no_bias"}))
    row = _row(lambda has_bias, **arguments: _sound(**arguments), device, case)  # noqa: ARG005
    assert row.reason == "dbias must be None for this case, got a Tensor"


def test_accumulated_gradient_must_be_the_tensor_that_was_passed(device: torch.device) -> None:
    """A caller who accumulates keeps its own tensor; the sum in another one is lost to it."""
    case = dataclasses.replace(CASE, options=frozenset({"accumulate"}))

    def elsewhere(dweight: Tensor, dbias: Tensor, **arguments: Tensor) -> tuple[Tensor, ...]:
        dx, more_dweight, more_dbias = _sound(**arguments)
        return dx, dweight + more_dweight, dbias + more_dbias

    row = _row(elsewhere, device, case)
    assert row.reason == "dweight must be the tensor that was passed in, changed in place"


def _raises(**_: Tensor) -> None:
    raise ValueError("the grid\n  is empty")


def _exits(**_: Tensor) -> None:
    sys.exit(0)


def _skips(**_: Tensor) -> None:
    pytest.skip("not today")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (_raises, "it raised ValueError at line {line} of {file}: the grid is empty"),
        (_exits, "it raised SystemExit at line {line} of {file}: 0"),
        (_skips, "it raised Skipped at line {line} of {file}: not today"),
    ],
)
def test_candidate_that_raises_fails_with_where_it_did(
    function: Callable[..., object], sentence: str, device: torch.device
) -> None:
    """Whatever it raises, on one line; sys.exit and pytest.skip are no way out of a verdict."""
    row = _row(function, device)
    line = function.__code__.co_firstlineno + 1
    assert (row.status, row.rule) == ("failed", "raised")
    assert row.reason == sentence.format(line=line, file=__file__)


def test_candidate_stopped_by_the_user_stops_the_run(device: torch.device) -> None:
    """Ctrl-C belongs to the user, wherever it strikes."""

    def interrupted(**_: Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _row(interrupted, device)


def test_candidate_that_warns_passes(device: torch.device) -> None:
    """The checkout's pytest makes errors of warnings; a candidate's aren't ours to judge."""

    def warning(**arguments: Tensor) -> tuple[Tensor, ...]:
        warnings.warn("an old option", DeprecationWarning, stacklevel=1)
        return _sound(**arguments)

    with pytest.warns(DeprecationWarning, match="an old option"):
        assert _row(warning, device).status == "passed"


def test_candidate_that_writes_to_an_input_fails(device: torch.device) -> None:
    """An input's own elements, and the poison around it, are as they were."""

    def inside(**arguments: Tensor) -> tuple[Tensor, ...]:
        outputs = _sound(**arguments)
        arguments["mean"][0] += 1
        return outputs

    def around(**arguments: Tensor) -> tuple[Tensor, ...]:
        x = arguments["x"]
        x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
        return _sound(**arguments)

    assert _row(inside, device).reason == "it wrote to memory in or around input mean"
    row = _row(around, device)
    assert (row.rule, row.reason) == ("changed input", "it wrote to memory in or around input x")


def test_error_of_cuda_is_told_without_torchs_advice(device: torch.device) -> None:
    """The advice is longer than the error."""

    def raising(**_: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError(
            "CUDA error: operation not permitted\nSearch for `cudaErrorNotPermitted' in the manual."
            "\nCUDA kernel errors might be asynchronously reported at some other API call."
        )

    reason = _row(raising, device).reason
    assert reason is not None
    assert reason.endswith("CUDA error: operation not permitted")


def test_candidate_gets_fresh_storages_with_the_same_values(device: torch.device) -> None:
    """Two calls can't tell one another by an address, and compute the same thing."""
    seen: list[dict[str, Tensor]] = []

    def remembering(**arguments: Tensor) -> tuple[Tensor, ...]:
        seen.append(arguments)
        return _sound(**arguments)

    assert _row(remembering, device).status == "passed"
    first, second, *_ = seen  # on a GPU a graph of the call is captured too
    assert list(first) == list(second) == list(LAYER_NORM_BACKWARD.arguments)
    for name, tensor in first.items():
        again = second[name]
        assert tensor.untyped_storage().data_ptr() != again.untyped_storage().data_ptr(), name
        assert torch.equal(tensor, again), name
        assert tensor.stride() == again.stride(), name


def test_candidate_cant_mend_the_output_of_an_earlier_call(device: torch.device) -> None:
    """A buffer that is kept and filled at the second call only was wrong at the first."""
    kept: list[Tensor] = []

    def late(**arguments: Tensor) -> tuple[Tensor, ...]:
        dx, dweight, dbias = _sound(**arguments)
        if not kept:
            kept.append(torch.empty_like(dx))
            return kept[0], dweight, dbias
        return kept[0].copy_(dx), dweight, dbias

    row = _row(late, device)
    assert (row.status, row.rule) == ("failed", "non-finite values")


def _with_facts(function: Callable[..., object], **facts: Callable[..., object]) -> Kernel:
    kernel = kernel_of(function, dtypes=(torch.float32,))
    return dataclasses.replace(kernel, **facts)  # type: ignore[arg-type]


def test_row_has_the_variant_and_the_memory_that_the_kernel_told(device: torch.device) -> None:
    """Both are asked of the case; what was measured stands beside what was declared."""

    def spacious(**arguments: Tensor) -> tuple[Tensor, ...]:
        scratch = torch.empty(3000, device=arguments["x"].device)
        outputs = _sound(**arguments)
        del scratch
        return outputs

    facts: dict[str, Callable[..., object]] = {
        "variant": lambda case, sm: f"m{case.size('m')}_sm{sm}",
        "workspace": lambda case: 10**6 * case.size("m"),
    }
    row = run_on(device).try_pair(_with_facts(spacious, **facts), CASE)
    assert (row.status, row.variant, row.declared_workspace_bytes) == (
        "passed",
        "m3_sm90",
        3 * 10**6,
    )
    assert row.workspace_bytes is not None
    assert 12_000 <= row.workspace_bytes < 13_000  # and closed_form's own, of 15 elements each
    plain = run_on(device).try_pair(kernel_of(_sound, dtypes=(torch.float32,)), CASE)
    assert (plain.variant, plain.declared_workspace_bytes) == (None, None)
    assert plain.workspace_bytes is not None
    assert plain.workspace_bytes < 1000


def test_candidate_that_takes_more_memory_than_it_declares_fails(device: torch.device) -> None:
    """By the most that it held at one time, though it gave it back before it returned."""

    def greedy(**arguments: Tensor) -> tuple[Tensor, ...]:
        for _ in range(5):  # one after the other: 40,000 bytes at a time
            torch.empty(10_000, device=arguments["x"].device)
        return _sound(**arguments)

    row = run_on(device).try_pair(_with_facts(greedy, workspace=lambda _: 39_000), CASE)
    assert (row.status, row.rule) == ("failed", "workspace")
    assert row.reason == (
        f"it took {row.workspace_bytes:,} bytes beyond its inputs and outputs, and declares "
        "39,000 for this case"
    )
    assert (
        run_on(device).try_pair(_with_facts(greedy, workspace=lambda _: 44_000), CASE).rule is None
    )


def test_memory_that_only_the_first_call_takes_isnt_counted(device: torch.device) -> None:
    """It may be the call that compiles, tunes or fills a cache."""
    kept: list[Tensor] = []

    def filling(**arguments: Tensor) -> tuple[Tensor, ...]:
        if not kept:
            kept.append(torch.zeros(10_000, device=arguments["x"].device))
        return _sound(**arguments)

    row = run_on(device).try_pair(_with_facts(filling, workspace=lambda _: 1_000), CASE)
    assert (row.status, row.rule) == ("passed", None)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (
            {"variant": lambda *_: 1 / 0},
            "its variant, workspace or configurations raised ZeroDivisionError",
        ),
        ({"workspace": lambda _: 1.5}, "its workspace must be of type int, got float"),
        ({"variant": lambda *_: None, "workspace": lambda _: 10**6}, None),
    ],
)
def test_kernel_that_cant_say_what_it_runs_fails_its_row(
    facts: dict[str, Callable[..., object]], reason: str | None, device: torch.device
) -> None:
    """A user's function may raise or return anything: that is a row, and no end of the run."""
    row = run_on(device).try_pair(_with_facts(_sound, **facts), CASE)
    if reason is None:
        assert (row.status, row.variant) == ("passed", None)
        return
    assert (row.status, row.rule, row.call_s) == ("failed", "raised", None)
    assert row.reason is not None
    assert row.reason.startswith(reason)


def test_kernels_variants_are_those_of_the_runs_device(device: torch.device) -> None:
    """Variants that can't be listed are reported in one sentence, with the kernel's file."""
    kernel = _with_facts(_sound, variants=lambda sm: (f"sm{sm}_a", f"sm{sm}_b"))
    assert kernel_info(kernel, 80).variants == ("sm80_a", "sm80_b")
    assert kernel_info(kernel_of(_sound), 80).variants == ()
    with pytest.raises(KernelError, match=r"candidate in .*: its variants for sm 80 raised Zero"):
        kernel_info(_with_facts(_sound, variants=lambda _: 1 / 0), 80)
    assert run_on(device).try_pair(kernel, CASE).variant is None


def _counting_truths() -> tuple[Op, list[Case]]:
    """An op, and the cases whose truths it has computed."""
    computed: list[Case] = []

    def oracle(case: Case, inputs: Inputs) -> Outputs:
        computed.append(case)
        return LAYER_NORM_BACKWARD.oracle(case, inputs)

    return dataclasses.replace(LAYER_NORM_BACKWARD, oracle=oracle), computed


def test_candidate_that_spoils_its_inputs_doesnt_spoil_the_next_ones(device: torch.device) -> None:
    """Another kernel of the same case gets inputs, and is judged by a truth, made anew."""

    def spoiling(**arguments: Tensor) -> tuple[Tensor, ...]:
        outputs = _sound(**arguments)
        arguments["x"].zero_()
        return outputs

    run, (op, computed) = run_on(device), _counting_truths()
    sound, other = (
        dataclasses.replace(kernel_of(function, dtypes=(torch.float32,)), op=op)
        for function in (_sound, spoiling)
    )
    assert run.try_pair(sound, CASE).status == "passed"
    assert run.try_pair(other, CASE).reason == "it wrote to memory in or around input x"
    assert run.try_pair(sound, CASE).status == "passed"
    assert computed == [CASE] * 2


def test_candidate_is_called_in_one_place() -> None:
    """One module makes the call, and captures it in a graph, so that it sees what a call does."""
    calling = {
        file.name
        for room in ("accuracy", "sandbox")
        for file in (SUITES / room).rglob("*.py")
        if "kernel.function" in file.read_text(encoding="utf-8")
    }
    assert calling == {"candidate.py"}  # but for user_script.py, a program of its own
    assert (SUITES / "sandbox" / "worker_side" / "candidate.py").read_text(encoding="utf-8").count(
        "kernel.function"
    ) == 2


def test_truth_is_computed_once_for_all_kernels_of_a_case(device: torch.device) -> None:
    """Case by case, as the suite orders them, there are as many truths as cases."""
    op, computed = _counting_truths()
    cases = [CASE, dataclasses.replace(CASE, seed=1)]
    kernels = [
        dataclasses.replace(kernel_of(_sound, name=name), op=op, numerics=numerics)
        for name, numerics in (
            ("a", Numerics()),
            ("b", Numerics()),
            ("c", LayerNormNumerics(distributed_normalisation=True)),
        )
    ]
    run = run_on(device)
    rows = [run.try_pair(kernel, case) for case in cases for kernel in kernels]
    assert [row.status for row in rows] == ["passed"] * 6
    assert computed == cases


def test_case_too_large_for_a_cpu_is_refused_there() -> None:
    """2^31 elements and their truth in float64 would need more memory than a CPU's machine has."""
    kernel = kernel_of(closed_form)
    huge = next(each for each in LAYER_NORM_BACKWARD.cases() if each.size("n") == 65544)
    reason = run_on(torch.device("cpu")).refusal(kernel, huge)
    assert reason == "moves 12.0 GiB at least, which is tried on a GPU only"
    assert run_on(torch.device("cuda")).refusal(kernel, huge) is None


def test_case_too_long_for_a_cpu_is_refused_there() -> None:
    """An interpreter would compute for minutes; on a GPU the domain alone decides."""
    op = dataclasses.replace(LAYER_NORM_BACKWARD, flops=lambda _: 21_000_000_000)
    kernel = dataclasses.replace(kernel_of(closed_form), op=op)
    reason = run_on(torch.device("cpu")).refusal(kernel, CASE)
    assert reason == "does 21 GFLOP, which is tried on a GPU only"
    assert run_on(torch.device("cuda")).refusal(kernel, CASE) is None
    assert run_on(torch.device("cpu")).refusal(kernel_of(closed_form), CASE) is None
