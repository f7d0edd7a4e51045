"""`Input`: the placeholder that a model begins with, as the output of an `InputLayer`."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import as_dtype
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.source import misuse
from flowrt.keras.engine.layer import Layer, as_tuple
from flowrt.keras.engine.nodes import Node, record
from flowrt.keras.state.graph_state import get_uid
from flowrt.keras.state.settings import floatx


class InputLayer(Layer):
    """The source of a tensor: a placeholder, or ``input_tensor``, which is not fed.

    ``input_shape`` has no batch dimension.
    """

    def __init__(
        self,
        input_shape: Any = None,
        batch_size: int | None = None,
        dtype: Any = None,
        input_tensor: Tensor | None = None,
        sparse: bool = False,
        name: str | None = None,
        ragged: bool = False,
        **options: Any,
    ) -> None:
        shape = options.pop("batch_input_shape", None)
        if shape is None and input_shape is not None:
            shape = (batch_size, *as_tuple(input_shape))
        if shape is None and input_tensor is None:
            raise misuse("Input: expected a shape or a tensor; got neither")
        if sparse or ragged:
            raise misuse("Input: expected dense inputs; use flowrt.sparse_placeholder outside of models")
        name = name or f"input_{get_uid('input')}"
        super().__init__(name=name, dtype=dtype or floatx(), **options)
        self.is_placeholder = input_tensor is None
        if input_tensor is None:
            self._batch_input_shape = as_tuple(shape)
            input_tensor = placeholder(
                as_dtype(dtype or floatx()), list(self._batch_input_shape), name=self.name
            )
        else:
            self._batch_input_shape = as_tuple(input_tensor.shape)
        self.built = True
        record(Node(self, [], input_tensor, ((), {})))

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return inputs

    def get_config(self) -> dict[str, Any]:
        assert self.dtype is not None
        shape = list(self._batch_input_shape)
        return {"batch_input_shape": shape, "dtype": self.dtype.name, "sparse": False, "name": self.name}


def Input(
    shape: Any = None,
    batch_size: int | None = None,
    name: str | None = None,
    dtype: Any = None,
    sparse: bool = False,
    tensor: Tensor | None = None,
    batch_shape: Any = None,
    **options: Any,
) -> Tensor:
    """A tensor that a model begins with: a placeholder ``[batch_size, *shape]``, or ``[*batch_shape]``.

    Raises `InvalidArgumentError` without a shape and a tensor.

        x = Input([784])
        model = Model(x, Dense(10)(x))
    """
    batch_shape = options.pop("batch_input_shape", batch_shape)
    if batch_shape is not None:
        options["batch_input_shape"] = batch_shape
    elif shape is not None:
        options["batch_input_shape"] = (batch_size, *as_tuple(shape))
    if tensor is not None:
        options.pop("batch_input_shape", None)
        dtype = dtype or tensor.dtype
    layer = InputLayer(name=name, dtype=dtype, input_tensor=tensor, sparse=sparse, **options)
    return layer.output
