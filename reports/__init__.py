"""The record of a run and what is shown of it. Knows no torch, no triton, no other room."""

from kernel_workbench.bare_names import check_name

check_name(__name__)
