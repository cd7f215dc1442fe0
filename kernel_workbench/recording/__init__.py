"""Record the calls that a live model makes, as cases for `--cases`: `with record("calls.jsonl"):`.

recorder  replaces functions while it records, counts alike calls, and writes the file
targets   the functions that a recording knows, and where they are
views     a call of such a function as arguments of an op
lines     such arguments as a case, a line of the file
values    tensors' values in a file of safetensors
"""

from kernel_workbench.recording.recorder import Recorder, RecordingError, record
from kernel_workbench.recording.values import recorded_values

__all__ = ["Recorder", "RecordingError", "record", "recorded_values"]
