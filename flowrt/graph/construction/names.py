"""The names of a graph's operations and scopes: valid, and unique without regard to case."""

from __future__ import annotations

import re
from typing import final

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.source import user_line

_OPERATION = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_SCOPE = re.compile(r"[A-Za-z0-9_.\\/>-]*")


@final
class Names:
    """Names used by a graph and the functions inside it. The caller holds the graph's lock."""

    __slots__ = ("_counts", "_valid")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        """Number of requests for each lower-cased name; never 0."""
        self._valid: set[str] = set()
        """Names known to be valid: scripts reuse few different ones."""

    def unique(self, name: str, mark_as_used: bool = True) -> str:
        """``name``, with the first of ``_1``, ``_2``, … that makes it unique if it is taken."""
        counts, key = self._counts, name.lower()
        count, unique, taken = counts.get(key, 0), name, key
        while taken in counts:
            unique = f"{name}_{count}"
            taken = unique.lower()
            count += 1
        if mark_as_used:
            counts[taken] = 1
            counts[key] = count or 1
        return unique

    def take(self, name: str) -> None:
        """Reserve ``name`` unchanged."""
        self._counts.setdefault(name.lower(), 1)

    def check_operation(self, name: str) -> None:
        """Raises `InvalidArgumentError` for characters not allowed in operation names."""
        if name not in self._valid:
            if not _OPERATION.fullmatch(name):
                raise InvalidArgumentError(
                    f"operation name: expected letters, digits and _.\\->/ ; got {name!r}"
                )
            self._valid.add(name)

    def snapshot(self) -> dict[str, int]:
        return dict(self._counts)

    def restore(self, snapshot: dict[str, int]) -> None:
        """Take back the names given out since ``snapshot``."""
        self._counts.clear()
        self._counts.update(snapshot)

    def __len__(self) -> int:
        return len(self._counts)


def check_scope(name: str) -> None:
    """Raises `DTypeError` unless ``name`` is a string, `InvalidArgumentError` for characters not allowed in
    scope names.
    """
    if not isinstance(name, str):
        raise DTypeError(f"name scope: expected a string; got {name!r}", source=user_line())
    if not _SCOPE.fullmatch(name):
        raise InvalidArgumentError(f"name scope: expected letters, digits and _.\\->/ ; got {name!r}")
