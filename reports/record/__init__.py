"""Write and read records: JSON lines of a header, a row for each thing tried, and an end."""

from kernel_workbench.reports.record.accuracy_row import (
    ULP_EDGES,
    AccuracyRow,
    OutputError,
    Rule,
    Tried,
)
from kernel_workbench.reports.record.bench_row import (
    BUSY_HOST,
    SHARED_GPU,
    BenchRow,
    Cache,
    CountedLaunch,
    Stop,
    TimedProcess,
)
from kernel_workbench.reports.record.compile_row import (
    BrokenExpectation,
    CodeMix,
    CompileRow,
    LoopMix,
    PredictionRow,
)
from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Status
from kernel_workbench.reports.record.profile_row import ProfileRow, Series, Spread, Validity, Window
from kernel_workbench.reports.record.reader import Line, Record, RecordError, Row, latest, read
from kernel_workbench.reports.record.run import (
    ACCURACY_PROTOCOL,
    BENCH_PROTOCOL,
    PROTOCOL,
    SCHEMA_VERSION,
    AbsentKernel,
    Environment,
    FlushProbe,
    KernelInfo,
    Roof,
    RunEnd,
    RunHeader,
)
from kernel_workbench.reports.record.search_row import CoverageRow, FindRow
from kernel_workbench.reports.record.writer import (
    RecordContinuation,
    RecordWriter,
    new_path,
    new_record,
)

__all__ = [
    "ACCURACY_PROTOCOL",
    "BENCH_PROTOCOL",
    "BUSY_HOST",
    "PROTOCOL",
    "SCHEMA_VERSION",
    "SHARED_GPU",
    "ULP_EDGES",
    "AbsentKernel",
    "AccuracyRow",
    "BenchRow",
    "BrokenExpectation",
    "Cache",
    "CaseInfo",
    "CodeMix",
    "CompileRow",
    "CountedLaunch",
    "CoverageRow",
    "Environment",
    "FindRow",
    "FlushProbe",
    "KernelInfo",
    "Line",
    "LoopMix",
    "OutputError",
    "PredictionRow",
    "ProfileRow",
    "Record",
    "RecordContinuation",
    "RecordError",
    "RecordWriter",
    "Roof",
    "Row",
    "Rule",
    "RunEnd",
    "RunHeader",
    "SchemaLine",
    "Series",
    "Spread",
    "Status",
    "Stop",
    "TimedProcess",
    "Tried",
    "Validity",
    "Window",
    "latest",
    "new_path",
    "new_record",
    "read",
]
