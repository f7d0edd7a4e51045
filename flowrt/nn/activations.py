"""Activations made of other operations."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.elementwise.math import negative
from flowrt.graph.ops.nn.activations import softplus


def log_sigmoid(x: Any, name: str | None = None) -> Tensor:
    """``log(1 / (1 + exp(-x)))``, exact for large ``|x|`` too."""
    with get_default_graph().name_scope(name or "LogSigmoid"):
        return negative(softplus(negative(convert_to_tensor(x))))
