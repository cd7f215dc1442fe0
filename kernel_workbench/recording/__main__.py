"""`kernel-workbench record -- python train.py`: record the calls of a Python program."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kernel_workbench.reports.arguments import CommandLine, quoted, whole_number

_TAKES_A_WORD = {"-W", "-X"}
_MOST_MIB = 2**20
_ADVICE = "write python FILE or python -m MODULE, or use `with kernel_workbench.record(...)` in it"


def main() -> None:
    """Read the options, and become the program's own Python, which records itself."""
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    parser = CommandLine(
        prog="kernel-workbench record",
        usage="kernel-workbench record [OPTION ...] -- python FILE [ARGUMENT ...]",
        description="Record the calls that a Python program makes, as cases for --cases.",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        default="calls.jsonl",
        help="the file of calls (default calls.jsonl)",
    )
    parser.add_argument(
        "--op",
        metavar="OP",
        action="append",
        help="record calls of this op alone, as layer_norm; may be repeated",
    )
    parser.add_argument(
        "--function",
        metavar="MODULE:FUNCTION=OP",
        action="append",
        default=[],
        help="record a function of the program, too, as the op that it stands for",
    )
    parser.add_argument(
        "--values",
        metavar="N",
        type=whole_number(1, 5),
        default=0,
        help="keep the values of so many calls of each case",
    )
    parser.add_argument(
        "--most-mib",
        metavar="M",
        type=whole_number(1, _MOST_MIB),
        default=64,
        help="of all values together (default 64)",
    )
    options = parser.read(words[:place])
    command = words[place + 1 :]
    if not command:
        parser.error(f"no program to run: after --, {_ADVICE}")
    functions = {}
    for text in options.function:
        name, equals, op = text.partition("=")
        if not equals:
            parser.error(f"--function {quoted(text)}: no op is in it; write MODULE:FUNCTION=OP")
        functions[name] = op
    python = shutil.which(command[0])
    if python is None:
        parser.error(f"{quoted(command[0])}: there is no such program; {_ADVICE}")
    flags, program = _split(command[1:])
    if not Path(command[0]).name.startswith("python") or not program:
        parser.error(f"{quoted(' '.join(command))}: it can't be recorded; {_ADVICE}")
    if program[0] != "-m" and not Path(program[0]).is_file():
        parser.error(f"{quoted(program[0])}: there is no such file")
    wanted = {
        "path": str(Path(options.output).expanduser().absolute()),
        "ops": options.op,
        "functions": functions,
        "values": options.values,
        "most_bytes": options.most_mib << 20,
    }
    for name in ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        os.environ.pop(name, None)  # set by the command for its suites
    if not sys.flags.safe_path:
        os.environ.pop("PYTHONSAFEPATH", None)
    inside = str(Path(__file__).with_name("inside.py"))
    sys.stdout.flush()
    os.execv(python, [command[0], *flags, inside, json.dumps(wanted), *program])  # noqa: S606


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Python's own flags, and the program with its arguments; none for `-c`."""
    flags: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] in {"-", "-c"} or rest[0].startswith("-c"):
            return flags, []
        takes = 2 if rest[0] in _TAKES_A_WORD else 1
        flags += rest[:takes]
        del rest[:takes]
    return flags, rest if rest[:1] != ["-m"] or len(rest) > 1 else []


if __name__ == "__main__":
    main()
