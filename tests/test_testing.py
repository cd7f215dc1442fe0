"""Tensors of a user's own test are judged by truth and bounds, in the test's own process."""

from __future__ import annotations

import doctest
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernel_workbench import testing
from kernel_workbench.kernels import Domain
from kernel_workbench.oracles import (
    ATTENTION_FORWARD,
    LAYER_NORM_BACKWARD,
    OPS,
    RMS_NORM_FORWARD,
    SOFTMAX_FORWARD,
)
from kernel_workbench.oracles.cases import arguments
from kernel_workbench.oracles.cases.arguments import values_vary
from kernel_workbench.oracles.op import Case, Numerics, Op
from kernel_workbench.oracles.reference import OpError
from kernel_workbench.testing import (
    ArgumentsError,
    NoPowerWarning,
    assert_matches,
    bound,
    case_strategy,
    cases,
    inputs,
)
from tests import ROOT

_CPU = torch.device("cpu")


def _small(op: Op) -> list[Case]:
    """Return up to 16 plain small cases of an op, spread over its options, sizes and dtypes."""
    plain = [
        case
        for case in op.cases()
        if case.tier == "ci"
        and case.distribution == "normal"
        and case.layout.name == "contiguous"
        and not case.options & op.gpu_options
        and "varlen" not in case.options
        and op.flops(case) < 3e5
    ]
    return plain[:: -(-len(plain) // 16)]


def _outputs(op: Op, case: Case, passed: dict[str, Any]) -> dict[str, Tensor]:
    """Return what an idealised kernel leaves, or the truth cast where a case has no emulation."""
    exact = {name: value for name, value in op.oracle(case, passed).items() if value is not None}
    forms = op.forms(case)
    rounded = {name: exact[name].to(form.dtype) for name, form in forms.items()}
    emulated = op.emulate(case, passed, Numerics())
    return rounded | {name: value for name, value in emulated.items() if value is not None}


@pytest.mark.parametrize("name", sorted(OPS))
def test_outputs_of_an_idealised_kernel_match(name: str) -> None:
    """A sound kernel passes on arguments whose case is read off them, whatever its options."""
    op = OPS[name]
    for case in _small(op):
        passed = inputs(op, case, "cpu")
        outputs = _outputs(op, case, passed)
        assert_matches(outputs, op, **passed)


@pytest.mark.parametrize("name", sorted(OPS))
def test_an_output_past_its_bound_fails(name: str) -> None:
    """One element that is twice its bound and a spacing away fails, and the message names it."""
    op = OPS[name]
    case = next(
        case
        for case in _small(op)
        if all(math.prod(form.shape) for form in op.forms(case).values())
    )
    passed = inputs(op, case, "cpu")
    outputs = _outputs(op, case, passed)
    first, form = next(iter(op.forms(case).items()))
    if form.dtype.itemsize == 1:
        outputs[first] = (-outputs[first].float()).to(form.dtype)
    else:
        tolerances = bound(op, **passed)
        tolerance = tolerances[first] if isinstance(tolerances, dict) else tolerances
        exact = op.oracle(case, passed)[first]
        assert exact is not None
        place = tolerance.nan_to_num(0.0, posinf=0.0).flatten().argmax()
        spacing = exact.abs().flatten()[place] * torch.finfo(form.dtype).eps
        wrong = exact.flatten()[place] + 2 * tolerance.flatten()[place] + spacing
        outputs[first] = outputs[first].clone()
        outputs[first].view(-1)[place] = wrong
    with pytest.raises(AssertionError, match=rf"{name} on .* bound: {first}\["):
        assert_matches(outputs, op, **passed)


def test_a_kernels_tuple_is_judged_in_the_ops_order() -> None:
    """A tuple with None where an option leaves an output out is what a kernel returns."""
    (case,) = [
        case
        for case in LAYER_NORM_BACKWARD.cases()
        if case.id() == "layer_norm_backward-m11-n264-float32-contiguous-no_bias"
    ]
    passed = inputs(LAYER_NORM_BACKWARD, case, "cpu")
    outputs = _outputs(LAYER_NORM_BACKWARD, case, passed)
    assert_matches((outputs["dx"], outputs["dweight"], None), LAYER_NORM_BACKWARD, **passed)
    wrong = outputs["dx"], outputs["dweight"], outputs["dweight"]
    with pytest.raises(AssertionError, match="dbias must be None for these arguments"):
        assert_matches(wrong, LAYER_NORM_BACKWARD, **passed)


def test_a_mapping_judges_the_outputs_that_it_names() -> None:
    """A kernel of some of an op's outputs is judged on these alone."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 8, 2, 16, generator=generator) for _ in range(3))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    assert_matches({"out": out}, ATTENTION_FORWARD, q=q, k=k, v=v)
    with pytest.raises(AssertionError, match="deterministic bound: out"):
        assert_matches({"out": out}, ATTENTION_FORWARD, q=q, k=k, v=v, scale=0.26)


def _norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def test_any_torch_function_is_a_reference() -> None:
    """Its operations give truth and bound; the outputs' dtype is the kernel's choice."""
    x = torch.randn(8, 100, generator=torch.Generator().manual_seed(2))
    assert_matches(_norm(x), reference=_norm, x=x)
    assert_matches(_norm(x).bfloat16(), _norm, x=x)
    with pytest.raises(AssertionError, match=r"_norm: deterministic bound: output\["):
        assert_matches(_norm(x.bfloat16()).float(), reference=_norm, x=x)
    both = (x.sum(-1), x.amax(-1))
    assert_matches(both, reference=lambda x: (x.sum(-1), x.amax(-1)), x=x)
    with pytest.raises(AssertionError, match="got 1 outputs, not 2: output0, output1"):
        assert_matches(both[0], reference=lambda x: (x.sum(-1), x.amax(-1)), x=x)


def test_a_module_is_a_reference_with_its_parameters() -> None:
    """They are made float64 for the truth, and keep their dtype for the kernel."""
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(2))
    linear = torch.nn.Linear(40, 5)
    y = linear(x)
    assert_matches(y, reference=linear, input=x)
    assert linear.weight.dtype == torch.float32
    with pytest.raises(AssertionError, match=r"Linear: deterministic bound: output\["):
        assert_matches(y * 1.001, reference=linear, input=x)
    norm = torch.nn.BatchNorm1d(40)
    with pytest.raises(OpError, match=r"changes its argument BatchNorm1d\.num_batches_tracked"):
        assert_matches(norm(x), reference=norm, input=x)
    assert_matches(norm.eval()(x), reference=norm, input=x)


def test_results_that_are_no_tensors_and_complex_numbers_are_refused() -> None:
    """A bound of 0 was derived for what a Fourier transform's result became."""
    x = torch.randn(4, 16)
    returned: list[tuple[Callable[..., Any], str]] = [
        (lambda x: {"y": x}, "returns the type dict; return a tensor, or a tuple of tensors"),
        (lambda x: x.stride(), "returns the type int"),
        (lambda x: [x, x], "returns the type list"),
    ]
    for function, sentence in returned:
        with pytest.raises(OpError, match=sentence):
            assert_matches(x, reference=function, x=x)
    with pytest.raises(OpError, match=r"complex numbers \(torch.fft.rfft\)"):
        assert_matches(torch.fft.rfft(x).abs(), reference=lambda x: torch.fft.rfft(x).abs(), x=x)
    with pytest.raises(OpError, match="x is complex"):
        assert_matches(x.abs(), reference=torch.abs, x=x.to(torch.complex64))


_OVERFLOWING: list[Callable[[Tensor], Tensor]] = [
    lambda x: (4 * x) * 0.25,  # a power of two rounds nothing
    lambda x: (x + x) * 0.25 + x,
    lambda x: (x + 3 * x) - 3 * x,
    lambda x: x.mean(-1) + x[:, 0],
    lambda x: torch.nn.functional.huber_loss(x, x * 0.5),
    lambda x: torch.nn.functional.layer_norm(x, (8,)),
    lambda x: (x @ x.mT) * 1e-38,
]


@pytest.mark.parametrize("function", _OVERFLOWING)
def test_a_number_that_overflows_on_the_way_is_no_failure(
    function: Callable[[Tensor], Tensor],
) -> None:
    """The infinity, or a NaN of two of them, was refused where the truth is finite."""
    x = 1e38 * (torch.rand(4, 8, generator=torch.Generator().manual_seed(0)) + 1)
    output = function(x)
    assert not output.isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoPowerWarning)
        assert_matches(output, reference=function, x=x)
    small = x * 1e-38
    with pytest.raises(AssertionError, match="non-finite values"):
        assert_matches(output, reference=function, x=small)


def test_rms_norm_without_eps_has_that_of_fp32() -> None:
    """The truth had that of float64: rows near zero were wrong in every kernel."""
    x = 1e-3 * torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16):
        kernel_input = x.to(dtype)
        output = torch.nn.functional.rms_norm(kernel_input, (32,))
        assert_matches(output, reference=torch.nn.RMSNorm(32), x=kernel_input)
        assert_matches(output, lambda x: torch.rms_norm(x, (32,), None, None), x=kernel_input)
    exact = torch.nn.functional.rms_norm(x, (32,), None, 1e-16)
    with pytest.raises(AssertionError, match="bound"):
        assert_matches(exact, reference=torch.nn.RMSNorm(32), x=x)


def test_the_end_of_another_dtype_is_no_failure() -> None:
    """The function makes float64's largest number of an infinity, and a kernel that of float32."""
    x = torch.tensor([[1.0, math.inf, -math.inf, math.nan, 2.0]])
    right = x.nan_to_num()
    assert_matches(right, reference=torch.nan_to_num, input=x)
    with pytest.raises(AssertionError, match="got 1, expected 0"):
        assert_matches(x.nan_to_num(nan=1.0), reference=torch.nan_to_num, input=x)


_ROWS = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
_WITH_A_TIE = torch.tensor([[1.0, 3.0, 2.0, 3.0]])


def _other_place(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    return values, (places + 1) % 50


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        (lambda x: x.argmax(1), lambda x: x.argmax(1), lambda x: (x.argmax(1) + 1) % 50),
        (lambda x: x.argmax(1), lambda x: x.argmax(1).int(), lambda x: x.argmin(1)),
        (
            lambda x: torch.topk(x, 3),
            lambda x: tuple(torch.topk(x, 3)),
            lambda x: _other_place(*torch.topk(x, 3)),
        ),
        (lambda x: x > 0, lambda x: x > 0, lambda x: x >= x.amin()),
        (lambda x: (8 * x).int(), lambda x: (8 * x).int(), lambda x: (8 * x).int() + 1),
    ],
    ids=["argmax", "argmax in int32", "topk", "bool", "truncated"],
)
def test_whole_numbers_are_judged_by_what_they_say(
    function: Callable[[Tensor], Any],
    right: Callable[[Tensor], Any],
    wrong: Callable[[Tensor], Any],
) -> None:
    """An index is right where its value is the extreme; other whole numbers are exact."""
    assert_matches(right(_ROWS), reference=function, x=_ROWS)
    with pytest.raises(AssertionError, match="deterministic bound"):
        assert_matches(wrong(_ROWS), reference=function, x=_ROWS)


def test_first_index_of_a_tie_is_right() -> None:
    """PyTorch promises the first of two largest."""
    assert_matches(torch.tensor([1]), reference=lambda x: x.argmax(1), x=_WITH_A_TIE)
    with pytest.raises(AssertionError, match="of equal numbers 1 is the first"):
        assert_matches(torch.tensor([3]), reference=lambda x: x.argmax(1), x=_WITH_A_TIE)


def test_declared_numerics_widen_the_bound() -> None:
    """A kernel whose sums round coarsely passes once it says so."""
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(3))
    coarse = x.double().sum(-1) * (1 + 2.0**-17)
    with pytest.raises(AssertionError):
        assert_matches(coarse.float(), reference=lambda x: x.sum(-1), x=x.abs())
    coarse = x.abs().double().sum(-1) * (1 + 2.0**-17)
    numerics = Numerics(accumulation_roundoff=2.0**-16)
    assert_matches(coarse.float(), reference=lambda x: x.sum(-1), x=x.abs(), numerics=numerics)


def test_sums_of_equal_numbers_in_sequence_match() -> None:
    """Their roundings repeat, so that the deterministic bound alone is asked."""
    x = torch.full((3, 16384), 0.1)
    in_sequence = torch.from_numpy(np.cumsum(x.numpy(), axis=1, dtype=np.float32)[:, -1].copy())
    assert_matches(in_sequence, reference=lambda x: x.sum(-1), x=x)


@pytest.mark.parametrize(
    ("values", "vary"),
    [
        (lambda draw: torch.randn(32, 64, generator=draw), True),
        (lambda draw: torch.randn(32, 64, generator=draw).bfloat16(), True),
        (lambda draw: torch.rand(2, 3, 16, 16, generator=draw), True),
        (lambda draw: torch.randn(1, 2, generator=draw), True),
        (lambda draw: torch.randn(32, 64, generator=draw).relu(), False),
        (lambda draw: torch.randn(32, 1, generator=draw).expand(32, 64), False),
        (lambda draw: torch.randn(32, 1, generator=draw).repeat(1, 64), False),
        (lambda _: torch.arange(2048.0).view(32, 64), False),
        (lambda _: torch.linspace(0, 1, 2048).view(32, 64).sin(), False),
        (lambda _: torch.zeros(4, 4), False),
    ],
)
def test_repeating_values_are_recognised(
    values: Callable[[torch.Generator], Tensor], *, vary: bool
) -> None:
    """Equal neighbours, ramps and tensors that are mostly one value don't vary; drawn ones do."""
    assert values_vary({"x": values(torch.Generator().manual_seed(4))}) is vary


def test_arguments_that_dont_fit_are_refused_in_a_sentence() -> None:
    """Names, shapes, dtypes, devices, options: a mistake in a test is no verdict."""
    x = torch.randn(4, 8)
    mistakes: list[tuple[Callable[[], None], str]] = [
        (lambda: assert_matches(x, SOFTMAX_FORWARD, y=x), "no argument y; it has x"),
        (lambda: assert_matches(x, SOFTMAX_FORWARD), "needs the argument x"),
        (lambda: assert_matches(x, SOFTMAX_FORWARD, x=[1.0]), "x is a list, and must be a tensor"),
        (lambda: assert_matches(x, SOFTMAX_FORWARD, x=x[0]), "must have 2 axes"),
        (lambda: assert_matches(x, SOFTMAX_FORWARD, x=x.double()), "x is float64, and bounds"),
        (lambda: assert_matches(x, SOFTMAX_FORWARD, x=x, reference=_norm), "and not both"),
        (lambda: assert_matches(x, x=x), "give an op, or a function"),
        (lambda: assert_matches(x, "softmax", x=x), "no op and no function"),  # type: ignore[arg-type]
        (lambda: assert_matches(x, reference=_norm, eps=1.0), "has no tensor among its arguments"),
        (
            lambda: assert_matches(x, RMS_NORM_FORWARD, x=x, weight=x[0, :5]),
            r"weight has the shape \(5,\), and must have \(8,\)",
        ),
        (
            lambda: assert_matches(x, RMS_NORM_FORWARD, x=x, weight=x[0].to("meta")),
            "lie on several devices: x on cpu, weight on meta",
        ),
        (
            lambda: assert_matches(
                x, ATTENTION_FORWARD, q=x[None, None], k=x[None, None], v=x[None, None].half()
            ),
            "v is float16, and must be float32",
        ),
        (
            lambda: assert_matches(
                x,
                ATTENTION_FORWARD,
                q=x[None, None],
                k=x[None, None],
                v=x[None, None],
                cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32),
                cu_seqlens_k=torch.tensor([0, 1], dtype=torch.int32),
                max_seqlen_q=1,
                max_seqlen_k=1,
                causal=True,
                window=(-1, 0),
            ),
            "window's left limit is -1; write None",
        ),
    ]
    for mistake, sentence in mistakes:
        with pytest.raises(ArgumentsError, match=sentence):
            mistake()


def test_an_argument_that_was_changed_in_place_is_refused() -> None:
    """A gradient that was added to holds the result: the value from before is the argument."""
    case = next(case for case in LAYER_NORM_BACKWARD.cases() if "accumulate" in case.options)
    passed = inputs(LAYER_NORM_BACKWARD, case, "cpu")
    outputs = _outputs(LAYER_NORM_BACKWARD, case, passed)
    assert_matches(outputs, LAYER_NORM_BACKWARD, **passed)
    with pytest.raises(ArgumentsError, match="dweight was changed in place; pass a clone"):
        assert_matches(outputs | {"dweight": passed["dweight"]}, LAYER_NORM_BACKWARD, **passed)


def test_a_wrong_form_fails_with_the_form_that_is_right() -> None:
    """Shape, dtype, number and kind of outputs are the kernel's to get right."""
    x = torch.randn(4, 8)
    y = x.softmax(-1)
    wrong: list[tuple[Any, str]] = [
        (y[:2], r"y must have shape \(4, 8\), got \(2, 8\)"),
        (y.half(), "y must be float32, got float16"),
        ((y, y), "got 2 outputs, not 1: y"),
        (None, "got a NoneType, not a tensor"),
        ({"z": y}, "there is no output z; the outputs are y"),
        ({}, "the mapping is empty"),
        ({"y": 3.0}, "y must be a torch.Tensor, got a float"),
        (y.to_sparse(), "got a sparse one"),
    ]
    for outputs, sentence in wrong:
        with pytest.raises(AssertionError, match=f"wrong outputs: .*{sentence}"):
            assert_matches(outputs, SOFTMAX_FORWARD, x=x)


def test_non_finite_values_are_right_where_the_truth_has_them() -> None:
    """NaN in, NaN out passes; NaN where the truth is finite fails, by the rule for that."""
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(5))
    y = x.softmax(-1)
    y[1, 2] = torch.nan
    with pytest.raises(AssertionError, match=r"non-finite values: y\[1, 2\]: got nan, expected"):
        assert_matches(y, SOFTMAX_FORWARD, x=x)
    x[1] = torch.nan
    y[1] = torch.nan
    assert_matches(y, SOFTMAX_FORWARD, x=x)


def test_a_bound_that_says_nothing_warns() -> None:
    """A check that nothing can fail must not look like one that passed."""
    x = torch.randn(2, 4096, generator=torch.Generator().manual_seed(6))
    coarse = Numerics(accumulation_roundoff=2.0**-8)
    with pytest.warns(NoPowerWarning, match="shows nothing"):
        assert_matches(torch.zeros(2), reference=_difference, x=x * 1e3, numerics=coarse)


def _difference(x: Tensor) -> Tensor:
    return torch.tanh(x.sum(-1) - x.flip(-1).sum(-1))


def test_bound_is_one_tensor_or_one_for_each_output() -> None:
    """A function's bound follows the dtype that its output is to have."""
    x = torch.randn(4, 8)
    one = bound(SOFTMAX_FORWARD, x=x)
    assert isinstance(one, Tensor) and one.shape == x.shape and one.dtype == torch.float64
    single = bound(_norm, x=x)
    half = bound(_norm, x=x, output_dtype=torch.bfloat16)
    assert isinstance(single, Tensor) and isinstance(half, Tensor)
    assert bool((half > single).all())
    with pytest.raises(ArgumentsError, match="leave output_dtype out"):
        bound(SOFTMAX_FORWARD, x=x, output_dtype=torch.float32)
    several = bound(lambda x: (x.sum(), x.amax()), x=x)
    assert isinstance(several, dict) and list(several) == ["output0", "output1"]


def test_cases_are_those_that_the_domain_holds() -> None:
    """Each is a parameter with the case's id; none needs a GPU, or minutes of an interpreter."""
    domain = Domain(dtypes=(torch.bfloat16,), sizes={"n": (1, 64)})
    listed = cases(SOFTMAX_FORWARD, domain, device="cpu")
    assert listed
    for parameter in listed:
        (case,) = parameter.values
        assert parameter.id == case.id()
        assert domain.reject(case, 90, "cpu") is None
    full = cases(SOFTMAX_FORWARD, domain, "full", device="cpu")
    assert len(full) >= len(listed)


def test_a_hypothesis_strategy_draws_cases_of_the_domain() -> None:
    """Each example is a case that the op and the domain allow."""
    hypothesis = pytest.importorskip("hypothesis")
    domain = Domain(dtypes=(torch.float32,), strides="contiguous")

    @hypothesis.settings(max_examples=15, deadline=None, database=None)  # type: ignore[untyped-decorator]
    @hypothesis.given(case=case_strategy(SOFTMAX_FORWARD, domain, device="cpu"))  # type: ignore[untyped-decorator]
    def softmax_matches(case: Case) -> None:
        assert domain.reject(case, 90, "cpu") is None
        x = inputs(SOFTMAX_FORWARD, case, "cpu")
        assert_matches(x["x"].softmax(-1), SOFTMAX_FORWARD, **x)

    softmax_matches()


def test_importing_the_assertion_imports_no_triton() -> None:
    """Whoever imports triton first decides whether it interprets: that is the user's program."""
    code = "import kernel_workbench.testing, sys; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_case_read_off_drawn_arguments_is_the_case_that_drew_them() -> None:
    """Sizes, dtypes and options come back, of every op; layout and values don't matter."""
    for op in OPS.values():
        assert op.case_from is not None
        for case in _small(op):
            read = op.case_from(op.inputs(case, _CPU))
            over = {option for option in case.options if option.startswith("bias_over_")}
            # Nobody can say of a bias with one batch whether it is spread over batches.
            wanted = replace(case, tier="ci", seed=0, why="", options=case.options - over)
            options = {option for option in read.options if not option.startswith("bias_over_")}
            kept = replace(read, options=frozenset(options))
            if "no_weight" in case.options:
                kept = replace(kept, weight_dtype=case.weight_dtype)
            assert kept == wanted


@pytest.mark.parametrize("module", [testing, arguments])
def test_examples_in_docstrings_show_what_happens(module: ModuleType) -> None:
    """Each example runs as it is written."""
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0
