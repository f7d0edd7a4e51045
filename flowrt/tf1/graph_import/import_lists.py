"""TensorArrays and stacks of TensorFlow 1 as lists, during import.

In TensorFlow 1 both are resources: a handle identifies one, and operations change it. (The flow that an
operation on an array returns is a number that only orders the next one behind it.) A list is a value. So each
function gets the lists behind the handles that it uses as arguments, a loop or a branch returns them as its
operations left them, and the handles are gone.

TensorArrayGradV3 gives the handle of an array's gradient: zeros, to which writes add. It is a list of its
own, made where it is first used in the function that made the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import const, feed_op
from flowrt.graph.evaluate import located
from flowrt.graph.functions.control_flow import if_op, while_op
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.base.shape_manipulation import reshape, shape_op
from flowrt.graph.ops.lists.stacked_lists import (
    tensor_list_concat,
    tensor_list_gather,
    tensor_list_scatter_into,
    tensor_list_split,
)
from flowrt.graph.ops.lists.tensor_lists import (
    add_at,
    add_lists,
    empty_tensor_list,
    format_element_shape,
    tensor_list_get_item,
    tensor_list_length,
    tensor_list_pop_back,
    tensor_list_push_back,
    tensor_list_reserve,
    tensor_list_set_item,
    zeros_like_list,
)
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.shapes import is_static
from flowrt.graph.topology import sort_topologically
from flowrt.tf1.graph_import import v1_ops
from flowrt.tf1.graph_import.import_branches import unused_name, without_others

Key: TypeAlias = tuple[str, ...]
"""A list: the node that makes its array or stack, and the sources of the gradients that lead there."""


def handles_to_lists(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs and structured control flow, with lists in place of TensorArrays
    and stacks; the same object if there are none. Raises `InvalidArgumentError`, with the node's name, for a
    handle that is none of theirs, and `UnimplementedError` for one that is kept as a value.
    """
    if not _has_handles(nodes):
        return nodes
    function = _Function(nodes, {}, {node.name for node in _all_nodes(nodes)}, {})
    function.rewrite()
    return function.made


def _has_handles(nodes: Mapping[str, Node]) -> bool:
    return any(node.op in _RULES for node in _all_nodes(nodes))


def _all_nodes(nodes: Mapping[str, Node]) -> Iterable[Node]:
    for node in nodes.values():
        yield node
        for function in _functions(node).values():
            yield from _all_nodes(function.nodes)


def _functions(node: Node) -> dict[str, Subgraph]:
    """The functions of a loop or a branch."""
    if node.op not in (if_op, while_op):
        return {}
    return {key: value for key, value in node.attrs.items() if isinstance(value, Subgraph)}


@final
class _Function:
    """``nodes`` of one function, of which ``made`` are the resulting ones. ``handles`` are the lists that
    tensors stand for, ``lists`` the tensors that have their values so far, ``arguments`` the parameters that
    were added for those of the caller, and ``makers`` what makes the arrays and stacks of all functions.
    """

    def __init__(
        self, nodes: Mapping[str, Node], handles: Mapping[Ref, Key], taken: set[str], makers: dict[str, Node]
    ) -> None:
        self._nodes, self._taken, self._makers = nodes, taken, makers
        self.handles = dict(handles)
        self.lists: dict[Key, Ref] = {}
        self.arguments: dict[Key, str] = {}
        self.made: dict[str, Node] = {}
        self._moved: dict[Ref, Ref] = {}

    def rewrite(self) -> None:
        for name in sort_topologically(without_others(self._nodes)):
            node = self._nodes[name]
            if node.op in _RULES:
                count = len(node.op.inputs)
                if len(node.inputs) != count:
                    message = f"expected {count} inputs; got {len(node.inputs)}"
                    raise located(node, InvalidArgumentError(message))
                try:
                    _RULES[node.op](self, node)
                except KeyError as error:
                    message = f"attribute {error.args[0]!r}: expected a value; got none"
                    raise located(node, InvalidArgumentError(message)) from None
            elif node.op is identity and node.inputs[:1] and node.inputs[0] in self.handles:
                self.handles[name, 0] = self.handles[node.inputs[0]]
                self.put(node.replace(op=no_op, inputs=(), attrs={}))
            elif functions := _functions(node):
                self._call(node, functions)
            else:
                self.put(node)

    def put(self, node: Node) -> None:
        """Add ``node``, which reads tensors by their names before."""
        for ref in node.inputs:
            self.check_value(node, ref)
        self.made[node.name] = node.replace(inputs=tuple(map(self.moved, node.inputs)))

    def check_value(self, node: Node, ref: Ref) -> None:
        """Raises `UnimplementedError` if ``ref`` is a handle: ``node`` does not use it as one."""
        if ref in self.handles:
            message = f"expected handles of arrays only where these are used; got {ref[0]!r} as a value"
            raise located(node, UnimplementedError(f"{message}, such as for the gradient of a loop around"))

    def moved(self, ref: Ref) -> Ref:
        return self._moved.get(ref, ref)

    # --- the lists behind handles

    def key(self, node: Node) -> Key:
        """The list of the handle that ``node`` reads."""
        if not node.inputs or node.inputs[0] not in self.handles:
            message = f"expected the handle of a TensorArrayV3 or a StackV2; got {node.inputs[:1]}"
            raise located(node, InvalidArgumentError(message))
        return self.handles[node.inputs[0]]

    def list(self, key: Key) -> Ref:
        """The value of a list so far."""
        if key not in self.lists:
            if key[0] in self._nodes:
                maker = self.maker(key)
                name = self.unused(f"{key[0]}/{key[-1]}")
                self.made[name] = maker.beside(name, zeros_like_list, (self.list(key[:-1]),))
            else:
                name = self.arguments[key] = self.unused(f"{'/'.join(key)}/list")
            self.lists[key] = name, 0
        return self.lists[key]

    def maker(self, key: Key) -> Node:
        """The TensorArrayV3 or StackV2 of a list."""
        return self._makers[key[0]]

    def make(self, node: Node, made: str) -> None:
        """Let ``made`` be the list of the array or stack that ``node`` makes."""
        self._makers[node.name] = node
        self.handles[node.name, 0] = (node.name,)
        self.lists[node.name,] = made, 0

    # --- nodes for others

    def unused(self, name: str) -> str:
        return unused_name(name, self._taken)

    def constant(self, node: Node, name: str, value: Any, dtype: Any = np.int32) -> Ref:
        array = np.array(value, dtype)
        full = self.unused(f"{node.name}/{name}")
        attrs = {"value": array, "dtype": as_dtype(array.dtype)}
        self.made[full] = node.beside(full, const, (), (), attrs)
        return full, 0

    def add(self, node: Node, op: OpDef, *inputs: Ref, **attrs: Any) -> str:
        """A new node for ``node``, which reads tensors of the result."""
        name = self.unused(f"{node.name}/{op.name}")
        self.made[name] = node.beside(name, op, inputs, node.controls, attrs)
        return name

    def become(self, node: Node, op: OpDef, *inputs: Ref, **attrs: Any) -> None:
        """``node`` with another op, which reads tensors of the result."""
        kept = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        if len(op.outputs) != len(node.op.outputs):
            kept.pop(OUTPUT_SHAPES, None)
        self.made[node.name] = node.replace(op=op, inputs=inputs, attrs={**kept, **attrs})

    def passes(self, node: Node, ref: Ref) -> None:
        """Let the only output of ``node`` be ``ref``, which its readers read without waiting for ``node``."""
        self.become(node, identity, ref)
        self.alias((node.name, 0), ref)

    def alias(self, ref: Ref, of: Ref) -> None:
        """Let readers of ``ref`` read ``of``."""
        self._moved[ref] = self.moved(of)

    # --- loops and branches

    def _call(self, node: Node, functions: Mapping[str, Subgraph]) -> None:
        first = 1 if node.op is if_op else 0
        arguments = node.inputs[first:]
        known = [self.handles.get(ref) for ref in arguments]
        inner = {key: self._inner(function, known) for key, function in functions.items()}
        keys = list(dict.fromkeys(key for each in inner.values() for key in each.arguments))
        if not keys and not any(known) and all(each.is_same for each in inner.values()):
            self.put(node)
            return
        attrs = dict(node.attrs)
        for name, each in inner.items():
            each.check_results(node, functions[name], known if node.op is while_op else [])
            attrs[name] = each.function(functions[name], keys, is_test=name == "cond")
        results = functions["then_branch" if node.op is if_op else "body"].fetches
        kept = [i for i in range(len(results)) if node.op is if_op or known[i] is None]
        self._moved |= {(node.name, i): (node.name, place) for place, i in enumerate(kept)}
        values = [self.moved(ref) for ref, key in zip(arguments, known, strict=True) if key is None]
        inputs = (*map(self.moved, node.inputs[:first]), *values, *map(self.list, keys))
        self.made[node.name] = node.replace(inputs=inputs, attrs=attrs)
        for i, key in enumerate(keys):
            self.lists[key] = node.name, len(kept) + i

    def _inner(self, function: Subgraph, known: Sequence[Key | None]) -> _Function:
        handles = {(feed, 0): key for feed, key in zip(function.feeds, known, strict=True) if key}
        inside = {name: node for name, node in function.nodes.items() if name not in function.feeds}
        found = _Function(inside, handles, self._taken, self._makers)
        found.rewrite()
        return found

    def check_results(self, node: Node, before: Subgraph, known: Sequence[Key | None]) -> None:
        """Raises `UnimplementedError` unless the results of ``node`` are no handles, but those that a loop
        gets, at their places.
        """
        for i, ref in enumerate(before.fetches):
            if self.handles.get(ref) != (known[i] if i < len(known) else None):
                self.check_value(node, ref)

    @property
    def is_same(self) -> bool:
        return self.made == self._nodes

    def function(self, before: Subgraph, keys: Sequence[Key], *, is_test: bool) -> Subgraph:
        """The function that was ``before``, with the lists ``keys`` as last parameters and, unless it is the
        test of a loop, as last results.
        """
        added = {key: self.arguments.get(key) or self.unused(f"{'/'.join(key)}/list") for key in keys}
        kept = [feed for feed in before.feeds if (feed, 0) not in self.handles]
        feeds = [*kept, *added.values()]
        parameters = {name: Node(name, feed_op, (), (), {}, "", None, ()) for name in added.values()}
        parameters = {**{name: before.nodes[name] for name in kept}, **parameters}
        results = [self.moved(ref) for ref in before.fetches if ref not in self.handles]
        if not is_test:
            results += [self.lists.get(key, (added[key], 0)) for key in keys]
        return Subgraph({**parameters, **self.made}, tuple(feeds), tuple(results), before.targets)


# --- arrays


def _make(f: _Function, node: Node) -> None:
    shape = f.constant(node, "element_shape", format_element_shape(node.attrs["element_shape"]))
    size = f.moved(node.inputs[0])
    name = f.add(node, tensor_list_reserve, shape, size, element_dtype=node.attrs["dtype"])
    f.become(node, const, value=np.zeros((), np.float32), dtype=dtypes.float32)
    f.alias((node.name, 1), (node.name, 0))
    f.make(node, name)


def _make_gradient(f: _Function, node: Node) -> None:
    f.handles[node.name, 0] = (*f.key(node), node.attrs["source"])
    f.alias((node.name, 1), node.inputs[1])
    f.become(node, no_op)


def _is_gradient(key: Key) -> bool:
    return len(key) > 1


def _update(f: _Function, node: Node, op: OpDef, *inputs: Ref, **attrs: Any) -> None:
    """Let ``op`` of the list and ``inputs`` be the list from now on; ``node`` returns its flow."""
    key = f.key(node)
    f.lists[key] = f.add(node, op, f.list(key), *inputs, **attrs), 0
    f.passes(node, f.moved(node.inputs[-1]))


def _add_at(f: _Function, node: Node, index: Ref, value: Ref, shape: Sequence[int]) -> None:
    """Add ``value`` at ``index``, of which the shape need not be known if it comes from a stack."""
    wanted = f.constant(node, "shape", shape)
    known = f.add(node, reshape, index, wanted), 0
    _update(f, node, add_at, known, value)


def _element_shape(f: _Function, node: Node, index: Ref | None = None) -> Ref:
    """The shape of the element at ``index`` (None: any) of the array that ``node`` reads. That of a gradient
    which was not written is the array's own.
    """
    key = f.key(node)
    shape = f.maker(key).attrs["element_shape"]
    told = f.constant(node, "element_shape", format_element_shape(shape))
    if not _is_gradient(key) or is_static(shape):
        return told
    at = f.constant(node, "first", 0) if index is None else index
    dtype = f.maker(key).attrs["dtype"]
    element = f.add(node, tensor_list_get_item, f.list(key[:1]), at, told, element_dtype=dtype)
    return f.add(node, shape_op, (element, 0), out_type=dtypes.int32), 0


def _write(f: _Function, node: Node) -> None:
    _, index, value, _ = map(f.moved, node.inputs)
    key = f.key(node)
    if _is_gradient(key):
        _add_at(f, node, index, value, [])
    else:
        attrs = {"resize_if_index_out_of_bounds": f.maker(key).attrs["dynamic_size"], "_write_once": True}
        _update(f, node, tensor_list_set_item, index, value, **attrs)


def _read(f: _Function, node: Node) -> None:
    index = f.moved(node.inputs[1])
    inputs = f.list(f.key(node)), index, _element_shape(f, node, index)
    f.become(node, tensor_list_get_item, *inputs, element_dtype=node.attrs["dtype"])


def _gather(f: _Function, node: Node) -> None:
    inputs = f.list(f.key(node)), f.moved(node.inputs[1]), _element_shape(f, node)
    f.become(node, tensor_list_gather, *inputs, element_dtype=node.attrs["dtype"])


def _scatter(f: _Function, node: Node) -> None:
    _, indices, value, _ = map(f.moved, node.inputs)
    key = f.key(node)
    if _is_gradient(key):
        _add_at(f, node, indices, value, [-1])
    else:
        attrs = {"_resizes": f.maker(key).attrs["dynamic_size"], "_write_once": True}
        _update(f, node, tensor_list_scatter_into, value, indices, **attrs)


def _concat(f: _Function, node: Node) -> None:
    rows = node.attrs["element_shape_except0"]
    shape = f.constant(node, "element_shape", format_element_shape(None if rows is None else (None, *rows)))
    lengths = f.constant(node, "leading_dims", [], np.int64)
    inputs = f.list(f.key(node)), shape, lengths
    f.become(node, tensor_list_concat, *inputs, element_dtype=node.attrs["dtype"])


def _split(f: _Function, node: Node) -> None:
    _, value, lengths, _ = map(f.moved, node.inputs)
    key = f.key(node)
    shape = f.constant(node, "element_shape", format_element_shape(f.maker(key).attrs["element_shape"]))
    parts = f.add(node, tensor_list_split, value, shape, lengths)
    if _is_gradient(key):
        _update(f, node, add_lists, (parts, 0))
        return
    f.lists[key] = parts, 0
    f.passes(node, f.moved(node.inputs[-1]))


# --- stacks


def _make_stack(f: _Function, node: Node) -> None:
    inputs = f.constant(node, "element_shape", -1), f.constant(node, "max_num_elements", -1)
    f.make(node, f.add(node, empty_tensor_list, *inputs, element_dtype=node.attrs["elem_type"]))
    f.become(node, no_op)


def _push(f: _Function, node: Node) -> None:
    key, value = f.key(node), f.moved(node.inputs[1])
    f.check_value(node, node.inputs[1])
    f.lists[key] = f.add(node, tensor_list_push_back, f.list(key), value), 0
    f.passes(node, value)


def _pop(f: _Function, node: Node) -> None:
    key, dtype = f.key(node), node.attrs["elem_type"]
    shape = (node.attrs.get(OUTPUT_SHAPES) or (None,))[0]
    told = f.constant(node, "element_shape", format_element_shape(shape))
    popped = f.add(node, tensor_list_pop_back, f.list(key), told, element_dtype=dtype)
    f.lists[key] = popped, 0
    f.passes(node, (popped, 1))


_RULES: Mapping[OpDef, Callable[[_Function, Node], None]] = {
    v1_ops.TENSOR_ARRAY: _make,
    v1_ops.ARRAY_GRAD: _make_gradient,
    v1_ops.WRITE: _write,
    v1_ops.READ: _read,
    v1_ops.GATHER: _gather,
    v1_ops.SCATTER: _scatter,
    v1_ops.CONCAT: _concat,
    v1_ops.SPLIT: _split,
    v1_ops.SIZE: lambda f, node: f.become(node, tensor_list_length, f.list(f.key(node))),
    v1_ops.CLOSE: lambda f, node: f.become(node, no_op),
    v1_ops.STACK: _make_stack,
    v1_ops.PUSH: _push,
    v1_ops.POP: _pop,
    v1_ops.CLOSE_STACK: lambda f, node: f.become(node, no_op),
}
