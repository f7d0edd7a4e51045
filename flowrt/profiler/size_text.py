"""Numbers of bytes, as tables, pictures and pages write them."""

from __future__ import annotations


def size_text(nbytes: float) -> str:
    """``512 B``, ``1.5 KiB``, ``1010 MiB``, ``2 TiB``: three digits, or all before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return _digits(nbytes, unit)
        nbytes /= 1024
    return _digits(nbytes, "TiB")


def _digits(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"
