"""The workbench's own tests, in folders that mirror the rooms they are of."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
