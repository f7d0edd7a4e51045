"""`add_saver`: the nodes by which a program with a graph's message alone saves and restores its variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrt import protos
from flowrt.graph.construction.constant import constant, placeholder_with_default
from flowrt.graph.construction.graph import Graph
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.state.variable_ops import assign_variable_op, read_variable_op, var_handle_op
from flowrt.graph.ops.text.checkpoint_files import restore_op, save_op
from flowrt.graph.ops.text.python_calls import group
from flowrt.variables.variable import Variable


def add_saver(graph_def: Any, variables: Mapping[str, Variable]) -> Any:
    """Add to ``graph_def``, the message of a graph, the nodes that save ``variables`` under the given names
    and restore them. Returns the SaverDef that names them. The graph itself stays as it is.
    """
    scope = _free_scope(graph_def)
    with Graph() as beside:
        handles = {
            name: var_handle_op(
                dtype=v.dtype, shape=v.op.get_attr("shape"), container=v.op.get_attr("container"),
                shared_name=v.op.get_attr("shared_name"), name=f"{v.op.name}/",
            )
            for name, v in variables.items()
        }  # fmt: skip
        there = {handle.op.name for handle in handles.values()}
        with beside.name_scope(f"{scope}/"):
            filename = placeholder_with_default(constant("model", name="Const/input"), [], name="Const")
            names, slices = constant(list(variables)), constant([""] * len(variables))
            values = [read_variable_op(handles[n], dtype=v.dtype) for n, v in variables.items()]
            with beside.control_dependencies([save_op(filename, names, slices, values)]):
                saved = identity(filename, name="control_dependency")
            types = [v.dtype for v in variables.values()]
            restored = restore_op(filename, names, slices, dtypes=types)
            assigned = [assign_variable_op(h, r) for h, r in zip(handles.values(), restored, strict=True)]
            restore = group(*assigned, name="restore_all")
    message = beside.as_graph_def(add_shapes=True)
    graph_def.node.extend([node for node in message.node if node.name not in there])
    kind = protos.meta_graph_pb2.SaverDef
    return kind(
        filename_tensor_name=filename.name, save_tensor_name=saved.name, restore_op_name=restore.name,
        version=kind.V2,
    )  # fmt: skip


def _free_scope(graph_def: Any) -> str:
    taken = {node.name.partition("/")[0] for node in graph_def.node}
    scope, count = "save", 0
    while scope in taken:
        count += 1
        scope = f"save_{count}"
    return scope
