"""`SparseTensor`: the values of a tensor that is mostly zeros, with their places."""

from __future__ import annotations

from typing import Any, NamedTuple, final

from flowrt.dtypes import DType, int64
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, Operation
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import TensorShape, compatible, format_shape
from flowrt.graph.typing import NumericLike, TensorLike


class SparseTensorValue(NamedTuple):
    """A fetched `SparseTensor`, or one to feed: ``indices`` [n, rank], ``values`` [n], ``dense_shape``
    [rank].
    """

    indices: Any
    values: Any
    dense_shape: Any


@final
class SparseTensor:
    """``values[i]`` at ``indices[i]`` of a tensor of shape ``dense_shape``; elsewhere zeros or empty strings.

    ``indices`` is [n, rank] int64, ``values`` [n], ``dense_shape`` [rank] int64. Most operations expect the
    places in ascending order, without repetition. A fetch is a `SparseTensorValue`; a feed is one or a tuple.

    Raises `InvalidArgumentError` for parts that do not fit together.

    Example:
        >>> sparse = tf.SparseTensor(indices=[[0, 1]], values=[5], dense_shape=[2, 2])
        >>> tf.sparse_tensor_to_dense(sparse).eval()
        array([[0, 5],
               [0, 0]], dtype=int32)
    """

    fetched_as = SparseTensorValue

    def __init__(self, indices: NumericLike, values: Any, dense_shape: TensorLike) -> None:
        self.indices = convert_to_tensor(indices, int64)
        self.values = convert_to_tensor(values)
        self.dense_shape = convert_to_tensor(dense_shape, int64)
        places, parts, sizes = (t.spec.shape for t in (self.indices, self.values, self.dense_shape))
        count = None if parts is None else parts[0] if parts else -1
        rank = None if sizes is None else sizes[0] if sizes else -1
        fits = all(compatible(shape, (None,)) for shape in (parts, sizes)) and compatible(
            places, (count, rank)
        )
        if not fits:
            raise self.op.error(
                InvalidArgumentError,
                "SparseTensor: expected indices [n, rank], values [n], dense_shape [rank]; got "
                + ", ".join(map(format_shape, (places, parts, sizes))),
            )

    @classmethod
    def from_value(cls, value: Any) -> SparseTensor:
        """The sparse tensor of a `SparseTensorValue`; a sparse tensor itself."""
        return value if isinstance(value, cls) else cls(*value)

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        """The dense shape, as far as it is known while the graph is built."""
        if self.dense_shape.op.type == "Const":
            return TensorShape(as_array(self.dense_shape.op.get_attr("value")).tolist())
        known = partial_value(self.graph.node, self.dense_shape.ref)
        if known is not None:
            return TensorShape(known)
        rank = self.indices.shape.as_list()[1] if self.indices.shape.ndims else None
        return TensorShape(None if rank is None else [None] * rank)

    def get_shape(self) -> TensorShape:
        return self.shape

    @property
    def op(self) -> Operation:
        return self.values.op

    @property
    def graph(self) -> Graph:
        return self.values.graph

    @property
    def name(self) -> str:
        return self.values.name

    def eval(self, feed_dict: Any = None, session: Any = None) -> SparseTensorValue:
        """The value in ``session`` or the default session. Raises `FailedPreconditionError` without one."""
        parts = [part.eval(feed_dict, session) for part in (self.indices, self.values, self.dense_shape)]
        return SparseTensorValue(*parts)

    def __repr__(self) -> str:
        parts = f"indices={self.indices!r}, values={self.values!r}, dense_shape={self.dense_shape!r}"
        return f"SparseTensor({parts})"
