"""Encoded `SequenceExample` messages as tensors: the context's features, and those of each step.

A message is read as an `Example`, which has its features where a sequence has its context; the lists of
features are one `Example` a step (`SequenceSteps`), so that `parse_example` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrt.dtypes import string
from flowrt.errors import InvalidArgumentError
from flowrt.functions.parsing import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    parse_example,
    parse_single_example,
)
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.ops.text.sequence_steps import sequence_steps_op
from flowrt.graph.source import misuse
from flowrt.graph.typing import TensorLike
from flowrt.variables.graph_scopes import name_scope

__all__ = ["parse_single_sequence_example"]


def parse_single_sequence_example(
    serialized: TensorLike,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The features of one `SequenceExample` message, a string scalar: those of its context, as
    `parse_single_example` reads them, and those of its steps by name.

    A `FixedLenSequenceFeature` in ``sequence_features`` is a tensor ``[steps, *shape]``, a `VarLenFeature` a
    `SparseTensor` [steps, longest]. A list of features that is missing is an error, unless ``allow_missing``
    or any number of values make it one of no steps.

    Raises `InvalidArgumentError` without features, for a kind that no sequence has, and at run time as
    `parse_example` does.
    """
    if not context_features and not sequence_features:
        raise misuse("parse_single_sequence_example: expected features; got none", InvalidArgumentError)
    with name_scope(name, "ParseSingleSequenceExample", [serialized]):
        text = convert_to_tensor(serialized, string)
        context = parse_single_example(text, context_features) if context_features else {}
        asked = sequence_features or {}
        keys = sorted(asked)
        needed = [isinstance(asked[k], FixedLenSequenceFeature) and not asked[k].allow_missing for k in keys]
        steps = sequence_steps_op(text, N=len(keys), keys=keys, needed=needed) if keys else []
        found: dict[str, Any] = {}
        for key, examples in zip(keys, steps, strict=True):
            found |= parse_example(examples, {key: _of_step(key, asked[key])})
        return context, found


def _of_step(key: str, feature: Any) -> Any:
    """The kind of feature that each step has."""
    if isinstance(feature, FixedLenFeature):
        raise misuse(
            f"sequence_features: expected a FixedLenSequenceFeature or VarLenFeature; {key!r} is a "
            "FixedLenFeature",
            InvalidArgumentError,
        )
    if isinstance(feature, FixedLenSequenceFeature):
        return FixedLenFeature(feature.shape, feature.dtype)
    return feature
