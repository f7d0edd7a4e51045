"""Lists with elements of the size of the batch, which only the first of them tells.

    scan(fn, columns)      writes the first column into its list of results, in front of the loop

The list is begun before a batch of any size is fed, with elements of an unknown size, so it could not be in
parts. Once the sizes of a step are known, the list may begin with that of the element which is written.
"""

from __future__ import annotations

import numpy as np

from flowrt.graph.construction.constant import const_beside
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.lists.tensor_lists import tensor_list_reserve, tensor_list_set_item
from flowrt.graph.passes.layouts.stages.sizes_of_nothing import with_shapes
from flowrt.graph.shapes import Shape, is_static


def with_sizes_of_lists(subgraph: Subgraph) -> Subgraph:
    """``subgraph``, with inferred shapes, with known shapes of the elements of lists, if the only reader of
    a list writes one of a known shape; the same object if there are none.
    """
    consumers = subgraph.consumers()
    nodes: dict[str, Node] = {}
    for node in subgraph:
        shape = _written(subgraph, node, consumers[node.name]) if node.op is tensor_list_reserve else None
        if shape is not None and not is_static(node.outputs[0].shape):
            size = const_beside(node, f"{node.name}/element_shape", np.array(shape, np.int32))
            nodes[size.name] = size
            node = node.replace(inputs=((size.name, 0), *node.inputs[1:]))
        nodes[node.name] = node
    return subgraph if len(nodes) == len(subgraph.nodes) else with_shapes(subgraph.replace(nodes=nodes))


def _written(subgraph: Subgraph, node: Node, readers: list[str]) -> Shape:
    """The shape of the element that the one reader of the list ``node`` writes; None if it is not known."""
    if len(readers) != 1 or (reader := subgraph.nodes[readers[0]]).op is not tensor_list_set_item:
        return None
    shape = subgraph.spec(reader.inputs[2]).shape
    return shape if is_static(shape) else None
