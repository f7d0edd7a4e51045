"""Small functions of TensorFlow's inner modules that public programs import: see `flowrt.python`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowrt.graph.construction.graph import Operation
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.shapes import TensorShape

__all__ = [
    "IsMklEnabled", "enabled", "initialize_resources", "is_xla_enabled", "local_resources", "matrix",
    "scalar", "shared_resources", "silence", "unknown_shape", "vector",
]  # fmt: skip


def enabled() -> bool:
    """False: TensorFlow 2's behaviour is not on."""
    return False


IsMklEnabled = is_xla_enabled = enabled


@contextmanager
def silence() -> Iterator[None]:
    """A block in which deprecated functions log nothing: none of flowrt's does."""
    yield


# --- resources: variables and tables have initializers of their own


def shared_resources() -> list[Any]:
    """An empty list: what is neither variable nor table needs no initializer."""
    return []


local_resources = shared_resources


def initialize_resources(resource_list: Sequence[Any], name: str = "init") -> Operation:
    """An operation that runs the initializers of ``resource_list``."""
    return group(*(resource.create for resource in resource_list), name=name)


# --- shapes


def unknown_shape(rank: int | None = None) -> TensorShape:
    return TensorShape(None if rank is None else [None] * rank)


def scalar() -> TensorShape:
    return TensorShape([])


def vector(length: Any) -> TensorShape:
    return TensorShape([length])


def matrix(rows: Any, cols: Any) -> TensorShape:
    return TensorShape([rows, cols])
