"""The shards of a variable: which part of the whole each device keeps, under which name.

This is the one place that knows it: `lower_layouts` gives each coordinate its handle by these names, and what
reaches variables without a step, as checkpoints do, asks `shards_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt import dtypes
from flowrt.device.spec import DeviceSpec, format_device, parse_device
from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.attributes import ATTRIBUTES, COPY, HOST, MEMORY, ROWS, layouts_of, mesh_of
from flowrt.graph.layouts.layout import Layout
from flowrt.graph.layouts.memory_places import place_of
from flowrt.graph.layouts.mesh import Coordinate, Mesh
from flowrt.graph.node import COLOCATION, Node, TensorSpec
from flowrt.graph.passes.layouts.keep_copies import copy_of
from flowrt.graph.passes.layouts.processes import own_of
from flowrt.graph.pipeline.mesh_schedule import position_of


class VariableShard(NamedTuple):
    """A part of a variable, and where it is kept. Several devices may keep the same part."""

    slices: tuple[slice, ...]
    """One per dimension of the whole."""
    place: int
    """The number of the device in the mesh."""
    task: int
    """The number of the process, if each runs its own session; otherwise 0."""
    handle: Node | None
    """The handle of the part in this session, on its device; None in another process."""
    is_copy: bool = False
    """Whether the device keeps it besides, for readers (`keep_copies`): it is set with the variable, perhaps
    in a narrower dtype, and never saved.
    """


def shards_of(handle: Node, devices: Sequence[DeviceSpec]) -> list[VariableShard]:
    """The shards of the variable ``handle``, which has a static shape, in a session with ``devices``: one per
    device of its mesh, or the variable itself if it has no layout; and those of its copy, if it has one.

    Raises `InvalidArgumentError` for a mesh larger than the devices.
    """
    shards = _kept_shards(handle, devices)
    if COPY not in handle.attrs:
        return shards
    return [*shards, *(s._replace(is_copy=True) for s in _kept_shards(copy_of(handle), devices))]


def _kept_shards(handle: Node, devices: Sequence[DeviceSpec]) -> list[VariableShard]:
    shape = [size or 0 for size in handle.attrs["shape"]]
    mesh = mesh_of([handle])
    if mesh is None:
        return [VariableShard(tuple(slice(0, size) for size in shape), 0, 0, handle)]
    mesh = mesh_on(mesh, devices)
    found, own = layouts_of(handle.attrs, mesh), own_of(mesh)
    stored = Layout.replicated(mesh) if found is None else found.stored
    shards: dict[int, VariableShard] = {}
    local: Node | None
    position = position_of(handle.attrs, mesh)
    for at in mesh.coordinates:
        place = mesh.place(at, position)
        if place in shards:  # another turn of the same device
            continue
        device = (mesh.host if HOST in handle.attrs else mesh.device)(at, position)
        if own is None:
            task, local = 0, _handle_at(handle, stored, at, device)
        elif place in own.ranks:
            task, local = own.task(place), _handle_at(handle, stored, at, device_inside(device, devices))
        else:
            task, local = own.task(place), None
        shards[place] = VariableShard(stored.slices(shape, at), place, task, local)
    return [shards[place] for place in sorted(shards)]


def mesh_on(mesh: Mesh, devices: Sequence[DeviceSpec]) -> Mesh:
    """``mesh`` on its own devices, or else on those of the session: GPUs if there are any.

    Raises `InvalidArgumentError` if they are too few.
    """
    if mesh.devices is not None:
        return mesh
    gpus = [device.to_string() for device in devices if device.device_type == "GPU"]
    return mesh.with_devices(gpus or [d.to_string() for d in devices if d.device_type == "CPU"])


def device_inside(device: str, devices: Sequence[DeviceSpec]) -> str:
    """The device of this session that the mesh of several processes calls ``device``.

    Raises `InvalidArgumentError` if it is not among ``devices``.
    """
    wanted = parse_device(device)
    if not any((d.device_type, d.device_index) == (wanted.device_type, wanted.device_index) for d in devices):
        names = ", ".join(each.to_string() for each in devices)
        raise InvalidArgumentError(
            f"mesh: expected {device} among the devices of this process; got {names}. Set device_count in "
            "the session's ConfigProto, or use a smaller mesh"
        )
    return format_device(DeviceSpec(device_type=wanted.device_type, device_index=wanted.device_index))


def suffix_at(mesh: Mesh, at: Coordinate, once: Collection[int]) -> str:
    """The end of a name at a coordinate, without the axes numbered ``once``: ``@dp0tp1``."""
    indices = [f"{axis.name}{at[i]}" for i, axis in enumerate(mesh.axes) if i not in once]
    return "@" + ("".join(indices) or "0")


def without_layout(node: Node) -> dict[str, Any]:
    """The attributes of ``node`` but for those of the global graph only. A variable that is in parts keeps
    its place in memory.
    """
    attrs = {key: value for key, value in node.attrs.items() if key not in (COLOCATION, *ATTRIBUTES)}
    return {**attrs, MEMORY: node.attrs[MEMORY]} if MEMORY in node.attrs and ROWS not in node.attrs else attrs


def attributes_at(handle: Node, stored: Layout, at: Coordinate) -> Mapping[str, Any]:
    """The attributes of the handle at a coordinate: the part's shape, and a name of its own, as has the
    memory in which the part has its place.
    """
    shape, name = handle.attrs["shape"], handle.attrs.get("shared_name") or handle.name
    suffix, place = _suffix_of_handle(stored.mesh, at), place_of(handle.attrs)
    attrs = {
        **handle.attrs,
        "shape": shape if stored.is_replicated else stored.local_shape(shape, at),
        "shared_name": name + suffix,
    }
    return attrs if place is None else {**attrs, MEMORY: str(place._replace(name=place.name + suffix))}


def _suffix_of_handle(mesh: Mesh, at: Coordinate) -> str:
    return suffix_at(mesh, at, {i for i, axis in enumerate(mesh.axes) if axis.is_time})


def _handle_at(handle: Node, stored: Layout, at: Coordinate, device: str) -> Node:
    name = handle.name + _suffix_of_handle(stored.mesh, at)
    attrs = attributes_at(handle.replace(attrs=without_layout(handle)), stored, at)
    outputs = (TensorSpec(dtypes.resource, ()),)
    return handle.replace(name=name, attrs=attrs, device=device, controls=(), outputs=outputs)
