"""``flowrt.compat``: `v1` is flowrt itself, for scripts that say ``import flowrt.compat.v1 as tf``."""

from typing import Any

from flowrt.compat import v1

__all__ = ["as_bytes", "as_str", "as_str_any", "as_text", "v1"]


def as_bytes(bytes_or_text: Any, encoding: str = "utf-8") -> bytes:
    return bytes_or_text.encode(encoding) if isinstance(bytes_or_text, str) else bytes(bytes_or_text)


def as_text(bytes_or_text: Any, encoding: str = "utf-8") -> str:
    return bytes_or_text.decode(encoding) if isinstance(bytes_or_text, bytes) else str(bytes_or_text)


as_str = as_str_any = as_text
