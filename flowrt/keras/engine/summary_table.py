"""The table of `Model.summary`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowrt.variables.variable import Variable


def print_summary(model: Any, line_length: int, print_fn: Callable[[str], Any]) -> None:
    """Print a row for each layer: name and class, shape of its outputs, number of its weights' elements."""
    positions = [int(line_length * share) for share in (0.45, 0.85, 1.0)]
    print_fn(f'Model: "{model.name}"')
    print_fn("_" * line_length)
    print_fn(_row(("Layer (type)", "Output Shape", "Param #"), positions))
    print_fn("=" * line_length)
    layers = model.layers
    for index, layer in enumerate(layers):
        shape = _shape(layer)
        print_fn(
            _row((f"{layer.name} ({type(layer).__name__})", shape, str(layer.count_params())), positions)
        )
        print_fn(("=" if index == len(layers) - 1 else "_") * line_length)
    trainable, fixed = _elements(model.trainable_weights), _elements(model.non_trainable_weights)
    print_fn(f"Total params: {trainable + fixed:,}")
    print_fn(f"Trainable params: {trainable:,}")
    print_fn(f"Non-trainable params: {fixed:,}")
    print_fn("_" * line_length)


def _shape(layer: Any) -> str:
    try:
        found = layer.output_shape
    except AttributeError:
        return "multiple"
    return str(found)


def _row(fields: Iterable[str], positions: Iterable[int]) -> str:
    line = ""
    for field, position in zip(fields, positions, strict=True):
        line = f"{line}{field}"[: position - 1].ljust(position)
    return line


def _elements(weights: Iterable[Variable]) -> int:
    return sum(w.shape.num_elements() or 0 for w in set(weights))
