"""``flowrt.experimental.dtensor``: layouts under the names of TensorFlow's DTensor.

    mesh = dtensor.create_mesh([("batch", 2), ("model", 2)])
    rows = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)
    x = dtensor.relayout(tf.placeholder(tf.float32, [8, 4]), rows)
    w = dtensor.DVariable(tf.ones([4, 6]), layout=dtensor.Layout([dtensor.UNSHARDED, "model"], mesh))
    y = x @ w                         # float32[8/batch, 6/model]

A tensor of the graph is global: its shape and its value are those of one device. Layouts are constraints on
it; those of all other tensors follow when a step is compiled. `flowrt.distribute.LayoutStrategy` gives
layouts to whole scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.layouts import layout as _layouts
from flowrt.graph.layouts.attributes import attributes_of, layouts_of, mesh_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.variable import Variable

__all__ = [
    "UNSHARDED", "DVariable", "Layout", "Mesh", "call_with_layout", "create_mesh", "fetch_layout", "relayout",
    "relayout_like",
]  # fmt: skip

UNSHARDED = "unsharded"
"""The entry of a dimension that no axis shards."""


def create_mesh(
    mesh_dims: Sequence[tuple[str, int]] | Mapping[str, int],
    mesh_name: str = "",
    devices: Sequence[str] | None = None,
) -> Mesh:
    """A mesh with the axes ``mesh_dims``, over ``devices``, by default all devices of the session in order.

    >>> create_mesh([("batch", 2), ("model", 2)]).size
    4

    Raises `InvalidArgumentError` as `flowrt.distribute.Mesh`.
    """
    axes = mesh_dims.items() if isinstance(mesh_dims, Mapping) else mesh_dims
    return Mesh(axes, devices)


@final
class Layout:
    """A layout: for each dimension of a tensor the axis of ``mesh`` that shards it, or `UNSHARDED`.

    >>> layout = Layout(["batch", UNSHARDED], create_mesh([("batch", 2), ("model", 2)]))
    >>> layout.num_shards(0), layout.num_shards(1)
    (2, 1)

    Raises `DTypeError` for a mesh that is none, `InvalidArgumentError` for an unknown axis or one that shards
    two dimensions.
    """

    def __init__(self, sharding_specs: Sequence[str], mesh: Mesh) -> None:
        if not isinstance(mesh, Mesh):
            raise misuse(f"dtensor.Layout: expected a Mesh; got {mesh!r}", DTypeError)
        if isinstance(sharding_specs, str) or not isinstance(sharding_specs, Sequence):
            raise misuse(
                f"dtensor.Layout: expected a list of axes and UNSHARDED; got {sharding_specs!r}", DTypeError
            )
        entries = [None if spec == UNSHARDED else spec for spec in sharding_specs]
        self.sharding_specs, self.mesh = list(sharding_specs), mesh
        self._layout = _layouts.layout_of(mesh, entries, "dtensor.Layout")

    @staticmethod
    def replicated(mesh: Mesh, rank: int) -> Layout:
        """The layout of a tensor of ``rank`` dimensions that every device has whole."""
        return Layout([UNSHARDED] * rank, mesh)

    @staticmethod
    def batch_sharded(mesh: Mesh, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """The layout of a tensor of which the axis ``batch_dim`` shards dimension ``axis``."""
        return Layout([batch_dim if dim == axis % max(rank, 1) else UNSHARDED for dim in range(rank)], mesh)

    @staticmethod
    def inner_sharded(mesh: Mesh, inner_dim: str, rank: int) -> Layout:
        """The layout of a tensor of which the axis ``inner_dim`` shards the last dimension."""
        return Layout.batch_sharded(mesh, inner_dim, rank, axis=-1)

    @property
    def rank(self) -> int:
        return len(self.sharding_specs)

    def num_shards(self, idx: int) -> int:
        """The number of parts of dimension ``idx``."""
        spec = self.sharding_specs[idx]
        return 1 if spec == UNSHARDED else self.mesh.axes[self.mesh.axis(spec)].size

    def local_shape(self, shape: Sequence[int], coordinate: Sequence[int]) -> tuple[int, ...]:
        """The shape of the part of a tensor of ``shape`` at a coordinate of the mesh."""
        return self._layout.local_shape(shape, tuple(coordinate))

    def to_string(self) -> str:
        return f"sharding_specs:{','.join(self.sharding_specs)} mesh:{self.mesh}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and (other.sharding_specs, other.mesh) == (
            self.sharding_specs,
            self.mesh,
        )

    def __hash__(self) -> int:
        return hash((tuple(self.sharding_specs), self.mesh))

    def __repr__(self) -> str:
        return f"Layout({self.sharding_specs}, {self.mesh})"


def relayout(tensor: NumericLike, layout: Layout, name: str | None = None) -> Tensor:
    """``tensor`` in ``layout``, with an entry for each of its dimensions.

    Raises `InvalidArgumentError` for a layout of another rank, `DTypeError` for one that is none.
    """
    value = convert_to_tensor(tensor)
    _check(value.shape.ndims, layout, "dtensor.relayout")
    return relayout_op(value, name=name, **attributes_of(layout._layout))


def relayout_like(tensor: NumericLike, layout_tensor: Any, name: str | None = None) -> Tensor:
    """``tensor`` in the layout that `fetch_layout` gives for ``layout_tensor``. Raises as these."""
    return relayout(tensor, fetch_layout(layout_tensor), name)


def call_with_layout(fn: Callable[..., Any], layout: Layout | None, *args: Any, **kwargs: Any) -> Any:
    """``fn(*args, **kwargs)``, a tensor, in ``layout``; as it is if that is None."""
    made = fn(*args, **kwargs)
    return made if layout is None else relayout(made, layout)


def fetch_layout(tensor: Any) -> Layout:
    """The layout that the script gave to ``tensor``, a result of `relayout` or a `DVariable`.

    Raises `InvalidArgumentError` for a tensor without one: its layout follows when a step is compiled, and
    ``flowrt explain --layouts`` shows it.
    """
    node = tensor.op.node
    mesh = mesh_of([node])
    found = None if mesh is None else layouts_of(node.attrs, mesh)
    if mesh is None or found is None:
        raise misuse(
            f"fetch_layout: expected a result of relayout, or a DVariable; got {node.name!r}, of which the "
            "layout follows when a step is compiled: flowrt explain --layouts shows it"
        )
    rank = tensor.shape.ndims or 0
    axes = [[mesh.axes[axis].name for axis in found.used.axes_of(dim)] for dim in range(rank)]
    return Layout([",".join(names) or UNSHARDED for names in axes], mesh)


def DVariable(initial_value: Any, *args: Any, layout: Layout | None = None, **kwargs: Any) -> Variable:
    """A `flowrt.Variable` in ``layout``, by default that of ``initial_value``. Optimizers' slots get it too.

    Raises `InvalidArgumentError` if neither is there, or for a layout of another rank.
    """
    wanted = fetch_layout(initial_value) if layout is None else layout
    variable = Variable(initial_value, *args, **kwargs)
    _check(variable.shape.ndims, wanted, "dtensor.DVariable")
    variable.op.mutate(attrs={**variable.op.node.attrs, **attributes_of(wanted._layout)})
    return variable


def _check(rank: int | None, layout: Layout, where: str) -> None:
    if not isinstance(layout, Layout):
        raise misuse(f"{where}: expected a dtensor.Layout; got {layout!r}", DTypeError)
    if rank is not None and rank != layout.rank:
        raise misuse(f"{where}: expected an entry for each of {rank} dimensions; got {layout.sharding_specs}")


__getattr__ = missing_from("experimental.dtensor")
