"""``contrib.layers.utils``: outputs of layers under their scopes' names, and helpers for writers of layers.

A layer with ``outputs_collections`` adds its output to them and notes its scope's name, the output's alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.source import misuse
from flowrt.tf1.layer_arguments import (
    constant_value,
    conv_output_length,
    convert_data_format,
    deconv_output_length,
    normalize_data_format,
    normalize_padding,
    normalize_tuple,
    smart_cond,
    smart_constant_value,
)

__all__ = [
    "collect_named_outputs", "constant_value", "conv_output_length", "convert_collection_to_dict",
    "convert_data_format", "deconv_output_length", "get_tensor_aliases",
    "get_variable_collections", "last_dimension",
    "normalize_data_format", "normalize_padding", "normalize_tuple", "smart_cond", "smart_constant_value",
    "two_element_tuple",
]  # fmt: skip

_ALIASES = "flowrt/aliases"
"""The collection of pairs of a tensor and its alias."""


def collect_named_outputs(collections: Any, alias: str | None, outputs: Tensor) -> Tensor:
    """Add ``outputs`` to ``collections``, a name or several, under the name ``alias``; returns it."""
    if collections:
        graph = get_default_graph()
        graph.add_to_collections(collections, outputs)
        if alias:
            graph.add_to_collection(_ALIASES, (outputs, alias))
    return outputs


def get_tensor_aliases(tensor: Tensor) -> list[str]:
    """The names under which ``tensor`` was collected; without one that of its operation."""
    pairs = tensor.graph.get_collection(_ALIASES)
    return [alias for collected, alias in pairs if collected is tensor] or [tensor.op.name]


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> dict[str, Tensor]:
    """The tensors of a collection by alias, in their order; ``clear_collection`` empties it."""
    graph = get_default_graph()
    found = {alias: each for each in graph.get_collection(collection) for alias in get_tensor_aliases(each)}
    if clear_collection:
        graph.get_collection_ref(collection).clear()
    return found


def get_variable_collections(variables_collections: Any, name: str) -> Any:
    """The collections of the variable ``name``: all have those given, or each its own of a dict by name."""
    given = variables_collections
    return (given.get(name) if isinstance(given, dict) else given) or ()


def last_dimension(shape: Any, min_rank: int = 1) -> int:
    """The last size of a shape. Raises `InvalidArgumentError` if it is unknown, or for a rank below
    ``min_rank``.
    """
    dims = shape.as_list()
    if len(dims) < min_rank or dims[-1] is None:
        raise misuse(
            f"last_dimension: expected a rank of {min_rank} at least, and a known last size; got {shape}",
            InvalidArgumentError,
        )
    return int(dims[-1])


def two_element_tuple(int_or_tuple: Any) -> tuple[int, int]:
    """A number twice, or two numbers as a tuple. Raises `InvalidArgumentError` for anything else."""
    if isinstance(int_or_tuple, int):
        return int_or_tuple, int_or_tuple
    if not isinstance(int_or_tuple, Sequence) or len(int_or_tuple) != 2:
        raise misuse(
            f"two_element_tuple: expected a number or two; got {int_or_tuple!r}", InvalidArgumentError
        )
    return int(int_or_tuple[0]), int(int_or_tuple[1])
