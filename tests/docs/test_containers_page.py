"""The recipes for containers and clouds, as far as a machine without them can try: their syntax."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess

import pytest

from tests import ROOT

_PAGE = (ROOT / "docs" / "how-to" / "containers.md").read_text(encoding="utf-8")
_INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "FROM", "RUN", "USER", "WORKDIR"}


def _block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", _PAGE, re.DOTALL)
    return str(text)


def test_containerfile_has_known_instructions_and_commands_that_a_shell_reads() -> None:
    """The image begins from a base, which an argument names, and ends as a user."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    instructions = [line.partition(" ")[::2] for line in lines]
    assert {name for name, _ in instructions} <= _INSTRUCTIONS
    assert [name for name, _ in instructions][:2] == ["ARG", "FROM"]
    for name, words in instructions:
        if name == "RUN":
            subprocess.run(["bash", "-n"], input=words, text=True, check=True)  # noqa: S607
        if name in {"ENTRYPOINT", "CMD"}:
            assert all(isinstance(word, str) for word in ast.literal_eval(words))
    assert instructions[1] == ("FROM", "${BASE}")
    extras = re.search(r"/src\[(.*?)\]", text)
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in extras[1].split(","):
        assert f"\n{extra} = [" in project


def test_recipe_for_modal_is_python_with_a_function_on_a_gpu() -> None:
    """The file parses, and calls the API by names that exist."""
    tree = ast.parse(_block("python"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions == {"judge", "main"}


def test_recipe_for_skypilot_is_yaml_with_commands_of_the_workbench() -> None:
    """Setup and run are shell; run calls suites."""
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load(_block("yaml"))
    assert set(recipe) == {"name", "resources", "workdir", "setup", "run"}
    for name in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=recipe[name], text=True, check=True)  # noqa: S607
    called = [shlex.split(line)[:2] for line in recipe["run"].splitlines()]
    assert called == [["kernel-workbench", "accuracy"], ["kernel-workbench", "bench"]]


def test_page_says_that_nothing_was_run() -> None:
    """A reader knows what the syntax alone shows."""
    assert "None of these recipes has been run" in _PAGE
