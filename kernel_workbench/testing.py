"""Judge tensors in a test of your own, by the truth and the bounds of the workbench.

    from kernel_workbench import RMS_NORM_FORWARD
    from kernel_workbench.testing import assert_matches

    def test_my_norm():
        x, weight = torch.randn(64, 512).bfloat16(), torch.ones(512).bfloat16()
        assert_matches(my_norm(x, weight), RMS_NORM_FORWARD, x=x, weight=weight)

The values and the device are the test's own. Everything happens in the test's process: nothing is
registered, and no record is written. A kernel that is to be judged as hostile code, on values that
it can't foresee, is judged by `kernel_workbench.accuracy`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from kernel_workbench.kernels.domain import Domain
from kernel_workbench.oracles import analysis
from kernel_workbench.oracles.cases.arguments import values_vary
from kernel_workbench.oracles.op import (
    ArgumentsError,
    Bound,
    Case,
    Inputs,
    Numerics,
    Op,
    OutputForm,
    Outputs,
    Tier,
    dtype_name,
)
from kernel_workbench.oracles.reference.checks import one_sentence, watched_truth
from kernel_workbench.oracles.reference.signature import OpError, place_of
from kernel_workbench.suites.accuracy.verdict import judge
from kernel_workbench.suites.sandbox.call import Call

__all__ = [
    "ArgumentsError",
    "NoPowerWarning",
    "assert_matches",
    "bound",
    "case_strategy",
    "cases",
    "inputs",
]

Reference = Callable[..., "Tensor | tuple[Tensor, ...]"]
Result = Tensor | Sequence[Tensor | None] | Mapping[str, Tensor | None]

# A case of more, in arithmetic or in bytes, takes an interpreter on a CPU minutes.
_MOST_FLOPS_ON_CPU, _MOST_BYTES_ON_CPU = 2e7, 2**24
_HOPPER = 9, 0  # the compute capability that a domain is asked about where there is no GPU


class NoPowerWarning(UserWarning):
    """The bounds allow any value, so that the outputs can't be wrong: the check shows nothing."""


def assert_matches(
    outputs: Result,
    op: Op | Reference | None = None,
    /,
    *,
    reference: Reference | None = None,
    numerics: Numerics | None = None,
    **arguments: Any,  # noqa: ANN401  (tensors, and numbers of any type)
) -> None:
    """Raise AssertionError where outputs are further from the truth than rounding explains.

    The truth is computed in float64 from the arguments as they are, so that casts of inputs count
    for nobody. The bound of each element follows from the arithmetic: from the sizes, the values,
    the output's dtype and `numerics`.

    Args:
        outputs: the result of the kernel: a tensor, a tuple in the op's order with None for an
            output that an option leaves out, or a mapping by name, of which the outputs that it
            names are judged.
        op: an op of the workbench, as `RMS_NORM_FORWARD`, or a torch function.
        reference: a torch function or module in place of `op`. It is run in float64, and its
            operations give the bound; it must be a function of its arguments alone, beside a
            module's parameters and buffers.
        numerics: what the kernel does beside plain float32 accumulation, as
            `Numerics(accumulation_roundoff=2**-23)` for tensor cores; by default plain.
        **arguments: what the kernel was called on, by the op's or the function's names. A tensor
            that the kernel changes in place is passed as it was before the call.

    Raises:
        AssertionError: an output has another shape or dtype than it must, holds a NaN or an
            infinity where the truth is finite, or is beyond its bound. The message has the words of
            a report.
        ArgumentsError: the arguments aren't the op's, or don't fit one another.
        OpError: the function calls an operation whose errors have no rule; the message names its
            line.

    Example:
        >>> import torch
        >>> x = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
        >>> assert_matches(x.softmax(-1), reference=lambda x: torch.softmax(x, -1), x=x)
        >>> y = x.bfloat16().softmax(-1).float()
        >>> assert_matches(y, reference=lambda x: torch.softmax(x, -1), x=x)
        Traceback (most recent call last):
        AssertionError: <lambda>: deterministic bound: output[...]: got ...
    """
    problem = _problem_of(_subject(op, reference, arguments), outputs, numerics or Numerics())
    if problem is not None:
        raise AssertionError(problem)


def bound(
    op: Op | Reference,
    /,
    *,
    numerics: Numerics | None = None,
    output_dtype: torch.dtype | None = None,
    **arguments: Any,  # noqa: ANN401  (likewise)
) -> Tensor | dict[str, Tensor]:
    """Return how far each element of a correct kernel's output may be from the truth.

    Args:
        op: an op of the workbench, or a torch function.
        numerics: as in `assert_matches`.
        output_dtype: the dtype of a function's outputs; by default that of the function's first
            tensor. An op knows the dtype of each output.
        **arguments: what the kernel is called on, by name.

    Returns:
        A tensor of float64 in the shape of the output, or a dictionary of such tensors where there
        are several outputs. An element is infinite where nothing is promised, and NaN where the
        truth isn't finite: there the value itself is right or wrong.

    Raises:
        ArgumentsError: the arguments aren't the op's, or don't fit one another.

    Example:
        >>> import torch
        >>> x = torch.ones(2, 3)
        >>> bool((bound(lambda x: x.sum(-1), x=x) < 1e-5).all())
        True
    """
    subject = _subject(op, None, arguments)
    bounds = subject.bounds(
        numerics or Numerics(), {name: output_dtype for name in subject.outputs if output_dtype}
    )
    tolerances = {name: _tolerance(one) for name, one in bounds.items()}
    return tolerances if len(tolerances) > 1 else next(iter(tolerances.values()))


def cases(
    op: Op,
    domain: Domain | None = None,
    tier: Tier = "ci",
    *,
    device: Literal["cpu", "cuda"] | None = None,
    sm: int | None = None,
) -> list[Any]:
    """Return an op's cases that a domain holds, as parameters of a test.

    A test takes them by `@pytest.mark.parametrize("case", cases(SOFTMAX_FORWARD))`. In the cases
    each pair of kinds of sizes, dtypes, layouts, distributions and options meets.

    Args:
        op: the op.
        domain: what the kernel serves; by default contiguous tensors of every dtype.
        tier: "ci" has small cases, "full" adds the sizes of models.
        device: where the kernel runs; by default the GPU where torch finds one. On a CPU cases are
            left out that take an interpreter minutes.
        sm: the compute capability times ten; by default that of the GPU, and 90 on a CPU.

    Returns:
        A list of `pytest.param`, each with a `Case`, whose id is the case's.

    Raises:
        ArgumentsError: there is no such tier.

    Example:
        >>> from kernel_workbench import SOFTMAX_FORWARD, Domain
        >>> small = cases(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,)), device="cpu")
        >>> small[0].values[0].op
        'softmax_forward'
    """
    import pytest  # noqa: PLC0415  (this part alone needs it)

    if tier not in {"ci", "full"}:
        raise ArgumentsError(f"tier is {tier!r}; write 'ci' or 'full'")
    serves = _served(op, domain, device, sm)
    listed = [case for case in op.cases() if (tier == "full" or case.tier == "ci") and serves(case)]
    return [pytest.param(case, id=case.id()) for case in listed]


def inputs(op: Op, case: Case, device: torch.device | str | None = None) -> dict[str, Any]:
    """Return the arguments of a case by name: the same values at every call.

    Args:
        op: the op that the case is of.
        case: one of `cases`, or of `case_strategy`.
        device: where the tensors lie; by default on the GPU where torch finds one.

    Raises:
        ArgumentsError: the case is none of the op's.
    """
    if not isinstance(case, Case):
        raise ArgumentsError(f"got a {type(case).__name__} as a case; take one of cases({op.name})")
    if case.op != op.name:
        raise ArgumentsError(f"{case.id()} is a case of {case.op}, and the op is {op.name}")
    return dict(op.inputs(case, torch.device(device or _device())))


def case_strategy(
    op: Op,
    domain: Domain | None = None,
    *,
    device: Literal["cpu", "cuda"] | None = None,
    sm: int | None = None,
) -> Any:  # noqa: ANN401  (hypothesis, which may be absent, has its type)
    """Return a Hypothesis strategy of the cases that an op and a domain allow.

    A level is drawn for each thing that cases differ in: sizes, dtype, layout, distribution and
    each option. Examples shrink to the plain level of each.

    Args:
        op: the op.
        domain: as in `cases`.
        device: as in `cases`.
        sm: as in `cases`.

    Raises:
        ImportError: hypothesis isn't installed.

    Example:
        @given(case=case_strategy(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,))))
        def test_softmax(case):
            x = inputs(SOFTMAX_FORWARD, case)
            assert_matches(softmax(**x), SOFTMAX_FORWARD, **x)
    """
    strategies = importlib.import_module("hypothesis.strategies")
    from kernel_workbench.oracles.cases.factors import assembled  # noqa: PLC0415
    from kernel_workbench.oracles.cases.names import objection  # noqa: PLC0415

    serves = _served(op, domain, device, sm)
    levels = [
        strategies.sampled_from([part for parts in factor.levels.values() for part in parts])
        for factor in op.allowed.factors
    ]
    drawn = strategies.builds(
        lambda parts, seed: assembled(op, parts, seed=seed),
        strategies.tuples(*levels),
        strategies.integers(0, 9_999),
    )
    return drawn.filter(lambda case: objection(op, case) is None and serves(case))


def problem_on_case(
    outputs: Result, op: Op, case: Case, arguments: Inputs, numerics: Numerics | None = None
) -> str | None:
    """Return why outputs of a kernel on a case of the op are wrong; None where they are right.

    A case knows its values' distribution, and some are exact probes whose bound is 0.
    """
    plain = _plain(arguments)
    subject = _OfOp(op, case, plain, op.oracle(case, plain), drawn=True)
    return _problem_of(subject, outputs, numerics or Numerics())


def _device() -> Literal["cpu", "cuda"]:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _served(
    op: Op, domain: Domain | None, device: Literal["cpu", "cuda"] | None, sm: int | None
) -> Callable[[Case], bool]:
    """Return whether a domain holds a case and the device gets through it."""
    place = device or _device()
    if sm is None:
        major, minor = torch.cuda.get_device_capability() if place == "cuda" else _HOPPER
        sm = 10 * major + minor
    plain = Domain(
        dtypes=(torch.float32, torch.float16, torch.bfloat16),
        weight_dtypes=(torch.float32, torch.float16, torch.bfloat16),
        strides="contiguous",
    )
    asked_domain = domain or plain

    def serves(case: Case) -> bool:
        if asked_domain.reject(case, sm, place) is not None:
            return False
        if place == "cuda":
            return True
        if case.options & op.gpu_options or op.bytes(case) > _MOST_BYTES_ON_CPU:
            return False
        return op.flops(case) <= _MOST_FLOPS_ON_CPU

    return serves


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without gradients. Raises ArgumentsError for tensors on two devices."""
    plain = {
        name: value.detach() if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }
    devices = {name: value.device for name, value in plain.items() if isinstance(value, Tensor)}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ArgumentsError(f"the arguments lie on several devices: {listed}; move them to one")
    return plain


@dataclass(frozen=True, slots=True)
class _OfOp:
    """An op on arguments: names of outputs, truth and bounds. drawn: the op drew the arguments."""

    op: Op
    case: Case
    arguments: Inputs
    truth: Outputs
    drawn: bool

    @property
    def name(self) -> str:
        return self.case.id() if self.drawn else f"{self.op.name} on {_sizes(self.case)}"

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.op.outputs

    def forms(self, outputs: Mapping[str, Tensor | None]) -> dict[str, OutputForm]:
        """Return the form that each output must have; an option may leave an output out."""
        del outputs
        return self.op.forms(self.case)

    def bounds(self, numerics: Numerics, dtypes: Mapping[str, torch.dtype]) -> dict[str, Bound]:
        if dtypes:
            raise ArgumentsError(
                f"{self.op.name} knows its outputs' dtypes; leave output_dtype out"
            )
        of_op = self.op.numerics.of(numerics)
        bounds = self.op.bound(self.case, self.arguments, self.truth, of_op)
        return bounds if self.drawn else _cautious(bounds, self.arguments)


@dataclass(frozen=True, slots=True)
class _OfFunction:
    """A torch function on arguments. written: the function that computes it, or a module."""

    written: Reference
    function: Reference
    arguments: Inputs
    truth: dict[str, Tensor]

    @classmethod
    def of(cls, written: Reference, arguments: Inputs) -> _OfFunction:
        """Compute the truth. Raises OpError."""
        function = written
        if isinstance(written, torch.nn.Module) and not isinstance(written, torch.jit.ScriptModule):
            function, arguments = _stateless(written, arguments)
        exact = watched_truth(written, function, arguments)
        for output in exact:
            if not isinstance(output, Tensor):
                name = type(output).__name__
                message = f"it returns the type {name}; return a tensor, or a tuple of tensors"
                raise OpError(f"{place_of(written)}: {message}")
        several = len(exact) > 1
        named = {f"output{place if several else ''}": tensor for place, tensor in enumerate(exact)}
        return cls(written, function, arguments, named)

    @property
    def name(self) -> str:
        return str(getattr(self.written, "__name__", type(self.written).__name__))

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.truth)

    def forms(self, outputs: Mapping[str, Tensor | None]) -> dict[str, OutputForm]:
        """Return the shapes of the truth in the dtypes that the kernel chose."""
        return {
            name: OutputForm(tuple(exact.shape), value.dtype)
            for name, exact in self.truth.items()
            if isinstance(value := outputs.get(name), Tensor)
        }

    def bounds(self, numerics: Numerics, dtypes: Mapping[str, torch.dtype]) -> dict[str, Bound]:
        tensors = [value for value in self.arguments.values() if isinstance(value, Tensor)]
        first = next((x.dtype for x in tensors if x.is_floating_point()), torch.float32)
        packed = {
            name: value.contiguous() if isinstance(value, Tensor) else value
            for name, value in self.arguments.items()
        }
        wanted = [dtypes.get(name, first) for name in self.truth]
        with one_sentence(self.written, f"{self.name}: to follow its errors failed"):
            derived = analysis.bounds(self.function, packed, numerics, wanted)
        return _cautious(dict(zip(self.truth, derived, strict=True)), self.arguments)


_Subject = _OfOp | _OfFunction


def _stateless(module: torch.nn.Module, arguments: Inputs) -> tuple[Reference, Inputs]:
    """Return a function of a module's arguments, parameters and buffers, and all of these."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = {f"{type(module).__name__}.{name}": name for name in state}

    def call(**values: Any) -> Any:  # noqa: ANN401  (whatever the module takes and returns)
        own = {name: values[argument] for argument, name in names.items()}
        passed = {name: values[name] for name in arguments}
        return torch.func.functional_call(module, own, (), passed)

    own = {argument: state[name].detach() for argument, name in names.items()}
    return call, {**arguments, **own}


def _subject(
    op: Op | Reference | None, reference: Reference | None, arguments: Mapping[str, Any]
) -> _Subject:
    """Return what computes the truth. Raises ArgumentsError."""
    if (op is None) == (reference is None):
        raise ArgumentsError("give an op, or a function as reference=..., and not both")
    chosen = op if op is not None else reference
    plain = cast("Inputs", _plain(arguments))
    if not isinstance(chosen, Op):
        if not callable(chosen):
            raise ArgumentsError(f"{chosen!r} is no op and no function; import an op by its name")
        if not any(isinstance(value, Tensor) for value in plain.values()):
            raise ArgumentsError("the function has no tensor among its arguments; pass one by name")
        return _OfFunction.of(chosen, plain)
    case = chosen.case_from(plain)
    problem = chosen.allowed.objection(case)
    if problem is not None:
        raise ArgumentsError(f"{chosen.name}: {problem}")
    return _OfOp(chosen, case, plain, chosen.oracle(case, plain), drawn=False)


def _sizes(case: Case) -> str:
    """Return sizes, dtype and options of a case in words."""
    sizes = " ".join(f"{name}={size}" for name, size in case.sizes)
    return " ".join([sizes, case.dtype_label, *sorted(case.options)])


def _cautious(bounds: dict[str, Bound], arguments: Mapping[str, object]) -> dict[str, Bound]:
    """Return the bounds, deterministic ones alone where roundings may repeat."""
    if values_vary(arguments):
        return bounds
    return {name: replace(one, probabilistic=None) for name, one in bounds.items()}


def _tolerance(one: Bound) -> Tensor:
    """Return the bound that decides, element by element: both must hold."""
    if one.probabilistic is None:
        return one.deterministic
    return torch.minimum(one.deterministic, one.probabilistic)


def _named(subject: _Subject, outputs: Result) -> dict[str, Tensor | None] | str:
    """Return outputs by name, or why the result can't be the op's, in a sentence."""
    names = subject.outputs
    listed = ", ".join(names)
    if isinstance(outputs, Mapping):
        unknown = [name for name in outputs if name not in names]
        if unknown:
            return f"there is no output {unknown[0]}; the outputs are {listed}"
        return dict(outputs) if outputs else f"the mapping is empty; the outputs are {listed}"
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    if not isinstance(outputs, tuple | list):
        return f"got a {type(outputs).__name__}, not a tensor or a tuple of {listed}"
    if len(outputs) != len(names):
        return f"got {len(outputs)} outputs, not {len(names)}: {listed}"
    return dict(zip(names, outputs, strict=True))


def _wrong_form(
    outputs: Mapping[str, object], forms: Mapping[str, OutputForm], subject: _Subject
) -> str | None:
    """Return what is wrong with the form of outputs; None where nothing is."""
    tensors = [value for value in subject.arguments.values() if isinstance(value, Tensor)]
    for name, value in outputs.items():
        if not isinstance(value, Tensor):
            if value is None and name not in forms and subject.truth.get(name) is None:
                continue
            return f"{name} must be a torch.Tensor, got a {type(value).__name__}"
        if name not in forms:
            return f"{name} must be None for these arguments, got a tensor"
        form = forms[name]
        if value.layout != torch.strided:
            return f"{name} must be a plain strided tensor, got a sparse one"
        if tuple(value.shape) != form.shape:
            return f"{name} must have shape {form.shape}, got {tuple(value.shape)}"
        if value.dtype != form.dtype:
            return f"{name} must be {dtype_name(form.dtype)}, got {dtype_name(value.dtype)}"
        if value.is_complex():
            return f"{name} is {dtype_name(value.dtype)}, and bounds are for real numbers alone"
        if tensors and value.device != tensors[0].device:
            return f"{name} must be on {tensors[0].device}, got {value.device}"
    return None


def _check_updates(subject: _Subject, outputs: Mapping[str, Tensor | None]) -> None:
    """Raise ArgumentsError for an argument that the kernel has changed in place already."""
    updates = subject.op.updates if isinstance(subject, _OfOp) else ()
    for name in updates:
        before, after = subject.arguments.get(name), outputs.get(name)
        if not isinstance(before, Tensor) or not isinstance(after, Tensor) or not before.numel():
            continue
        if before.data_ptr() == after.data_ptr():
            raise ArgumentsError(
                f"{name} was changed in place; pass a clone that was made before the call"
            )


def _problem_of(subject: _Subject, outputs: Result, numerics: Numerics) -> str | None:
    """Return why the outputs are wrong, in the words of a report; None where they are right."""
    named = _named(subject, outputs)
    if isinstance(named, str):
        return f"{subject.name}: wrong outputs: {named}"
    wrong = _wrong_form(named, subject.forms(named), subject)
    if wrong is not None:
        return f"{subject.name}: wrong outputs: {wrong}"
    _check_updates(subject, named)
    tensors = {name: value.detach() for name, value in named.items() if value is not None}
    own = {name: tensor.dtype for name, tensor in tensors.items()}
    dtypes = own if isinstance(subject, _OfFunction) else {}
    # One call, without the emulation, which is a measure of known values.
    call = Call(tensors, 0.0)
    verdict = judge(call, call, {**subject.truth}, subject.bounds(numerics, dtypes), numerics)
    if verdict.status == "no power":
        warnings.warn(
            f"{subject.name}: the bounds allow any value here, so that this check shows nothing",
            NoPowerWarning,
            stacklevel=3,
        )
    return None if verdict.rule is None else f"{subject.name}: {verdict.rule}: {verdict.reason}"
