"""The features that `parse_example` has to read for ready estimators: features, labels and weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrt.dtypes import DTypeLike, float32, int64
from flowrt.errors import InvalidArgumentError
from flowrt.feature_column import make_parse_example_spec
from flowrt.functions.parsing import FixedLenFeature
from flowrt.graph.source import misuse


def classifier_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: DTypeLike = int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """The features of ``feature_columns``, the label ``label_key``, [1], and the weights, by name.

    Raises `InvalidArgumentError` if a feature has the name of the label or of the weights.
    """
    label = FixedLenFeature([1], label_dtype, label_default)
    return _with_label(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: DTypeLike = float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """`classifier_parse_example_spec` with labels of shape [label_dimension]."""
    label = FixedLenFeature([label_dimension], label_dtype, label_default)
    return _with_label(feature_columns, label_key, label, weight_column)


def _with_label(columns: Iterable[Any], key: str, label: FixedLenFeature, weights: Any) -> dict[str, Any]:
    spec = make_parse_example_spec(columns)
    added: dict[str, Any] = {key: label}
    if isinstance(weights, str):
        added[weights] = FixedLenFeature([1], float32)
    elif weights is not None:
        added |= weights.parse_example_spec
    if twice := spec.keys() & added.keys():
        raise misuse(f"label and weights: {sorted(twice)} are features already", InvalidArgumentError)
    return {**spec, **added}
