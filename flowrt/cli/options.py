"""Shared by the commands: one-line errors, ``--version``, option spellings."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any, NoReturn

from flowrt.errors import nearest

MISTAKE = 2
"""The exit status of a mistake on the command line: argparse's own."""


class _Formatter(argparse.HelpFormatter):
    """Wraps a text, unless it has lines of its own: examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """A parser that reports mistakes in one line, without the usage text; exit status 2."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raises `argparse.ArgumentError` for a ``value`` that is none of the choices of ``action``."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            hint = nearest(str(value), known)
            raise argparse.ArgumentError(action, f"expected one of {', '.join(known)}; got {value!r}.{hint}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def new_parser(command: str, description: str, examples: str) -> CommandParser:
    """A parser with ``--help`` and ``--version``, without abbreviations: an option may belong to a script."""
    parser = CommandParser(prog=command, description=description, allow_abbrev=False)
    version = sys.modules["flowrt"].__version__
    parser.add_argument("--version", action="version", version=f"{command} {version}")
    set_examples(parser, examples)
    return parser


def set_examples(parser: argparse.ArgumentParser, examples: str) -> None:
    """Let ``parser`` end its help with ``examples``, line by line as they are."""
    parser.formatter_class = _Formatter
    parser.epilog = f"examples:{examples.rstrip()}"


def report_mistake(command: str, message: str) -> int:
    """Print the first line of ``message``; returns `MISTAKE`."""
    print(f"flowrt {command}: {message.splitlines()[0]}", file=sys.stderr)
    return MISTAKE


def spellings(option: str) -> tuple[str, ...]:
    """``--log-dir`` and ``--log_dir``."""
    other = "--" + option.removeprefix("--").replace("-", "_")
    return (option,) if other == option else (option, other)


def positive(text: str) -> int:
    """An integer >= 1, for argparse."""
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """An integer >= 0, for argparse."""
    return _at_least(0, text)


def positive_number(text: str) -> float:
    """A finite number above 0, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number > 0; got {text}")
    return number


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected an integer >= {least}; got {text}")
    return number
