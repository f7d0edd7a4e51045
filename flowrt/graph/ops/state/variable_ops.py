"""Variable ops: handles, reads, assignments, sparse reads and updates.

All variables are resource variables: a handle names the session's `VariableResource`, and accesses to it are
ordered by creation (see `flowrt.graph.passes.prepare.order_effects`). Updates check everything before they
write; for indices on a GPU see `flowrt.graph.ops.base.indexing`.
"""

from __future__ import annotations

import math
from typing import Any

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, OutOfRangeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation
from flowrt.graph.layouts.memory_places import MemoryPlace
from flowrt.graph.node import Node
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    Effect,
    Effects,
    OpDef,
    ShapeContext,
    define_handle,
    define_op,
)
from flowrt.graph.op_facets import Kernel, Loop, LoopPattern, instruction
from flowrt.graph.ops.array import batch_axis
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.array.scatter_rows import fold_rows
from flowrt.graph.ops.array.slicing import MASKS, strided_slice_op
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.indexing import check_range, put_rows, take, take_slices
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.partial_value import partial_value
from flowrt.graph.resources.unit_memory import UnitMemory
from flowrt.graph.resources.variables import VariableResource
from flowrt.graph.shapes import Shape, compatible, concat, format_shape
from flowrt.loops.loop_program import LoopBuilder, LoopValue, Matrix

var_handle_op = define_handle(
    "VarHandleOp",
    lambda node: VariableResource(node.name, node.attrs["dtype"], node.attrs["shape"]),
    "The handle of a variable of the session.",
    output="resource: resource",
    attrs="dtype: type, shape: shape = None, container: string = '', shared_name: string = ''",
    value=lambda s: (s.attrs["dtype"], s.attrs["shape"]),  # a handle has the dtype and shape of its variable
)

unit_memory_op = define_handle(
    "_UnitMemory",
    lambda node: UnitMemory(node.attrs["dtype"], node.attrs["length"]),
    "The handle of a memory in which variables are stored one behind the other. It is in no graph: a session "
    "makes it with the first of them.",
    attrs="dtype: type, length: int, container: string = ''",
)


def memory_handle(handle: Node, place: MemoryPlace) -> Node:
    """The handle of the memory in which the variable ``handle`` has its ``place``."""
    attrs = {
        "dtype": handle.attrs["dtype"],
        "length": place.length,
        "container": handle.attrs.get("container", ""),
    }
    return Node(place.name, unit_memory_op, (), (), attrs, handle.device, handle.source, handle.outputs)


rows_of_variable_op = define_op(
    "_RowsOfVariable",
    "resource: resource -> rows: resource",
    attrs="begin: int, end: int",
    shape=lambda s: [()],
    kernel=lambda xp, resource, begin, end: resource.rows(begin, end),
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    alias=True,
    doc="The rows from ``begin`` to before ``end`` of a variable, in its memory, as a variable.",
)


def variable_shape(s: ShapeContext) -> Shape:
    """The shape of the variable of handle input 0, as far as it is known."""
    known = s.value(0)
    return None if known is None else known[1]


read_variable_op = define_op(
    "ReadVariableOp",
    "resource: resource -> value: dtype in STORED",
    attrs="dtype: type",
    shape=lambda s: [variable_shape(s)],
    kernel=lambda xp, resource: resource.read(),
    vjp=lambda op, dy: [dy],
    jvp=lambda op, dx: [dx],
    effects=Effects(Effect.READ),
    alias=True,
    doc="A variable's value at this point of the order of creation.",
)


def _check_assigned(s: ShapeContext) -> list[Shape]:
    expected = variable_shape(s)
    if not compatible(expected, s.shapes[1]):
        shapes = f"{format_shape(expected)}; got {format_shape(s.shapes[1])}"
        raise InvalidArgumentError(f"expected a value of the variable's shape {shapes}")
    return []


def _define_assign(name: str, dtypes: str, kernel: Kernel, loop: Loop, doc: str) -> OpDef[Operation]:
    return define_op(
        name,
        f"resource: resource, value: dtype in {dtypes} ->",
        shape=_check_assigned,
        kernel=kernel,
        effects=Effects(Effect.WRITE),
        loop=loop,
        doc=doc,
    )


def current_value(resource: VariableResource, value: Any) -> Any:
    """The variable's array, if ``value`` has its shape; to be called under the lock, before an update
    writes.
    """
    array = resource.read()
    if value.shape != array.shape:
        raise InvalidArgumentError(
            f"expected an update of shape {list(array.shape)}; got {list(value.shape)}"
        )
    return array


def _in_place(ufunc: str) -> Kernel:
    def kernel(xp: Any, resource: VariableResource, value: Any) -> None:
        with resource.lock:
            array = current_value(resource, value)
            getattr(xp, ufunc)(array, value, out=array)

    return kernel


assign_variable_op = _define_assign(
    "AssignVariableOp",
    "STORED",
    lambda xp, resource, value: resource.assign(xp, value),
    Loop(lambda b, old, value: value),
    "Sets a variable.",
)
assign_other_rows_op = define_op(
    "_AssignOtherRows",
    "resource: resource, rows: resource, value: dtype in STORED ->",
    kernel=lambda xp, resource, rows, value: resource.assign_around(xp, rows, value),
    effects=Effects(Effect.WRITE),
    doc="Sets all rows of a variable but those of ``rows``, which are up to date.",
)
assign_add_variable_op = _define_assign(
    "AssignAddVariableOp", "ANY", _in_place("add"), instruction("add"), "Adds to a variable, in place."
)
assign_sub_variable_op = _define_assign(
    "AssignSubVariableOp",
    "ANY",
    _in_place("subtract"),
    instruction("sub"),
    "Subtracts from a variable, in place.",
)

var_is_initialized_op = define_op(
    "VarIsInitializedOp",
    "resource: resource -> is_initialized: bool",
    shape=lambda s: [()],
    kernel=lambda xp, resource, out=None: delivered(xp, xp.asarray(resource.is_initialized), bool, out),
    effects=Effects(Effect.READ),
    doc="True if the variable has a value.",
)


def _count_up_to(xp: Any, resource: VariableResource, limit: int, out: Any = None) -> Any:
    with resource.lock:
        array = resource.read()
        if array.shape != () or int(array) >= limit:
            raise OutOfRangeError(
                f"variable {resource.name!r}: expected a number below the limit {limit}; got {array}"
            )
        before = delivered(xp, array.copy(), array.dtype, out)
        xp.add(array, 1, out=array)
        return before


resource_count_up_to = define_op(
    "ResourceCountUpTo",
    "resource: resource -> T in INDEX",
    attrs="limit: int, T: type",
    shape=lambda s: [()],
    kernel=_count_up_to,
    effects=Effects(Effect.WRITE),
    doc="Increments a scalar variable and returns its previous value, until it reaches the limit.",
)


# --- rows of a variable


def _gather_shape(s: ShapeContext) -> list[Shape]:
    params, batch = variable_shape(s), s.attrs["batch_dims"]
    indices = s.shapes[1]
    if params is None or indices is None:
        return [None]
    return [params[:batch] + indices[batch:] + params[batch + 1 :]]


def _gather(xp: Any, resource: VariableResource, indices: Any, batch_dims: int, out: Any = None) -> Any:
    array = resource.read()
    check_range(xp, "indices", indices.reshape(-1), array.shape[batch_dims])
    if batch_dims == 0:
        return take(xp, array, indices, out=out)
    return delivered(xp, take_slices(xp, array, indices, batch_dims, batch_dims), array.dtype, out)


def _gather_vjp(op: Any, dy: Any) -> list[Any]:
    """Sparse: one slice for each gathered row."""
    _, shape = partial_value(op.graph.node, op.inputs[0].ref)
    indices = reshape(op.inputs[1], [-1])
    values = reshape(dy, [-1, *shape[1:]])
    return [IndexedSlices(values, indices, convert_to_tensor(shape, dtypes.int32)), None]


def _gather_loop(
    b: LoopBuilder, params: Matrix, indices: LoopValue, *, batch_dims: int
) -> LoopValue | tuple[LoopValue, ...] | None:
    """GatherV2's, of the variable's value."""
    loop = gather_op.loop
    return None if loop is None else loop.build(b, params, indices, 0, batch_dims=batch_dims)


resource_gather = define_op(
    "ResourceGather",
    "resource: resource, indices: Tindices in INDEX -> dtype in ANY",
    attrs="dtype: type, batch_dims: int = 0, validate_indices: bool = True",
    shape=_gather_shape,
    kernel=_gather,
    vjp=_gather_vjp,
    effects=Effects(Effect.READ),
    loop=Loop(_gather_loop, LoopPattern.GATHER),
    batch=batch_axis.gather_of_variable,
    doc="Rows of a variable, read without reading the rest; on a GPU zeros for an index out of range.",
)


def _check_scatter(s: ShapeContext) -> list[Shape]:
    shape = variable_shape(s)
    expected = concat([s.shapes[1], None if shape is None else shape[1:]])
    if not compatible(expected, s.shapes[2]) and s.shapes[2] != ():
        raise InvalidArgumentError(
            f"expected updates of shape {format_shape(expected)}; got {format_shape(s.shapes[2])}"
        )
    return []


def _define_scatter(name: str, ufunc: str | None) -> OpDef[Operation]:
    def kernel(xp: Any, resource: VariableResource, indices: Any, updates: Any) -> None:
        with resource.lock:
            array = resource.read()
            check_range(xp, "indices", indices.reshape(-1), array.shape[0])
            if ufunc is None:
                put_rows(xp, array, indices, updates)
                return
            width = math.prod(array.shape[1:])
            given = xp.broadcast_to(updates, indices.shape + array.shape[1:]).reshape(indices.size, width)
            fold_rows(xp, ufunc, array.reshape(array.shape[0], width), indices.reshape(-1), given)

    return define_op(
        name,
        "resource: resource, indices: Tindices in INDEX, updates: dtype in ANY ->",
        shape=_check_scatter,
        kernel=kernel,
        effects=Effects(Effect.WRITE),
        doc="Updates rows of a variable in place; equal indices act one after the other. On a GPU indices out"
        " of range are left out, and of rows set at equal indices any one stays.",
    )


resource_scatter_update = _define_scatter("ResourceScatterUpdate", None)
resource_scatter_add = _define_scatter("ResourceScatterAdd", "add")
resource_scatter_sub = _define_scatter("ResourceScatterSub", "subtract")
resource_scatter_mul = _define_scatter("ResourceScatterMul", "multiply")
resource_scatter_div = _define_scatter("ResourceScatterDiv", "divide")
resource_scatter_min = _define_scatter("ResourceScatterMin", "minimum")
resource_scatter_max = _define_scatter("ResourceScatterMax", "maximum")


# --- a slice of a variable


def _assign_slice(
    xp: Any, resource: VariableResource, begin: Any, end: Any, strides: Any, value: Any, begin_mask: int,
    end_mask: int, ellipsis_mask: int, new_axis_mask: int, shrink_axis_mask: int,
) -> None:  # fmt: skip
    masks = begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask
    with resource.lock:
        part = strided_slice_op.kernel(xp, resource.read(), begin, end, strides, *masks)
        try:
            part[...] = xp.broadcast_to(value, part.shape)
        except ValueError:
            shapes = f"{format_shape(part.shape)}; got {format_shape(value.shape)}"
            raise InvalidArgumentError(f"expected a value of the slice's shape {shapes}") from None


resource_strided_slice_assign: OpDef[Operation] = define_op(
    "ResourceStridedSliceAssign",
    "ref: resource, begin: host Index in INDEX, end: host Index, strides: host Index, value: T in ANY ->",
    attrs=MASKS,
    shape=lambda s: [],
    kernel=_assign_slice,
    effects=Effects(Effect.WRITE),
    doc="Sets a slice of a variable in place, under its lock: what other threads set beside it stays. The"
    " value is broadcast to the slice.",
)
