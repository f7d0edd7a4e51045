"""Operations of a step that run on the host: those on variables in its memory.

    variables         with the attribute `_host`
    gradients         copies of them, for their updates
    accesses          reads and updates of them, and casts of their values to a narrower dtype
    initial values    what is made of constants and draws alone, and read by such operations alone

All others run on the devices of the mesh: what they read of such a variable is brought there.
"""

from __future__ import annotations

from flowrt.graph.layouts.attributes import HOST
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.step_layouts import Layouts


def host_nodes(layouts: Layouts) -> frozenset[str]:
    """The operations that run on the host of each coordinate."""
    if not any(handle.is_on_host for handle in layouts.handles.values()):
        return frozenset()
    step = layouts.subgraph
    found = {node.name for node in step if _is_of_host(node, layouts)}
    from_nothing: set[str] = set()
    for node in step:
        is_made = node.op.effect in (Effect.PURE, Effect.RANDOM) and node.name not in step.feeds
        if is_made and from_nothing.issuperset(name for name, _ in node.inputs):
            from_nothing.add(node.name)
    consumers, fetched = step.consumers(), {name for name, _ in step.fetches}
    for node in reversed(list(step)):
        if node.name in from_nothing and node.name not in fetched and consumers[node.name]:
            found.update([node.name] if found.issuperset(consumers[node.name]) else [])
    return frozenset(found)


def _is_of_host(node: Node, layouts: Layouts) -> bool:
    if HOST in node.attrs:
        return True
    handle = layouts.handles.get((node.name, 0)) or layouts.values.get((node.name, 0))
    if handle is None and node.op.effect in (Effect.READ, Effect.WRITE) and node.inputs:
        handle = layouts.handles.get(node.inputs[0])
    return handle is not None and handle.is_on_host
