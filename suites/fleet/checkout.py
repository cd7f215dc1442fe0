"""The checkout as it is shipped: how large it is, and what it is told by where .git isn't."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from kernel_workbench.profiles.environment import CHECKOUT, git_state
from kernel_workbench.suites import ROOT

# Folders of the checkout that no run needs: Ray packs the rest. Records come back by themselves.
LEFT_OUT = (
    *(".git", ".nox", ".venv", "results", "docs", ".benchmarks", ".pytest_cache", ".mypy_cache"),
    *(".ruff_cache", ".import_linter_cache"),
)
MOST_MIB = 512  # that Ray ships


def size_mib(root: Path = ROOT) -> float:
    """Of all files that would be shipped."""
    tops = [each for each in root.iterdir() if each.name not in LEFT_OUT]
    files = [each for top in tops for each in ([top] if top.is_file() else top.rglob("*"))]
    return sum(each.lstat().st_size for each in files if not each.is_dir()) / 2**20


def too_large(root: Path = ROOT) -> str | None:
    """Why it can't be shipped; None: it can."""
    size = size_mib(root)
    if size <= MOST_MIB:
        return None
    return (
        f"the checkout has {size:,.0f} MiB beside {', '.join(LEFT_OUT[:4])}, and Ray ships "
        f"{MOST_MIB} MiB; move what is large out of it"
    )


def variables() -> dict[str, str]:
    """What tells a node of the commit, which only .git knows."""
    commit, edited = git_state()
    return {} if commit is None else {CHECKOUT: f"{commit} {'edited' if edited else 'clean'}"}


def packages(root: Path = ROOT) -> tuple[str, ...]:
    """The packages that a suite needs."""
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    named = []
    for each in [*groups["report"], *groups["run"]]:
        if isinstance(each, str):
            requirement = Requirement(each)
            if requirement.marker is None or requirement.marker.evaluate():
                named.append(requirement.name)
    return tuple(named)
