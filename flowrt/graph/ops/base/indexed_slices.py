"""`IndexedSlices`: a gradient that is zero outside some rows of the first dimension."""

from __future__ import annotations

from typing import Any, NamedTuple, final

from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.op_def import op_def
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.base.shape_manipulation import expand_dims_op
from flowrt.graph.shapes import TensorShape


class IndexedSlicesValue(NamedTuple):
    """A fetched `IndexedSlices`: ``values`` [n, ...], ``indices`` [n], ``dense_shape`` or None."""

    values: Any
    indices: Any
    dense_shape: Any = None


@final
class IndexedSlices:
    """Rows ``values[i]`` that belong at index ``indices[i]`` of a tensor of shape ``dense_shape``; equal
    indices add up.

    ``values`` is ``[n, ...]``, ``indices`` ``[n]`` (int32 or int64), ``dense_shape`` a 1-D integer tensor or
    None. Used as a tensor it becomes the dense sum.

    Example:
        >>> rows = tf.IndexedSlices(values=tf.ones([1, 2]), indices=tf.constant([1]), dense_shape=[3, 2])
        >>> tf.convert_to_tensor(rows).eval()
        array([[0., 0.],
               [1., 1.],
               [0., 0.]], dtype=float32)
    """

    fetched_as = IndexedSlicesValue

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Tensor | None = None) -> None:
        self.values, self.indices, self.dense_shape = values, indices, dense_shape

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        return TensorShape([None, *self.values.shape.as_list()[1:]])

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

    @property
    def device(self) -> str:
        return self.values.device

    def __flowrt_tensor__(self) -> Tensor:
        if self.dense_shape is None:
            raise self.op.error(
                InvalidArgumentError, "IndexedSlices without dense_shape cannot become a dense tensor"
            )
        # ScatterNd, since UnsortedSegmentSum leaves negative indices out: an id of -1 would change nothing.
        rows = expand_dims_op(self.indices, -1)
        dense_shape = cast_op(self.dense_shape, DstT=self.indices.dtype)
        return op_def("ScatterNd")(rows, self.values, dense_shape)

    def __repr__(self) -> str:
        return f"IndexedSlices({self.values!r}, indices={self.indices!r}, dense_shape={self.dense_shape!r})"
