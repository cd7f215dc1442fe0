"""docs/reference/report.md, report.schema.json and api.md, made of the classes and docstrings.

python -m tests.docs.report_reference --write docs/reference
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from kernel_workbench import api, recording, testing
from kernel_workbench.reports.arguments import CommandLine
from kernel_workbench.reports.run_report import (
    REPORT_SCHEMA_VERSION,
    Failure,
    Report,
    Rows,
    schema_text,
)

_REPORT_HEAD = f"""# A run as one JSON object

Made by `python -m tests.docs.report_reference --write docs/reference`.

`accuracy`, `search`, `bench` and `profile` print one JSON object to stdout by `--json`, and all
else to stderr. The version of its schema is {REPORT_SCHEMA_VERSION};
[report.schema.json](report.schema.json) is the JSON schema. The Python functions return the same
as a `Report` ([api.md](api.md)). A field that is missing is null. NaN and infinities are the
strings "NaN", "Infinity" and "-Infinity". The exit status is that of [verdicts.md](verdicts.md),
and `verdict` is the exit status in a word.
"""
_API_HEAD = """# Functions of the package

Made by `python -m tests.docs.report_reference --write docs/reference` of the docstrings.

[A how-to page](../how-to/python.md) shows the functions at work.
"""
_TITLES = {
    api: "The suites: `from kernel_workbench import accuracy`",
    testing: "In a test: `from kernel_workbench.testing import assert_matches`",
    recording: "Around a model: `from kernel_workbench import record`",
}


def report_text() -> str:
    """Return the page of a report: a table of fields for each class."""
    parts = [_REPORT_HEAD]
    for model in (Report, Failure, Rows):
        title = str(inspect.getdoc(model)).splitlines()[0]
        rows = [f"|`{name}`|{field.description}|" for name, field in model.model_fields.items()]
        head = ["|field|meaning|", "|---|---|"]
        parts.append("\n".join([f"## {model.__name__}", "", title, "", *head, *rows, ""]))
    return "\n".join(parts)


def api_text() -> str:
    """Return the page of functions: each public name with its signature and docstring."""
    return "\n".join([_API_HEAD, *map(_module, _TITLES)])


def _module(module: ModuleType) -> str:
    parts = [f"## {_TITLES[module]}", ""]
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing):
            parts += [f"### {name}", "", "```python", _signature(name, thing), "```", ""]
            parts += ["```text", str(inspect.getdoc(thing)), "```", ""]
        else:
            parts += [f"### {name}", "", str(inspect.getdoc(thing)).splitlines()[0], ""]
    return "\n".join(parts)


def _signature(name: str, function: Callable[..., object]) -> str:
    """Return a signature with an argument a line."""
    signature = inspect.signature(function)
    kinds: list[str] = []
    last = None
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and last is not parameter.KEYWORD_ONLY:
            kinds += ["/"] * (last is parameter.POSITIONAL_ONLY) + ["*"]
        kinds.append(_written(parameter))
        last = parameter.kind
    lines = "".join(f"    {text},\n" for text in kinds)
    return f"{name}(\n{lines}) -> {signature.return_annotation}"


def _written(parameter: inspect.Parameter) -> str:
    """Return a parameter whose annotation stands as it was written."""
    bare = parameter.replace(annotation=inspect.Parameter.empty)
    if parameter.annotation is inspect.Parameter.empty:
        return str(bare)
    name, equals, default = str(bare).partition("=")
    return f"{name}: {parameter.annotation}" + (f" = {default}" if equals else "")


PAGES: dict[str, Callable[[], str]] = {
    "report.md": report_text,
    "report.schema.json": schema_text,
    "api.md": api_text,
}


def main() -> int:
    """Write the pages into the folder that --write says."""
    options = CommandLine(prog="python -m tests.docs.report_reference")
    options.add_argument("--write", type=Path, metavar="FOLDER", required=True)
    folder = options.read().write
    for name, text in PAGES.items():
        (folder / name).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
