"""Ops that only nodes being imported have, and flowrt says by others: see `v1_ops`, and
`flowrt.tf1.composed_ops` for those that need to know shapes.

Each has a rule that gives the node in its place, of the same name and with outputs in the same places, and
may add nodes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError, OpError, UnimplementedError
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import OpDef, registered_ops
from flowrt.tf1.composed_ops.composition import imported_op
from flowrt.tf1.graph_import.import_branches import unused_name

Rule: TypeAlias = "Callable[[Adapter, Node], Node]"

ADAPTED: dict[str, OpDef] = {}
"""The ops by name."""

_RULES: dict[OpDef, Rule] = {}


def adapted(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, with flowrt's ops in place of the `ADAPTED`; the same object if
    there are none. Raises `InvalidArgumentError` and `UnimplementedError`, with the node's name.
    """
    if not any(node.op in _RULES for node in nodes.values()):
        return nodes
    return Adapter(nodes).run()


@final
class Adapter:
    """Makes the nodes in place of others."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes, self._made = nodes, dict[str, Node]()
        self._taken = set(nodes)

    def run(self) -> dict[str, Node]:
        for node in self.nodes.values():
            rule = _RULES.get(node.op)
            if rule is None:
                self._made[node.name] = node
                continue
            try:
                made = rule(self, node)
            except OpError:
                raise
            except Exception as error:  # what no program writes: an attribute that is missing, or a list
                message = f"expected inputs and attributes that match the op; got {error!r}"
                raise located(node, InvalidArgumentError(message)) from error
            self._made[made.name] = made
        return self._made

    def become(self, node: Node, op: str, inputs: tuple[Ref, ...], **attrs: Any) -> Node:
        """``node`` with another op; of its attributes those with an underscore stay."""
        kept = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        return node.replace(op=registered_ops()[op], inputs=inputs, attrs=_complete(op, {**kept, **attrs}))

    def add(self, node: Node, part: str, op: str, inputs: tuple[Ref, ...], **attrs: Any) -> Ref:
        """Output 0 of a new node, which is called ``node/part`` and has its control inputs."""
        name = unused_name(f"{node.name}/{part}", self._taken)
        definition = registered_ops()[op]
        made = node.beside(name, definition, inputs, node.controls, _complete(op, attrs))
        self._made[name] = made
        return name, 0

    def constant(self, node: Node, part: str, value: Any, dtype: Any = np.int32) -> Ref:
        """A new constant for ``node``. It waits for an input, to be in the same frame and branch."""
        name = unused_name(f"{node.name}/{part}", self._taken)
        array = np.asarray(value, dtype)
        attrs = {"value": array, "dtype": as_dtype(array.dtype)}
        waits = (node.inputs[0][0],) if node.inputs else node.controls
        self._made[name] = node.beside(name, const, (), waits, attrs)
        return name, 0

    def known(self, node: Node, position: int) -> Any:
        """The value of an input that is a constant, as a list or a number."""
        self.check(node, position + 1)
        producer = self.nodes.get(node.inputs[position][0])
        while producer is not None and producer.op.name == "Identity":
            producer = self.nodes.get(producer.inputs[0][0])
        if producer is None or producer.op is not const:
            argument = node.op.inputs[position].name
            raise located(node, UnimplementedError(f"expected input {argument!r} to be a constant"))
        return producer.attrs["value"].tolist()

    def check(self, node: Node, count: int) -> None:
        """Raise `InvalidArgumentError` for fewer inputs."""
        if len(node.inputs) < count:
            message = f"expected at least {count} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))


def _complete(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """``attrs`` with the defaults of the others."""
    defaults = {key: attr.default for key, attr in registered_ops()[op].attrs.items() if not attr.required}
    return {**defaults, **attrs}


def adapter(name: str, signature: str, attrs: str = "") -> Callable[[Rule], Rule]:
    """A decorator: the function is the rule of the op ``name``."""

    def define(rule: Rule) -> Rule:
        ADAPTED[name] = op = imported_op(name, signature, attrs)
        _RULES[op] = _checked(rule, len(op.inputs))
        return rule

    return define


def _checked(rule: Rule, count: int) -> Rule:
    def checked(a: Adapter, node: Node) -> Node:
        if not any(argument.is_list for argument in node.op.inputs) and len(node.inputs) != count:
            message = f"expected {count} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))
        left_out = {key: _DEFAULTS[key] for key in node.op.types if key in _DEFAULTS}
        return rule(a, node.replace(attrs={**left_out, **node.attrs}))

    return checked


_DEFAULTS = dict.fromkeys(("Tidx", "Tsegmentids", "Tnumsegments"), dtypes.int32)
"""Types that a SavedModel leaves out."""


def outputs_of(node: Node, count: int) -> Node:
    """``node`` without told shapes, if it gets another number of outputs."""
    told = node.attrs.get(OUTPUT_SHAPES, ())
    if len(told) <= count:
        return node.replace(attrs={k: v for k, v in node.attrs.items() if k != OUTPUT_SHAPES})
    return node.replace(attrs={**node.attrs, OUTPUT_SHAPES: told[:count]})
