"""Check command lines: a mistake gets one sentence, at once."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A message of argparse about an option, and a sentence in its place that says what to do.
_WORDS = (
    (re.compile(r"^argument (?:-\S+/)*"), ""),
    (re.compile(r": expected (one|at least one) argument$"), " takes a value; write it after it"),
    (re.compile(r": ignored explicit argument (.*)$"), r" takes no value, and has \1"),
    (
        re.compile(r"^the following arguments are required: (\S+)$"),
        r"\1 is missing; name at least one",
    ),
)
_QUOTED = 80
NARROWEST, WIDEST = 20, 10_000  # columns of a report
_FORMS = {
    "html": "HTML",
    "markdown": "Markdown",
    "junit": "JUnit XML",
    "svg": "SVG",
    "roofline": "SVG",
}


class CommandLine(argparse.ArgumentParser):
    """A parser whose `read` refuses what it doesn't know in one sentence, with exit status 2.

    Options can't be cut short: one that is new would change what a short one means.
    """

    def __init__(
        self, *, prog: str, usage: str | None = None, description: str | None = None
    ) -> None:
        super().__init__(prog, usage, description, allow_abbrev=False)

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the options that the arguments give; none: those of the process."""
        options, unknown_arguments = self.parse_known_args(arguments)
        for argument in unknown_arguments:
            name = argument.partition("=")[0]
            if name.startswith("-"):
                self.error(self.unknown(name))
            self.error(f"{quoted(argument)}: {self.prog.removesuffix(' --')} takes options alone")
        return options

    def unknown(self, name: str) -> str:
        """Return a sentence that names the option nearest to an unknown one."""
        long_names = [own[2:] for own in self._option_string_actions if own.startswith("--")]
        long = name.lstrip("-") if name.startswith("--") else ""
        close = difflib.get_close_matches(long, long_names, n=1)
        advice = f"did you mean --{close[0]}?" if close else f"{self.prog} --help lists them"
        return f"{quoted(name)}: there is no such option; {advice}"

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, without a page of what there is, and end the process."""
        print(sentence(message), file=sys.stderr)
        raise SystemExit(2)


def add_forms(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that shows a document."""
    parser.add_argument(
        "--markdown",
        metavar="PATH",
        help="also as Markdown; - writes it to stdout, in place of the report",
    )
    parser.add_argument(
        "--html", type=Path, metavar="PATH", help="also as one HTML page, which needs no other file"
    )
    parser.add_argument(
        "--width",
        type=whole_number(NARROWEST, WIDEST),
        metavar="N",
        help="columns of the terminal report",
    )


def named_forms(options: argparse.Namespace) -> dict[str, tuple[Path, str]]:
    """Return the files that options name, as `reports.output.refuse_to_overwrite` takes them."""
    return {
        f"--{name}": (Path(path), form)
        for name, form in _FORMS.items()
        if (path := getattr(options, name, None)) is not None and (name, path) != ("markdown", "-")
    }


def sentence(message: str) -> str:
    """Return argparse's message of a mistake as a sentence on one line."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return " ".join(message.split())


def quoted(text: str) -> str:
    """Return a typed text, cut and with a terminal's control characters spelled out."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}..."


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of options that are a number of things."""

    def read(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,20}", text.strip()) and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"{quoted(text)!r} isn't a whole number from {least:,} to {most:,}"
        )

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """Return a reader of options that are an amount; neither nan nor infinity is one."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if least <= value <= most:
            return value
        raise argparse.ArgumentTypeError(
            f"{quoted(text)!r} isn't a number from {least:,g} to {most:,g}"
        )

    return read


def not_empty(text: str) -> str:
    """Return the text of an option that names a folder or the like; refuse an empty one."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it names nothing; write what is meant")
    return text
