"""Redistributions: each pair of layouts against NumPy, with the bytes of the table; their plans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from flowrt.errors import InternalError
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Link
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial, Placement, Shard
from flowrt.graph.layouts.mesh import Axis, Coordinate, Mesh
from flowrt.graph.layouts.redistribution import LOCAL_S_PER_BYTE, SEND, Step, plan, received_bytes, seconds

P, S0, S1, B = Partial(), Shard(0), Shard(1), REPLICATED
PLACEMENTS: tuple[Placement, ...] = (S0, S1, B, P)
MESHES = [(1,), (2,), (3,), (2, 2), (2, 3), (3, 2)]
SHAPES = [(12, 6), (5, 7), (2, 1)]

Parts = dict[Coordinate, np.ndarray]


def mesh_of(sizes: Sequence[int], times: Sequence[int] = ()) -> Mesh:
    return Mesh([Axis(f"a{i}", size, i in times) for i, size in enumerate(sizes)])


def layouts_of(mesh: Mesh, placements: Sequence[Placement] = PLACEMENTS) -> list[Layout]:
    return [Layout(mesh, chosen) for chosen in itertools.product(placements, repeat=len(mesh.axes))]


def pairs(mesh: Mesh, placements: Sequence[Placement] = PLACEMENTS) -> Iterator[tuple[Layout, Layout]]:
    """What a tensor may have and become: nothing becomes Partial."""
    for source, target in itertools.product(layouts_of(mesh, placements), repeat=2):
        if set(target.partial_axes) <= set(source.partial_axes):
            yield source, target


def cut(whole: np.ndarray, layout: Layout) -> Parts:
    """What each coordinate has of ``whole``: of a Partial, addends that differ."""
    parts = {}
    for coordinate in layout.mesh.coordinates:
        addend = whole
        for axis in layout.partial_axes:
            size, index = layout.mesh.axes[axis].size, coordinate[axis]
            addend = addend * (index + 1) if index + 1 < size else addend * (1 - size * (size - 1) / 2)
        parts[coordinate] = addend[layout.slices(whole.shape, coordinate)]
    return parts


def perform(step: Step, parts: Parts, before: Layout, shape: Sequence[int]) -> Parts:
    """The collective in each group, by its definition."""
    after, found = step.apply(before), {}
    for coordinate in before.mesh.coordinates:
        members = [
            c
            for c in before.mesh.coordinates
            if all(c[i] == coordinate[i] for i in range(len(c)) if i not in step.axes)
        ]
        together = np.full(shape, np.nan)
        if isinstance(step.source, Partial):
            region = before.slices(shape, coordinate)
            together[region] = sum(parts[c] for c in members)
        for c in members:
            if not isinstance(step.source, Partial):
                together[before.slices(shape, c)] = parts[c]
        found[coordinate] = together[after.slices(shape, coordinate)]
        assert not np.isnan(found[coordinate]).any(), "a part that no member has"
    return found


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_rows_that_stay_together(sizes: tuple[int, ...]) -> None:
    """5 rows of 3: parts of whole rows, and others."""
    shape, whole = (15, 2), np.arange(30.0).reshape(15, 2)
    for source, target in pairs(mesh_of(sizes), (Shard(0), Shard(0, 3), Shard(1), B)):
        layout, parts = source, cut(whole, source)
        for step in plan(source, target, shape, 8):
            parts, layout = perform(step, parts, layout, shape), step.apply(layout)
        assert layout is target
        assert all(np.array_equal(parts[c], part) for c, part in cut(whole, target).items())


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [*itertools.product(MESHES, SHAPES), pytest.param((2, 2, 2), (5, 7), marks=pytest.mark.slow)],
    ids=str,
)
def test_every_pair_of_layouts(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    whole = np.random.default_rng(0).integers(-9, 9, shape).astype(float)
    for source, target in pairs(mesh_of(sizes)):
        layout, parts = source, cut(whole, source)
        steps = plan(source, target, shape, 8)
        assert len(steps) <= (5 if len(sizes) == 3 else 2 * len(sizes))
        for step in steps:
            parts, layout = perform(step, parts, layout, shape), step.apply(layout)
        assert layout is target
        for coordinate, part in cut(whole, target).items():
            if not target.partial_axes:
                assert np.array_equal(parts[coordinate], part), (source, target, steps)
        if target.partial_axes:  # the addends add up
            rest = target
            for axis in target.partial_axes:
                step = Step((axis,), P, B)
                parts, rest = perform(step, parts, rest, shape), step.apply(rest)
            assert all(np.array_equal(parts[c], part) for c, part in cut(whole, rest).items())


@pytest.mark.parametrize(
    ("source", "target", "collective", "share"),
    [
        (B, S0, "Slice", 0),
        (S0, B, "AllGather", 3),
        (S0, S1, "AllToAll", 3 / 4),
        (P, S1, "ReduceScatter", 3),
        (P, B, "AllReduce", 6),
    ],
)
def test_bytes_are_those_of_the_table(
    source: Placement, target: Placement, collective: str, share: float
) -> None:
    """``share``: of the tensor's bytes, received by the 4 coordinates together."""
    mesh = mesh_of((4,))
    (step,) = plan(Layout(mesh, [source]), Layout(mesh, [target]), (8, 4), 4)
    assert step.collective == collective
    assert received_bytes(step, Layout(mesh, [source]), (8, 4), 4) == share * 8 * 4 * 4


@pytest.mark.parametrize("shape", [(5, 7), (7, 2)], ids=str)
def test_bytes_of_uneven_parts_are_counted_exactly(shape: tuple[int, int]) -> None:
    mesh = mesh_of((3,))
    rows, columns = shape
    sizes = [len(part) for part in np.array_split(range(rows), 3)]
    widths = [len(part) for part in np.array_split(range(columns), 3)]
    stays = sum(a * b for a, b in zip(sizes, widths, strict=True))
    step = Step((0,), S0, S1)
    assert received_bytes(step, Layout(mesh, [S0]), shape, 1) == rows * columns - stays
    gathered = sum(rows * columns - size * columns for size in sizes)
    assert received_bytes(Step((0,), S0, B), Layout(mesh, [S0]), shape, 1) == gathered


def names(source: Sequence[Placement], target: Sequence[Placement], times: Sequence[int] = ()) -> list[str]:
    mesh = mesh_of([2] * len(source), times)
    return [
        f"{step.collective}{list(step.axes)}"
        for step in plan(Layout(mesh, source), Layout(mesh, target), (64, 1 << 14), 4)
    ]


def test_a_partial_is_reduced_before_its_parts_are_gathered() -> None:
    """On a half of the bytes."""
    assert names([S0, P], [B, B]) == ["AllReduce[1]", "AllGather[0]"]


def test_axes_with_equal_placements_are_one_group() -> None:
    assert names([P, P], [B, B]) == ["AllReduce[0, 1]"]
    assert names([S0, S0], [B, B]) == ["AllGather[0, 1]"]
    assert names([P, P], [S0, S0]) == ["ReduceScatter[0, 1]"]


def test_a_common_prefix_stays() -> None:
    assert names([S0, S0], [S0, B]) == ["AllGather[1]"]
    assert names([S0, S0], [S0, S1]) == ["AllToAll[1]"]


def test_only_the_innermost_cut_is_undone() -> None:
    """S0 on both axes becomes S0 on the second alone: the first is the outer one."""
    mesh = mesh_of((2, 2))
    steps = plan(Layout(mesh, [S0, S0]), Layout(mesh, [B, S0]), (64, 64), 4)
    assert steps[0].axes != (0,)


def test_what_is_partial_on_turns_is_added_up_before_it_travels() -> None:
    assert names([P, P], [B, B], times=[1]) == ["AllReduce[1]", "AllReduce[0]"]
    assert names([P, P], [S0, B], times=[1]) == ["AllReduce[1]", "ReduceScatter[0]"]


@pytest.mark.parametrize("target", [B, S0, S1])
@pytest.mark.parametrize(("devices", "turns"), [(2, 3), (2, 4), (4, 8)])
def test_a_large_gradient_is_not_scattered_turn_by_turn(target: Placement, devices: int, turns: int) -> None:
    """To add up a part of it takes as many bytes as to add up all, since all are read."""
    mesh, shape, link = mesh_of((devices, turns), [1]), (50_000, 4096), Link(3e-6, 1 / 300e9)
    source = Layout(mesh, [P, P])
    assert plan(source, Layout(mesh, [target, B]), shape, 4, link) == (
        Step((1,), P, B),
        Step((0,), P, target),
    )
    read = turns * math.prod(shape) * 4
    for made in (B, S0, S1):
        assert seconds(Step((1,), P, made), source, shape, 4, link) == pytest.approx(read * LOCAL_S_PER_BYTE)


def test_equal_layouts_need_nothing() -> None:
    for layout in layouts_of(mesh_of((2, 2))):
        assert plan(layout, layout, (4, 4), 4) == ()


def test_a_slow_link_takes_fewer_messages() -> None:
    mesh = mesh_of((8,))
    source, target = Layout(mesh, [P]), Layout(mesh, [B])
    fast, slow = (plan(source, target, (8, 8), 4, link) for link in DEFAULT_LINKS)
    assert [step.collective for step in slow] == ["AllReduce"]
    assert math.prod(len(step.axes) for step in fast) == 1


def test_nothing_becomes_partial() -> None:
    mesh = mesh_of((2,))
    with pytest.raises(InternalError, match="expected a target that"):
        plan(Layout(mesh, [B]), Layout(mesh, [P]), (4, 4), 4)


# --- to another position of the axis of stages


@pytest.mark.parametrize(("sizes", "shape"), [*itertools.product([(2,), (3,), (2, 2)], SHAPES)], ids=str)
def test_every_pair_of_layouts_at_two_positions(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """One message a coordinate, of nothing that is yet to be added up."""
    whole = np.random.default_rng(0).integers(-9, 9, shape).astype(float)
    mesh = Mesh([Axis(f"a{i}", size) for i, size in enumerate(sizes)], stages=("p", 2))
    for source, target in pairs(mesh):
        if target.partial_axes:
            continue
        layout, parts = source, cut(whole, source)
        steps = plan(source, target, shape, 8, is_sent=True)
        assert [step.collective for step in steps].count("Send") == 1
        for step in steps:
            if step is SEND:
                assert not layout.partial_axes
                sent = sum(parts[c].size for c in mesh.coordinates) * 8
                assert received_bytes(step, layout, shape, 8) == sent
            else:
                parts = perform(step, parts, layout, shape)
            layout = step.apply(layout)
        assert layout is target
        for coordinate, part in cut(whole, target).items():
            assert np.array_equal(parts[coordinate], part), (source, target, steps)


def test_what_all_need_whole_is_sent_in_parts_and_gathered_there() -> None:
    """The local all-gather: a quarter of the bytes cross from one position to the other."""
    mesh = Mesh([("a", 4)], stages=("p", 2))
    whole = Layout(mesh, [B])
    steps = plan(whole, whole, (64, 1 << 14), 4, DEFAULT_LINKS.between, is_sent=True)
    names = [step.collective for step in steps]
    assert names in (["Send"], ["Slice", "Send", "AllGather"])
    assert plan(whole, whole, (64, 64), 4) == ()
