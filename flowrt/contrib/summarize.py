"""Summaries of tensors, of the outputs of layers, and of all in a collection, for TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.nn.moments import zero_fraction
from flowrt.graph.ops.text.summaries import histogram, scalar
from flowrt.variables.variable import GraphKeys

__all__ = [
    "summarize_activation", "summarize_activations", "summarize_collection", "summarize_tensor",
    "summarize_tensors",
]  # fmt: skip

_RECTIFIERS = ("Relu", "Softplus", "Relu6")
"""Ops with outputs of which the share of zeros is of interest."""


def summarize_tensor(tensor: Tensor, tag: str | None = None) -> Tensor:
    """A summary of a scalar, or of how the elements of another tensor are distributed."""
    name = tag or f"{tensor.op.name}_summary"
    return scalar(name, tensor) if tensor.shape.ndims == 0 else histogram(name, tensor)


def summarize_activation(op: Tensor) -> Tensor:
    """A summary of how an output is distributed, and, of a rectifier's, of the share of zeros."""
    name = op.op.name
    if op.op.type in _RECTIFIERS:
        scalar(f"{name}/zeros", zero_fraction(op))
    return histogram(f"{name}/activation", op)


def summarize_tensors(
    tensors: Iterable[Tensor], summarizer: Callable[[Tensor], Tensor] = summarize_tensor
) -> list[Tensor]:
    """A summary of each of ``tensors``."""
    return [summarizer(tensor) for tensor in tensors]


def summarize_collection(
    collection: str, name_filter: str | None = None, summarizer: Callable[[Any], Tensor] = summarize_tensor
) -> list[Tensor]:
    """A summary of each tensor of a collection with a name that begins as the expression ``name_filter``."""
    found = get_default_graph().get_collection(collection)
    return summarize_tensors(
        (each for each in found if name_filter is None or re.match(name_filter, each.op.name)), summarizer
    )


def summarize_activations(
    name_filter: str | None = None, summarizer: Callable[[Tensor], Tensor] = summarize_activation
) -> list[Tensor]:
    """A summary of each output in the collection of activations."""
    return summarize_collection(GraphKeys.ACTIVATIONS, name_filter, summarizer)
