"""Strings split into rows of parts, and operations on single strings of ragged tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.ragged.elementwise import map_flat_values
from flowrt.graph.ops.ragged.ragged_tensor import RaggedTensor
from flowrt.graph.ops.ragged.rows import as_ragged
from flowrt.graph.ops.text.formatting import as_string
from flowrt.graph.ops.text.hashing import string_to_hash_bucket_fast
from flowrt.graph.ops.text.splitting import string_split_v1, string_split_v2
from flowrt.graph.ops.text.strings import regex_replace, string_lower, string_strip, string_upper, substr
from flowrt.graph.source import misuse


def string_split(
    input: Any = None,
    sep: Any = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: Any = None,
    name: str | None = None,
) -> Any:
    """Each string split at ``sep``, by default at white space, at most ``maxsplit`` times: a row of parts.

    ``result_type`` is "SparseTensor", or "RaggedTensor": then ``input`` may have any number of dimensions, or
    be ragged. Raises `InvalidArgumentError` for another.

    Example:
        >>> tf.strings.split(["a b", "c"], result_type="RaggedTensor").eval().to_list()
        [[b'a', b'b'], [b'c']]
    """
    if result_type not in ("SparseTensor", "RaggedTensor"):
        raise misuse(f"split: expected result_type SparseTensor or RaggedTensor; got {result_type!r}")
    given = as_ragged(source if input is None else input)
    mark = convert_to_tensor(b"" if sep is None else sep)
    with get_default_graph().name_scope(name or "StringSplit"):
        if result_type == "SparseTensor":
            return SparseTensor(*string_split_v2(given, mark, maxsplit=maxsplit))
        return _split(given, lambda texts: string_split_v2(texts, mark, maxsplit=maxsplit))


def string_bytes_split(input: Any, name: str | None = None) -> Any:
    """The bytes of each string, as a string each."""
    with get_default_graph().name_scope(name or "StringsByteSplit"):
        return _split(
            as_ragged(input), lambda texts: string_split_v1(texts, convert_to_tensor(b""), skip_empty=False)
        )


def _split(texts: Any, split: Callable[[Tensor], Sequence[Tensor]]) -> Any:
    """A row of parts for each of ``texts``; of a single string the parts."""
    if isinstance(texts, RaggedTensor):
        return texts.with_values(_split(texts.values, split))
    if texts.shape.ndims is None:
        raise misuse("split: expected strings of a known number of dimensions")
    if texts.shape.ndims > 1:
        return _split(RaggedTensor.from_tensor(texts, ragged_rank=texts.shape.ndims - 1), split)
    places, parts, sizes = split(reshape(texts, [-1]))
    if texts.shape.ndims == 0:
        return parts
    return RaggedTensor.from_value_rowids(parts, places[:, 0], sizes[0], validate=False)


_ELEMENTWISE = (
    as_string, regex_replace, string_lower, string_strip, string_to_hash_bucket_fast, string_upper, substr,
)  # fmt: skip
RaggedTensor.own_functions.update({op.name: partial(map_flat_values, op) for op in _ELEMENTWISE})
