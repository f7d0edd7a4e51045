"""Plain text in columns, and sizes that people read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """One line per row; every column but the last is padded to its widest cell plus two spaces."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def gib(nbytes: int) -> str:
    """``22.5 GiB``."""
    return f"{nbytes / 2**30:.1f} GiB"
