"""The machine: what it is, and (through NVML) what state it is in."""

from kernel_workbench.bare_names import check_name

check_name(__name__)
