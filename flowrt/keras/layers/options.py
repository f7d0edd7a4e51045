"""Keras's way to give options: by name (``activation="relu"``, ``kernel_initializer="he_normal"``).

`by_name` makes the constructor of a layer of `flowrt.layers` one of Keras's: names become the objects that
they stand for, and defaults are Keras's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from flowrt.graph.tf1_signatures import parameters_of, with_parameters
from flowrt.keras import activations, constraints, initializers, regularizers
from flowrt.keras.state.settings import image_data_format

_DEFAULTS = {
    "kernel_initializer": "glorot_uniform", "depthwise_initializer": "glorot_uniform",
    "pointwise_initializer": "glorot_uniform", "bias_initializer": "zeros",
}  # fmt: skip


def resolved(name: str, value: Any) -> Any:
    """The object for the option ``name``: what ``value`` names, if such an option takes names."""
    if name == "activation":
        return activations.get(value)
    if name.endswith("_initializer"):
        return initializers.get(_DEFAULTS.get(name) if value is None else value)
    if name.endswith("_regularizer") and name != "activity_regularizer":
        return regularizers.get(value)
    if name.endswith("_constraint"):
        return constraints.get(value)
    if name == "data_format" and value is None:
        return image_data_format()
    return value


def by_name(constructor: Callable[..., None], **defaults: Any) -> Callable[..., None]:
    """``constructor`` with options by name; ``defaults`` replace its own."""
    own = [p.replace(default=defaults.get(p.name, p.default)) for p in parameters_of(constructor)]
    own = [p.replace(default=None) if p.name == "data_format" else p for p in own]
    names = {p.name for p in own if p.kind is not p.VAR_KEYWORD}

    def construct(given: dict[str, Any]) -> None:
        values = {p.name: p.default for p in own if p.default is not inspect.Parameter.empty}
        values |= given
        constructor(
            **{name: resolved(name, value) if name in names else value for name, value in values.items()}
        )

    return with_parameters(constructor, own, construct)
