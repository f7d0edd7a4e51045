"""Activation checkpointing: gradients recompute a function instead of keeping its intermediate values.

See `flowrt.graph.functions.recomputation` for the method, and for the values that are still kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from flowrt.control_flow.signatures import Signature
from flowrt.control_flow.trace import trace
from flowrt.errors import DTypeError
from flowrt.graph.functions.recomputation import RECOMPUTE, with_positions
from flowrt.graph.source import misuse
from flowrt.graph.typing import TensorLike


def recompute(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``f``: gradients of its results recompute it, so that only a call's arguments are kept until
    then.

    Every call runs the Python code, and creates variables as without the decorator. Values read from
    variables are kept, and random operations repeat their draws. A gradient costs at most one more run of the
    function. Raises the errors of ``f``, and those of `flowrt.functions.function.Function` for mismatching
    arguments and results.
    """
    if not callable(f):
        raise misuse(f"recompute: expected a callable; got {f!r:.80}", DTypeError)
    name = getattr(f, "__name__", "").strip("<>_") or "recompute"

    @functools.wraps(f)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        signature = Signature(f, name)
        arguments = signature.bind(args, kwargs)
        traced = trace(f, name, signature, arguments, arguments.specs)
        traced.function = with_positions(traced.function)
        return traced.call(arguments.tensors, **{RECOMPUTE: True})

    return recomputed


recompute_grad = recompute


def recompute_sequential(
    layers: Sequence[Callable[[Any], Any]], x: TensorLike, segments: int | None = None
) -> Any:
    """``layers[-1](... layers[0](x))``, where gradients keep the value after each of ``segments`` groups
    of layers and compute the others again.

    With the default, the square root of their number, n equal layers take O(sqrt n) memory and one more
    forward pass (Chen et al., 2016). Raises `DTypeError` unless ``layers`` is a list or tuple of callables,
    `InvalidArgumentError` if it is empty, and unless 1 <= segments <= the number of layers.
    """
    if not isinstance(layers, (list, tuple)) or not all(map(callable, layers)):
        message = f"recompute_sequential: expected layers to be a list of callables; got {layers!r:.80}"
        raise misuse(message, DTypeError)
    if not layers:
        raise misuse("recompute_sequential: expected at least one layer; got none")
    count = round(math.sqrt(len(layers))) if segments is None else segments
    if not 1 <= count <= len(layers):
        raise misuse(
            f"recompute_sequential: expected from 1 to {len(layers)} segments, the number of layers; got"
            f" {count}"
        )
    ends = [len(layers) * (i + 1) // count for i in range(count)]
    for first, end in zip([0, *ends], ends, strict=False):
        x = recompute(functools.partial(_through, layers[first:end]))(x)
    return x


def _through(layers: Sequence[Callable[[Any], Any]], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x
