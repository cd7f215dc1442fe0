"""The checkout to ship: its size, its packages, and its commit for nodes that have no .git."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from kernel_workbench.profiles.environment import CHECKOUT, git_state
from kernel_workbench.suites import ROOT

# Folders of the checkout that no run needs: Ray packs the rest. Records return on their own.
LEFT_OUT = (
    *(".git", ".nox", ".venv", "results", "docs", ".benchmarks", ".pytest_cache", ".mypy_cache"),
    *(".ruff_cache", ".import_linter_cache"),
)
MOST_MIB = 512  # Ray ships no more


def size_mib(root: Path = ROOT) -> float:
    """Return the size of all files to ship, in MiB."""
    tops = [path for path in root.iterdir() if path.name not in LEFT_OUT]
    files = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))]
    return sum(file.lstat().st_size for file in files if not file.is_dir()) / 2**20


def too_large(root: Path = ROOT) -> str | None:
    """Return why Ray can't ship the checkout, or None if Ray can."""
    size = size_mib(root)
    if size <= MOST_MIB:
        return None
    return (
        f"the checkout has {size:,.0f} MiB beside {', '.join(LEFT_OUT[:4])}, and Ray ships "
        f"{MOST_MIB} MiB; move what is large out of it"
    )


def variables() -> dict[str, str]:
    """Return the variable that states the commit to nodes, for example with "1f2e3d4 clean"."""
    commit, edited = git_state()
    return {} if commit is None else {CHECKOUT: f"{commit} {'edited' if edited else 'clean'}"}


def packages(root: Path = ROOT) -> tuple[str, ...]:
    """Return the names of the packages that suites need, those of the extra `bench` included."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements = map(
        Requirement, [*project["dependencies"], *project["optional-dependencies"]["bench"]]
    )
    return tuple(
        requirement.name
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    )
