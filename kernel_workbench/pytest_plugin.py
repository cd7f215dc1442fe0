"""The marker `kernel` for a team's own tests: a test over an op's cases, judged by what it returns.

    @pytest.mark.kernel(RMS_NORM_FORWARD, Domain(dtypes=(torch.bfloat16,)))
    def test_my_norm(x, weight, eps):
        return my_norm(x, weight, eps)

The test function is called once for each case that the domain holds. It takes arguments of the op
by their names, `inputs` (all of them as a dictionary) or `case`, and fixtures as any test does.

This module imports nothing of the workbench until a test has the marker: pytest loads it in every
run of an environment in which the workbench is installed.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kernel_workbench.oracles.op import Case, Numerics, Op

_MARKER = (
    "kernel(op, domain=None, tier='ci', *, numerics=None, device=None): call the test once for "
    "each case of the op that the domain holds, and judge what it returns"
)
_PROPERTY = "kernel_workbench"
_MOST_SHOWN = 5  # wrong cases of a test in the summary
_NAMES = ("inputs", "case")  # what a test takes besides arguments of the op


class _MarkerArguments:
    """The arguments of a marker, checked."""

    def __init__(
        self,
        op: Op | str,
        domain: Any = None,  # noqa: ANN401  (checked below: its type would be an import)
        tier: str = "ci",
        *,
        numerics: Numerics | None = None,
        device: str | None = None,
    ) -> None:
        from kernel_workbench.kernels.domain import Domain  # noqa: PLC0415
        from kernel_workbench.oracles import OPS  # noqa: PLC0415
        from kernel_workbench.oracles.op import Op as OpType  # noqa: PLC0415

        chosen = OPS.get(op) if isinstance(op, str) else op
        if not isinstance(chosen, OpType):
            raise TypeError(f"{op!r} is no op; import one, as SOFTMAX_FORWARD")
        if domain is not None and not isinstance(domain, Domain):
            raise TypeError(f"{domain!r} is no domain; write Domain(dtypes=(...), ...)")
        if tier not in {"ci", "full"}:
            raise TypeError(f"tier is {tier!r}; write 'ci' or 'full'")
        if device not in {None, "cpu", "cuda"}:
            raise TypeError(f"device is {device!r}; write 'cpu' or 'cuda'")
        self.op, self.domain, self.tier = chosen, domain, tier
        self.numerics, self.device = numerics, device


def _plan_of(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], where: str
) -> _MarkerArguments:
    """Return what a marker's arguments ask for. Raises UsageError."""
    try:
        return _MarkerArguments(*arguments, **keywords)
    except TypeError as error:
        message = str(error).replace("_MarkerArguments.__init__()", "the marker")
        raise pytest.UsageError(f"{where}: @pytest.mark.kernel: {message}") from error


def _marker_of(item: pytest.Item) -> pytest.Mark | None:
    """Return a test's marker; a marker of that name without arguments is another program's."""
    marker = item.get_closest_marker("kernel")
    return marker if marker is not None and (marker.args or marker.kwargs) else None


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and count what its tests find."""
    config.addinivalue_line("markers", _MARKER)
    config.pluginmanager.register(_Summary(), "kernel-workbench-summary")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread a test that has the marker over its cases."""
    marker = _marker_of(metafunc.definition)
    if marker is None:
        return
    from kernel_workbench.testing import cases  # noqa: PLC0415

    where = metafunc.definition.nodeid
    plan = _plan_of(marker.args, marker.kwargs, where)
    names = _taken_names(metafunc.function, plan.op)
    if not names:
        listed = ", ".join([*plan.op.arguments, *_NAMES])
        raise pytest.UsageError(
            f"{where}: it takes no argument of {plan.op.name}; name some of {listed}"
        )
    served = cases(plan.op, plan.domain, plan.tier, device=plan.device)  # type: ignore[arg-type]
    if not served:
        raise pytest.UsageError(
            f"{where}: the domain holds no case of {plan.op.name} on this machine; widen it"
        )
    # The tensors are made when the test runs: until then each argument is its case.
    parameters = [
        pytest.param(*parameter.values * len(names), id=parameter.id) for parameter in served
    ]
    metafunc.parametrize(names, parameters)


def _taken_names(function: Callable[..., object], op: Op) -> list[str]:
    """Return the names of a test's arguments that its case gives, in their order."""
    known_names = {*op.arguments, *_NAMES}
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name in known_names and parameter.default is inspect.Parameter.empty
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test that has the marker on its case, and judge what it returns."""
    marker = _marker_of(pyfuncitem)
    if marker is None:
        return None
    plan = _plan_of(marker.args, marker.kwargs, pyfuncitem.nodeid)
    names = _taken_names(pyfuncitem.obj, plan.op)
    case = cast("Case", pyfuncitem.funcargs[names[0]])
    problem: str | None = None
    try:
        problem = _problem(pyfuncitem, plan, case, names)
    except BaseException as error:
        problem = f"it raised {type(error).__name__}"
        raise
    finally:
        verdict = {"test": pyfuncitem.nodeid.partition("[")[0], "case": case.id(), "why": problem}
        pyfuncitem.user_properties.append((_PROPERTY, verdict))
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    return True


def _problem(
    item: pytest.Function, plan: _MarkerArguments, case: Case, names: list[str]
) -> str | None:
    """Return why the outputs of a test are wrong; None where they are right."""
    import torch  # noqa: PLC0415
    from torch import Tensor  # noqa: PLC0415

    from kernel_workbench.testing import inputs, problem_on_case  # noqa: PLC0415

    passed = inputs(plan.op, case, plan.device)
    values = dict(passed) | {"inputs": passed, "case": case}
    wanted = inspect.signature(item.obj).parameters
    arguments = {name: item.funcargs[name] for name in wanted if name in item.funcargs}
    outputs = item.obj(**arguments | {name: values.get(name) for name in names})
    if inspect.isawaitable(outputs):
        raise TypeError("a test with @pytest.mark.kernel is a plain function, not a coroutine")
    before = inputs(plan.op, case, plan.device)  # the same values, drawn again
    for name in [name for name in before if name not in plan.op.updates]:
        value, after = before[name], passed.get(name)
        if not isinstance(value, Tensor) or not isinstance(after, Tensor):
            continue
        if not torch.isclose(value, after, rtol=0, atol=0, equal_nan=True).all():
            return f"{case.id()}: changed input: {name} isn't what was passed"
    return problem_on_case(outputs, plan.op, case, before, plan.numerics)


class _Summary:
    """The verdicts of tests with the marker; xdist brings reports of other processes."""

    def __init__(self) -> None:
        self.verdicts: list[dict[str, str | None]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdict of a test that was called."""
        if report.when == "call":
            verdicts = [value for name, value in report.user_properties if name == _PROPERTY]
            self.verdicts += cast("list[dict[str, str | None]]", verdicts)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many cases were right, and which of each test were wrong."""
        if not self.verdicts:
            return
        terminalreporter.section("kernel-workbench")
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> Iterator[str]:
        for test in dict.fromkeys(verdict["test"] for verdict in self.verdicts):
            of_test = [verdict for verdict in self.verdicts if verdict["test"] == test]
            wrong = [verdict for verdict in of_test if verdict["why"] is not None]
            yield f"{test}: {len(of_test):,} cases, {len(wrong):,} wrong"
            for verdict in sorted(wrong, key=_length)[:_MOST_SHOWN]:
                yield f"  {verdict['why']}"
            if len(wrong) > _MOST_SHOWN:
                yield f"  and {len(wrong) - _MOST_SHOWN:,} more"


def _length(verdict: dict[str, str | None]) -> tuple[int, str]:
    """Sort plain cases first: the id of a case leaves out what is as usual."""
    case = verdict["case"] or ""
    return len(case), case
