"""Meshes and layouts as data: their coordinates, parts and texts."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.layout import (
    REDUCTIONS,
    REPLICATED,
    Layout,
    Partial,
    Placement,
    Replicate,
    Shard,
    describe,
    format_layout,
    layout_of,
    parse_layout,
)
from flowrt.graph.layouts.mesh import Axis, Mesh, format_mesh, parse_mesh

MESH = Mesh([("dp", 2), ("tp", 3)])
NAMES = ("dp", "tp", "pp", "turn")

meshes = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=3).map(
    lambda sizes: Mesh([Axis(name, *each) for name, each in zip(NAMES, sizes, strict=False)])
)
placements = st.one_of(
    st.builds(Shard, st.integers(0, 2)), st.builds(Replicate), st.builds(Partial, st.sampled_from(REDUCTIONS))
)


@st.composite
def layouts(draw: st.DrawFn, kind: st.SearchStrategy[Placement] = placements) -> Layout:
    mesh = draw(meshes)
    return Layout(mesh, [draw(kind) for _ in mesh.axes])


# --- meshes


def test_coordinates_are_in_row_major_order() -> None:
    assert MESH.coordinates == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert (MESH.size, MESH.shape, MESH.num_devices) == (6, (2, 3), 6)


def test_a_group_differs_in_its_axis_only() -> None:
    assert MESH.groups(0) == [((0, i), (1, i)) for i in range(3)]
    assert MESH.groups(1) == [tuple((i, j) for j in range(3)) for i in range(2)]


def test_turns_of_a_time_axis_share_devices() -> None:
    mesh = Mesh([("dp", 2), Axis("turn", 3, is_time=True)], ["/cpu:0", "/cpu:1"])
    assert (mesh.size, mesh.num_devices) == (6, 2)
    assert [mesh.device(c) for c in mesh.coordinates] == ["/device:CPU:0"] * 3 + ["/device:CPU:1"] * 3


def test_a_sub_mesh_has_the_devices_of_its_coordinates() -> None:
    mesh = Mesh([("pp", 2), ("dp", 2), Axis("turn", 2, is_time=True)], [f"/cpu:{i}" for i in range(4)])
    stage = mesh.sub_mesh(pp=1)
    assert stage == Mesh([("dp", 2), Axis("turn", 2, is_time=True)], ["/cpu:2", "/cpu:3"])
    assert mesh.sub_mesh(dp=0, turn=1).devices == ("/device:CPU:0", "/device:CPU:2")
    assert mesh.sub_mesh(pp=0, dp=1, turn=0).coordinates == ((),)


def test_a_mesh_gets_the_first_devices_of_a_session() -> None:
    assert Mesh([("dp", 2)]).with_devices(["/cpu:0", "/cpu:1", "/cpu:2"]).devices == (
        "/device:CPU:0",
        "/device:CPU:1",
    )
    with pytest.raises(InvalidArgumentError, match=r"mesh \[dp=2, tp=3\]: expected 6 devices; got 1"):
        MESH.with_devices(["/cpu:0"])


@given(meshes)
def test_equal_meshes_are_one_object(mesh: Mesh) -> None:
    assert Mesh(mesh.axes) is mesh
    assert copy.deepcopy(mesh) is mesh


def test_a_mesh_with_stages_is_there_once_for_each_position() -> None:
    devices = [f"/cpu:{i}" for i in range(6)]
    mesh = Mesh([("dp", 2), ("pp", 3)], devices).staged("pp")
    assert str(mesh) == "[stages pp=3, dp=2]"
    assert [mesh.device((1,), position) for position in mesh.positions] == [
        f"/device:CPU:{i}" for i in (3, 4, 5)
    ]
    assert [mesh.place((dp,), pp) for pp in range(3) for dp in range(2)] == [*range(6)]
    assert mesh.places()[3] == ((1,), 1)
    assert mesh.device_indices()[3] == (1, 1)
    turns = mesh.with_turns(Axis("micro", 4, is_time=True))
    assert (turns.num_devices, turns.size) == (6, 8)
    for each in (mesh, turns, Mesh([("dp", 2)], stages=("pp", 3))):
        assert parse_mesh(format_mesh(each)) is each
        assert pickle.loads(pickle.dumps(each)) is each  # noqa: S301
    with pytest.raises(
        InvalidArgumentError, match="expected an axis of devices as the axis of stages; got 'micro'"
    ):
        turns.staged("micro")
    many = Mesh([("dp", 625), Axis("micro", 512, is_time=True)], stages=("pp", 16))
    assert (many.num_devices, many.size, len(many.places())) == (10_000, 320_000, 10_000)
    assert many.places()[9_999] == ((624, 0), 15)
    with pytest.raises(InvalidArgumentError, match="expected axes with different names; got dp, dp"):
        Mesh([("dp", 2)], stages=("dp", 3))
    with pytest.raises(InvalidArgumentError, match="expected a text like"):
        parse_mesh("[stages a=2, stages b=2]")


@given(meshes, st.booleans())
def test_a_meshs_text_is_read_as_the_mesh(mesh: Mesh, has_devices: bool) -> None:
    if has_devices:
        mesh = mesh.with_devices([f"/job:w/replica:0/task:{i}/device:CPU:0" for i in range(27)])
    assert parse_mesh(format_mesh(mesh)) is mesh


@pytest.mark.parametrize(
    ("axes", "devices", "message"),
    [
        ([("dp", 2), ("dp", 2)], None, "axes with different names; got dp, dp"),
        ([("dp", 0)], None, "a size of at least 1 for axis 'dp'; got 0"),
        ([("dp", True)], None, "got True"),
        ([("a b", 2)], None, "a name of letters, digits and underscores for an axis; got 'a b'"),
        ([(2, "dp")], None, "got 2"),
        ([2], None, r"pairs \(name, size\); got 2"),
        (3, None, "a list of axes; got 3"),
        ({"dp": 2}, None, r"a list of axes; got {'dp': 2}\. Write \[\('dp', 2\)\]"),
        (("dp", 2), None, r"a list of axes; got \('dp', 2\)\. Write \[\('dp', 2\)\]"),
        ([("dp", 2, "no")], None, "True or False as is_time of axis 'dp'; got 'no'"),
        ([("a", 10**6), ("b", 10**6)], None, "at most 65,536 coordinates; got 1,000,000,000,000"),
        (
            [("a", 2), Axis("turn", 10**7, is_time=True)],
            None,
            "8,388,608 coordinates with turns; got 20,000,000",
        ),
        ([("dp", 2)], [0, 1], "names of devices; got 0"),
        ([("dp", 2)], "/cpu:0", "a list of devices; got '/cpu:0'"),
        ([("dp", 2)], ["/cpu:0"], r"mesh \[dp=2\]: expected 2 different devices; got 1: /device:CPU:0"),
        ([("dp", 2)], ["/cpu:0", "/device:CPU:0"], "expected 2 different devices; got 2"),
    ],
)
def test_what_is_no_mesh_is_refused(axes: Any, devices: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as info:
        Mesh(axes, devices)
    assert "test_layout.py" in str(info.value)


@pytest.mark.parametrize("text", ["", "dp=2", "[dp]", "[dp=2", "[dp=-1]", "[dp=2,tp=2]", "[dp=2] at /cpu:0"])
def test_what_is_no_text_of_a_mesh_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a text like"):
        parse_mesh(text)


# --- layouts


@given(layouts(st.one_of(st.builds(Shard, st.integers(0, 2)), st.builds(Replicate))), st.data())
def test_the_parts_are_those_of_array_split_axis_by_axis(layout: Layout, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(0, 5)] * 3))
    whole = np.arange(math.prod(shape)).reshape(shape)
    for coordinate in layout.mesh.coordinates:
        part = whole
        for axis, placement, index in zip(layout.mesh.axes, layout.placements, coordinate, strict=True):
            if isinstance(placement, Shard):
                part = np.array_split(part, axis.size, placement.dim)[index]
        assert np.array_equal(whole[layout.slices(shape, coordinate)], part)
        assert layout.local_shape(shape, coordinate) == part.shape


@given(layouts())
def test_equal_layouts_are_one_object(layout: Layout) -> None:
    assert Layout(layout.mesh, layout.placements) is layout
    assert copy.deepcopy(layout) is layout


@given(layouts(), st.integers(0, 1))
def test_a_layouts_text_is_read_as_the_layout(layout: Layout, more: int) -> None:
    assert parse_layout(format_layout(layout), layout.mesh) is layout
    assert parse_layout(format_layout(layout, 3 + more), layout.mesh) is layout


def test_a_script_writes_an_entry_per_dimension() -> None:
    assert layout_of(MESH, [None, "tp"]).placements == (REPLICATED, Shard(1))
    assert layout_of(MESH, ["dp", ["tp"], None]).placements == (Shard(0), Shard(1))
    assert layout_of(MESH, [("dp", "tp")]).placements == (Shard(0), Shard(0))
    assert layout_of(MESH, []) is Layout.replicated(MESH)


def test_a_tensor_is_described_with_its_layout() -> None:
    layout = layout_of(MESH, [("dp", "tp"), None])
    assert describe("float32", (8, None), layout) == "float32[8/dp.tp, ?]"
    assert describe("float32", None, layout) == "float32<unknown>[dp.tp]"
    assert describe("int32", (), Layout(MESH, [Partial(), Partial("max")])) == "int32[]+{dp, tp:max}"


def test_rows_stay_together() -> None:
    """10 rows of 5 as one dimension, in 4 parts: those of the rows."""
    mesh = Mesh([("dp", 4)])
    rows, joined = Layout(mesh, [Shard(0)]), Layout(mesh, [Shard(0, 5)])
    for at in mesh.coordinates:
        (part,), (wanted,) = joined.slices([50], at), rows.slices([10], at)
        assert (part.start, part.stop) == (5 * wanted.start, 5 * wanted.stop)
    assert joined.axes_of(0) == (0,)


def test_a_layout_knows_its_axes() -> None:
    layout = Layout(MESH, [Shard(1), Partial()])
    assert (layout.axes_of(1), layout.axes_of(0), layout.partial_axes) == ((0,), (), (1,))
    assert not layout.is_replicated
    assert layout.with_placement(0, REPLICATED).with_placement(1, Replicate()).is_replicated


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["tpp"], r"expected an axis of the mesh \[dp=2, tp=3\]; got 'tpp'. Nearest: tp"),
        (["dp", "dp"], "w: expected axis 'dp' to shard one dimension; got 0 and 1"),
        (
            [("tp", "dp")],
            "w: expected different axes in the mesh's order, dp, tp, for dimension 0; got tp, dp",
        ),
        ([("dp", "dp")], "got dp, dp"),
        ("dp", "w: expected a list with an entry per dimension"),
        (None, "w: expected a list with an entry per dimension"),
    ],
)
def test_what_is_no_layout_is_refused(entries: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as info:
        layout_of(MESH, entries, "w")
    assert "test_layout.py" in str(info.value)


def test_placements_must_fit_the_mesh_and_the_tensor() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected 2 placements, one per axis .* got 1"):
        Layout(MESH, [Shard(0)])
    with pytest.raises(InvalidArgumentError, match="expected a reduction of sum, max, min, prod; got 'mean'"):
        Layout(MESH, [Partial("mean"), REPLICATED])
    with pytest.raises(InvalidArgumentError, match="expected dimensions of at least 0"):
        Layout(MESH, [Shard(-1), REPLICATED])
    with pytest.raises(
        InvalidArgumentError, match="w: expected a layout of at most 1 dimensions; axis 'tp' shards"
    ):
        layout_of(MESH, [None, "tp"]).check_rank(1, "w")


@pytest.mark.parametrize("text", ["", "dp", "[dp", "[dp]+tp", "[dp]+{dp}", "[]+{tp:mean}", "[x]"])
def test_what_is_no_text_of_a_layout_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_layout(text, MESH)
