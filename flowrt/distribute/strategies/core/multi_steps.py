"""`run_steps`: several training steps in one session call.

The steps are the iterations of a `while_loop`, which every replica's device runs independently. They read
their data from the iterator inside the loop, which prefetches meanwhile, so that the host is called once for
all of them. Values that a step reads from the outer graph (such as a learning rate that decays with the
global step) are recomputed in every iteration, as in every session call. A result is kept in a cell, a
resource without an initializer on the result's device, which each step overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from flowrt.base.structure import Structure, map_structure
from flowrt.control_flow.loops import while_loop
from flowrt.distribute.strategies.reduce.cross_device_ops import placed_on
from flowrt.distribute.strategies.values.distributed_values import DistributedValues
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.state import variable_ops
from flowrt.graph.ops.text.python_calls import group


def run_steps(extended: Any, step: Callable[[], Structure], count: int) -> Structure:
    """The result of the last of ``count`` calls of ``step`` in the graph: tensors and distributed values
    unchanged, for an operation one that runs all steps.

    ``step`` is called once, to build the loop's body, cross-replica. At run time, raises the error of a step;
    the steps before it are done then.
    """
    strategy = extended.strategy
    kept: list[Structure] = []

    def body(done: Tensor) -> Tensor:
        looped = get_default_graph()
        assert isinstance(looped, FuncGraph)
        looped.computes_anew = True
        result = map_structure(_keep, step())
        kept.append(result)
        with get_default_graph().control_dependencies([strategy.group(map_structure(_written, result))]):
            return done + 1

    with get_default_graph().name_scope("steps"):
        done = while_loop(lambda done: done < count, body, [convert_to_tensor(0)], back_prop=False)
        return map_structure(lambda leaf: _read(leaf, done), kept[0])


@final
class _Cell:
    """The loop's storage for ``value``."""

    def __init__(self, value: Any) -> None:
        tensor = convert_to_tensor(value)
        self._dtype, self._device = tensor.dtype, tensor.device
        root = get_default_graph().root
        with root, root.control_dependencies(None), placed_on(self._device):
            name = root.unique_absolute("last_of_steps")
            self._handle = variable_ops.var_handle_op(
                dtype=self._dtype, shape=tensor.spec.shape, shared_name=name, name=f"{name}/"
            )
        with placed_on(self._device):
            self.written: Operation = variable_ops.assign_variable_op(self._handle, tensor)

    def read(self) -> Tensor:
        with placed_on(self._device):
            return variable_ops.read_variable_op(self._handle, dtype=self._dtype)


def _keep(leaf: Any) -> Any:
    """``leaf`` of a step's result with a cell for each tensor."""
    if isinstance(leaf, DistributedValues):
        return type(leaf)([_keep(value) for value in leaf.values])
    return leaf if leaf is None or isinstance(leaf, Operation) else _Cell(leaf)


def _written(leaf: Any) -> Any:
    if isinstance(leaf, DistributedValues):
        return [_written(value) for value in leaf.values]
    return leaf.written if isinstance(leaf, _Cell) else group() if leaf is None else leaf


def _read(leaf: Any, done: Tensor) -> Any:
    """The value kept by `_keep`, after the loop that counts ``done``."""
    if isinstance(leaf, DistributedValues):
        return type(leaf)([_read(value, done) for value in leaf.values])
    if leaf is None:
        return None
    with get_default_graph().control_dependencies([done]):
        return leaf.read() if isinstance(leaf, _Cell) else group(name="run_steps")
