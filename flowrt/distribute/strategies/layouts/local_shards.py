"""`local_shards`: the parts of a tensor, each read where it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.layouts.attributes import attributes_of, layouts_of, mesh_of
from flowrt.graph.layouts.layout import Layout
from flowrt.graph.ops.base.identities import local_shards_op, relayout_op
from flowrt.graph.shapes import is_static
from flowrt.graph.source import misuse
from flowrt.variables.variable import Variable


class LocalShard(NamedTuple):
    """A part of a tensor: ``slices`` has one per dimension, ``value`` is what to fetch."""

    slices: tuple[slice, ...]
    value: Tensor


def local_shards(value: Any) -> list[LocalShard]:
    """The distinct parts of ``value``, a variable or a result of `relayout`, in the order of the mesh.

    Nothing is gathered: each part comes from the first device that has it. A variable's parts are those in
    which it is stored.

    >>> with LayoutStrategy(Mesh([("dp", 2)])).scope():
    ...     w = tf.get_variable("w", [4, 3], layout=["dp", None])
    >>> [shard.slices[0] for shard in local_shards(w)]
    [slice(0, 2, None), slice(2, 4, None)]
    >>> arrays = session.run([shard.value for shard in local_shards(w)])

    Raises `InvalidArgumentError` for a tensor of which the layout follows only when a step is compiled, and
    for one of unknown shape.
    """
    tensor = convert_to_tensor(value)
    layout = _layout_of(value if isinstance(value, Variable) else tensor)
    shape = tensor.spec.shape
    if not is_static(shape):
        raise misuse(f"local_shards: expected a tensor of known shape; got {tensor!r}")
    blocks = list(dict.fromkeys(_bounds(layout, shape, at) for at in layout.mesh.coordinates))
    begins = [begin for block in blocks for begin, _ in block]
    sizes = [end - begin for block in blocks for begin, end in block]
    attributes = attributes_of(layout)
    source = relayout_op(tensor, **attributes)
    values = local_shards_op(source, N=len(blocks), begins=begins, sizes=sizes, **attributes)
    return [
        LocalShard(tuple(slice(*bounds) for bounds in block), part)
        for block, part in zip(blocks, values, strict=True)
    ]


def _bounds(layout: Layout, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((part.start, part.stop) for part in layout.slices(shape, at))


def _layout_of(value: Any) -> Layout:
    node = value.op.node
    mesh = mesh_of([node])
    found = None if mesh is None else layouts_of(node.attrs, mesh)
    if found is None:
        raise misuse(
            "local_shards: expected a variable with a layout, or a result of relayout; got "
            f"{node.name!r}, of which the layout follows when a step is compiled"
        )
    return found.stored
