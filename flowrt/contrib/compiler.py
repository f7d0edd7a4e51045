"""``flowrt.contrib.compiler``: what XLA compiles; here graphs are compiled anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def experimental_jit_scope(
    compile_ops: Any = True, separate_compiled_gradients: bool = False
) -> Iterator[None]:
    """A scope that changes nothing: with ``compile_ops``, a bool or a function of a node, one chooses what
    XLA compiles in TensorFlow; flowrt decides by how often a graph runs.

    Example:
        >>> from flowrt.contrib.compiler import jit
        >>> with jit.experimental_jit_scope():
        ...     x = tf.constant([1.0]) * 2
    """
    yield
