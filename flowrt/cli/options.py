"""Shared by the commands: one-line errors, option spellings, numbers."""

from __future__ import annotations

import argparse
import math
import sys

MISTAKE = 2
"""The exit status of a mistake on the command line: argparse's own."""


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
