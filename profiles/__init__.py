"""The machine: its description, and its state as NVML reports it."""

from kernel_workbench.bare_names import check_name

check_name(__name__)
