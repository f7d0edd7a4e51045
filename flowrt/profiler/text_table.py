"""Plain text: columns, shortened lists, and numbers of bytes as tables, pictures and pages write them."""

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


def first_few(words: Sequence[str], most: int) -> str:
    """``a, b, c and 30 more``."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def gib(nbytes: int) -> str:
    """``22.5 GiB``."""
    return f"{nbytes / 2**30:.1f} GiB"


def size_text(nbytes: float) -> str:
    """``512 B``, ``1.5 KiB``, ``1010 MiB``, ``2 TiB``: three digits, or all before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return _digits(nbytes, unit)
        nbytes /= 1024
    return _digits(nbytes, "TiB")


def _digits(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"
