"""The folder that holds the rooms: the checkout's root, or the installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# In the checkout the rooms in the package are links; a copy of the checkout may have copied them.
ROOT = _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").is_file() else _PACKAGE
