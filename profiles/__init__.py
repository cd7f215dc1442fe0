"""The machine: what it is, and (through NVML) what state it is in."""
