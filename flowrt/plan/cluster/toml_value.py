"""`Value`: a value of a TOML file, with its line for errors, and numbers with units."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn, TypeAlias

from flowrt.errors import InvalidArgumentError, nearest

Units: TypeAlias = Mapping[str, Decimal]
"""Sizes of units by name, in the first of them."""

SECONDS: Units = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}
BYTES: Units = {
    "B": Decimal(1),
    **{f"{prefix}B": Decimal(1000) ** (power + 1) for power, prefix in enumerate("kMGT")},
    **{f"{prefix}iB": Decimal(1024) ** (power + 1) for power, prefix in enumerate("KMGT")},
}
BYTE_RATES: Units = {
    **{f"{unit}/s": size for unit, size in BYTES.items()},
    **{f"{prefix}bit/s": Decimal(1000) ** power / 8 for power, prefix in enumerate(["", *"kMGT"])},
}
_QUANTITY = re.compile(r"(\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?) ?([A-Za-z/]+)", re.ASCII)
_LARGEST = 1e18


def _parse_quantity(text: str, units: Units) -> float | None:
    """The number in ``text``, in the unit 1, rounded once; None if it is not one with a unit of ``units``."""
    match = _QUANTITY.fullmatch(text)
    return float(Decimal(match[1]) * units[match[2]]) if match and match[2] in units else None


def format_quantity(number: float, units: Units) -> str:
    """The shortest text, in quotes, that `_parse_quantity` reads back exactly."""

    def text(unit: str) -> str:
        count = (Decimal(repr(number)) / units[unit]).normalize()
        return f"{count:f}{unit}" if -6 <= count.adjusted() <= 20 else f"{count}{unit}"

    exact = [found for found in map(text, units) if _parse_quantity(found, units) == number]
    return f'"{min(exact, key=len)}"'


def parse_toml(text: str, name: str) -> Value:
    """The table of the whole file. Raises `InvalidArgumentError` with file and line."""
    try:
        return Value(Source(text, name), (), tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        place = re.fullmatch(r"(.*) \(at line (\d+), column \d+\)", str(error), re.DOTALL)
        what, line = (place[1], int(place[2])) if place else (str(error), text.count("\n") + 1)
        raise InvalidArgumentError(f"{name}:{line}: expected TOML; got an error: {what}") from None
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise InvalidArgumentError(f"{name}:1: expected TOML; got an error: {error}") from None


class Source(NamedTuple):
    """A text, which is TOML, and the name of its file."""

    text: str
    name: str

    def line(self, path: tuple[str, ...]) -> int:
        """The line, counted from 1, on which the value at ``path`` begins.

        tomllib gives no places. But the lines before that one are TOML too, without the value.
        """
        lines = self.text.replace("\r\n", "\n").split("\n")
        without = 0
        for number in range(len(lines)):
            try:
                found: Any = tomllib.loads("\n".join(lines[:number]))
            except (ValueError, RecursionError):  # the end of these lines is inside of a value
                continue
            for key in path:
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None:
                break
            without = number
        return without + 1


class Value(NamedTuple):
    """A value of the file at ``path``."""

    source: Source
    path: tuple[str, ...]
    found: Any

    def __str__(self) -> str:
        """The value as errors show it: short, whatever it is."""
        match self.found:
            case dict():
                return "a table"
            case list():
                return "an array"
            case bool():
                return str(self.found).lower()
            case int() if abs(self.found) >= 2**63:
                return "a number of more than 64 bits"
            case str():
                return f"{self.found[:40]!r}{'...' if len(self.found) > 40 else ''}"
        return str(self.found)

    def fail(self, message: str) -> NoReturn:
        where = f"{self.source.name}:{self.source.line(self.path)}"
        path = ".".join(key[:40] for key in self.path)
        raise InvalidArgumentError(f"{where}: {path}: {message}" if path else f"{where}: {message}")

    def inner(self, key: str) -> Value:
        return Value(self.source, (*self.path, key), self.found[key])

    def entries(self, known: Iterable[str] | None = None) -> dict[str, Value]:
        """The values of a table by key, at least one, all of them ``known``."""
        if not isinstance(self.found, dict) or not self.found:
            self.fail(f"expected a table that is not empty; got {self}")
        found = {key: self.inner(key) for key in self.found}
        for key, value in found.items():
            if known is not None and key not in (names := tuple(known)):
                value.fail(f"expected one of {', '.join(names)}; got {key[:40]!r}.{nearest(key, names)}")
        return found

    def table(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Value]:
        """The values of a table with all of the ``required`` keys, and some of the ``optional`` ones."""
        known = required + optional
        found = self.entries(known) if self.found != {} else {}
        for key in required:
            if key not in found:
                self.fail(f"expected {key!r}, which is missing; got {', '.join(found) or 'nothing'}")
        return found

    def text(self, expected: str) -> str:
        if not isinstance(self.found, str):
            self.fail(f"expected {expected}; got {self}")
        return str(self.found)

    def whole(self, most: int) -> int:
        """A whole number from 1 to ``most``."""
        if type(self.found) is not int or not 1 <= self.found <= most:
            self.fail(f"expected a whole number from 1 to {most:,}; got {self}")
        return int(self.found)

    def number(self, least: float, most: float) -> float:
        if type(self.found) not in (int, float) or not least <= self.found <= most:
            self.fail(f"expected a number from {least:g} to {most:g}; got {self}")
        return float(self.found)

    def quantity(self, units: Units, least: float) -> float:
        """A number with a unit, from ``least`` to 1e18, in the unit 1."""
        expected = f"a number with a unit ({', '.join(units)}), such as '2.5{list(units)[-2]}'"
        text = self.text(expected)
        number = _parse_quantity(text, units)
        if number is None:
            match = _QUANTITY.fullmatch(text)
            self.fail(f"expected {expected}; got {self}.{nearest(match[2], units) if match else ''}")
        if not least <= number <= _LARGEST:
            self.fail(f"expected from {least:g} to {_LARGEST:g} {next(iter(units))}; got {self}")
        return number
