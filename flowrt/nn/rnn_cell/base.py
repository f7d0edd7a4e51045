"""`RNNCell`: one step of a recurrent network, ``cell(inputs, state) -> (outputs, new_state)``.

A cell is a `Layer`: its first call captures a variable scope and makes the variables there, later calls
share them, wherever they are. ``inputs`` are ``[batch, depth]``; a state is a structure of ``[batch, size]``
tensors as `RNNCell.state_size` is one of sizes.
"""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import DTypeLike
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.base.filling import zeros
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.bias import bias_add
from flowrt.graph.shapes import as_shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.layers.base import Layer
from flowrt.nest import flatten, map_structure
from flowrt.variables.variable import Variable
from flowrt.variables.variable_scope import get_variable_scope, variable_scope

Structure = Any


class RNNCell(Layer):
    """Base of all cells, including the user's.

    A subclass has `state_size`, `output_size`, and ``call(inputs, state)``, which creates its variables by
    `get_variable`, or does so earlier in ``build(inputs_shape)``. Instead of ``call`` it may have its own
    ``__call__(inputs, state, scope=None)``, like cells of early TensorFlow versions.
    """

    @property
    def state_size(self) -> Structure:
        """The size of the state: an int, a `TensorShape`, or a structure of them."""
        raise NotImplementedError(f"{type(self).__name__}: expected a state_size")

    @property
    def output_size(self) -> Structure:
        raise NotImplementedError(f"{type(self).__name__}: expected an output_size")

    def __call__(self, inputs: Structure, state: Structure, scope: Any = None) -> tuple[Any, Any]:
        """One step. ``scope`` is a variable scope, or the name of one, to make the variables in.

        Raises as ``call`` and `Layer.__call__` do.
        """
        around = get_variable_scope() if scope is None else scope
        with variable_scope(around, custom_getter=self._note, auxiliary_name_scope=False) as opened:
            result = self._apply(inputs, state, None if scope is None else opened)
        self._weights = list(dict.fromkeys(self._weights))  # variables of add_weight are recorded twice
        return result

    def _note(self, getter: Any, *args: Any, **kwargs: Any) -> Variable:
        """A variable getter that records variables of `get_variable` in ``call`` as weights of the cell."""
        variable: Variable = getter(*args, **kwargs)
        self._weights.append(variable)
        return variable

    def _apply(self, inputs: Structure, state: Structure, scope: Any) -> tuple[Any, Any]:
        tensors = map_structure(convert_to_tensor, inputs)
        if self._scope is None and scope is not None:
            with variable_scope(scope) as captured:
                self._scope = captured
        with self._entered() as opened, get_default_graph().name_scope(opened.original_name_scope):
            if not self.built:
                first: Tensor = flatten(tensors)[0]
                self._check(first)
                self.dtype = self.dtype or first.dtype
                self.build(map_structure(lambda tensor: tensor.shape, tensors))
                self.built = True
            return self.call(tensors, state)

    def zero_state(self, batch_size: Any, dtype: DTypeLike) -> Structure:
        """A state of zeros for ``batch_size`` rows, an int, a list of it or an integer scalar."""
        with get_default_graph().name_scope(f"{type(self).__name__}ZeroState"):
            return map_structure(lambda size: zeros_of(size, batch_size, dtype), self.state_size)

    def get_initial_state(
        self, inputs: NumericLike | None = None, batch_size: Any = None, dtype: DTypeLike | None = None
    ) -> Structure:
        """`zero_state` for the rows and dtype of ``inputs``, or for those given.

        Raises `InvalidArgumentError` when neither is there.
        """
        if inputs is not None:
            tensor = convert_to_tensor(inputs)
            batch_size, dtype = rows_of(tensor), tensor.dtype
        if batch_size is None or dtype is None:
            raise misuse(
                f"{type(self).__name__}.get_initial_state: expected inputs, or batch_size and dtype; got "
                f"batch_size {batch_size!r} and dtype {dtype!r}"
            )
        return self.zero_state(batch_size, dtype)


class LayerRNNCell(RNNCell):
    """A cell that creates all its variables by ``add_weight`` in ``build``, with inputs of rank 2.

    Unlike a plain `RNNCell`, two of a kind in one scope get separate scopes: "gru_cell", "gru_cell_1".
    """

    rank = 2

    def __call__(self, inputs: Structure, state: Structure, scope: Any = None) -> tuple[Any, Any]:
        return self._apply(inputs, state, scope)


def check_cell(where: str, cell: Any) -> None:
    """Raise `DTypeError` unless ``cell`` is callable and has a cell's attributes."""
    names = ("output_size", "state_size", "zero_state")
    missing = [name for name in names if not hasattr(type(cell), name) and not hasattr(cell, name)]
    if missing:
        raise misuse(f"{where}: expected an RNNCell; got {cell!r}, which has no {missing[0]}", DTypeError)
    if not callable(cell):
        raise misuse(f"{where}: expected an RNNCell; got {cell!r}, which cannot be called", DTypeError)


def zeros_of(size: Any, batch_size: Any, dtype: Any) -> Tensor:
    """Zeros for ``batch_size`` rows, a number or a list of it, of ``size``: a number or a shape."""
    dims = as_shape(size) or ()
    if isinstance(batch_size, Tensor):
        return zeros(stack([batch_size, *dims]), dtype)
    return zeros([*(batch_size if isinstance(batch_size, (list, tuple)) else [batch_size]), *dims], dtype)


def rows_of(tensor: Tensor, axis: int = 0) -> Any:
    """The number of rows of a tensor along ``axis``: an int, or a scalar tensor if unknown."""
    known = None if tensor.shape.ndims is None else tensor.shape.as_list()[axis]
    return shape(tensor)[axis] if known is None else known


def affine(parts: list[Any], kernel: Variable, bias: Variable) -> Tensor:
    """``[part, part, ...] @ kernel + bias``, the parts side by side."""
    return bias_add(matmul(concat(parts, 1), kernel), bias)
