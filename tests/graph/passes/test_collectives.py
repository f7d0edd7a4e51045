"""The lowering of collectives: text in, text out; order; messages and bytes of what comes out."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.collectives.algorithms import ALGORITHMS, Group, algorithms_for
from flowrt.graph.collectives.cost import schedule_of, traffic
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph, Tensor, get_default_graph
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.collective.collective_gradients import places_of
from flowrt.graph.ops.collective.collectives import (
    all_gather_op,
    all_reduce_op,
    all_to_all_op,
    broadcast_op,
    gather_op,
    reduce_op,
    reduce_scatter_op,
    scatter_op,
)
from flowrt.graph.passes.collective.lower_collectives import lower_collectives
from flowrt.graph.passes.placement.partition import partition
from flowrt.graph.passes.prepare.verify import verify_subgraph
from flowrt.graph.shapes import num_elements
from tests.graph.passes.cases import lines, op, snapshot, subgraph_of


def device(rank: int) -> str:
    return f"/job:localhost/replica:0/task:0/device:CPU:{rank}"


def values(p: int, *shape: int) -> list[Tensor]:
    """Placeholders v0, v1, ..., each on its rank's device."""
    found = []
    for rank in range(p):
        with get_default_graph().device(device(rank)):
            found.append(placeholder("float32", shape, name=f"v{rank}"))
    return found


def group(size: int, ranks: Sequence[int] = (), key: str = "local", **attrs: Any) -> dict[str, Any]:
    ranks = tuple(ranks or range(size))
    return {"group_size": size, "ranks": ranks, "group_key": key, "instance_key": "0", **attrs}


def lowered(fetches: Sequence[Tensor], feeds: Sequence[Tensor], targets: Sequence[Any] = ()) -> Subgraph:
    before = subgraph_of(fetches, targets, feeds)
    seen = snapshot(before)
    after = lower_collectives(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    return after


def without_constants(subgraph: Subgraph) -> list[str]:
    """Its lines, with values in place of the constants' names."""
    values = {n.name: str(n.attrs["value"].tolist()) for n in subgraph if n.op.name == "Const"}
    names = sorted(values, key=len, reverse=True)
    texts = [text for text in lines(subgraph) if " = Const(" not in text]
    return [functools.reduce(lambda text, name: text.replace(name, values[name]), names, t) for t in texts]


def test_a_subgraph_without_collectives_is_the_same_object() -> None:
    given = values(2, 3)
    before = subgraph_of([op("Neg", v) for v in given], feeds=given)
    assert lower_collectives(before) is before


def test_a_tree_of_two_devices() -> None:
    given = values(2, 3)
    after = lowered(all_reduce_op(given, name="sum", **group(2, lowering="tree")), given)
    assert lines(after) == [
        "v0 = _Feed()",
        "v1 = _Feed()",
        "sum/_tree/step_0/rank_0/AddV2 = AddV2(v0, v1)",
        "sum/_tree/rank_1/Identity = Identity(sum/_tree/step_0/rank_0/AddV2)",
    ]
    assert [n.device for n in after] == [device(0), device(1), device(0), device(1)]
    assert [name for name, _ in after.fetches] == [
        "sum/_tree/step_0/rank_0/AddV2",
        "sum/_tree/rank_1/Identity",
    ]


def test_a_ring_of_two_devices() -> None:
    given = values(2, 4)
    after = lowered(all_reduce_op(given, name="sum", **group(2, lowering="ring")), given)
    ring = "sum/_ring"
    strided = "{0}/{1} = StridedSlice({2}, [{3}], [{4}], [1])"
    assert without_constants(after)[4:10] == [
        strided.format(f"{ring}/step_0/rank_0", "strided_slice", f"{ring}/rank_0/Reshape", 2, 4),
        strided.format(f"{ring}/step_0/rank_1", "strided_slice", f"{ring}/rank_1/Reshape", 0, 2),
        strided.format(f"{ring}/step_0/rank_1", "strided_slice_1", f"{ring}/rank_1/Reshape", 2, 4),
        f"{ring}/step_0/rank_1/AddV2 = AddV2({ring}/step_0/rank_1/strided_slice_1, "
        f"{ring}/step_0/rank_0/strided_slice)",
        strided.format(f"{ring}/step_0/rank_0", "strided_slice_1", f"{ring}/rank_0/Reshape", 0, 2),
        f"{ring}/step_0/rank_0/AddV2 = AddV2({ring}/step_0/rank_0/strided_slice_1, "
        f"{ring}/step_0/rank_1/strided_slice)",
    ]


def test_a_device_has_each_bound_of_its_slices_once() -> None:
    given = values(4, 8)
    after = lowered(all_reduce_op(given, **group(4, lowering="ring")), given)
    bounds = [(n.device, str(n.attrs["value"])) for n in after if n.op.name == "Const"]
    assert len(bounds) == len(set(bounds))
    assert {value for on, value in bounds if on == device(0)} >= {"[0]", "[2]", "[4]", "[6]", "[8]", "[1]"}


def test_what_a_rank_passes_on_it_has_had() -> None:
    given = values(3, 2)
    after = lowered(all_gather_op(given, **group(3, lowering="ring")), given)
    sends = [n for part in partition(after).values() for n in part if n.op.name == "_Send"]
    hops = {(n.attrs["send_device"][-1], n.attrs["recv_device"][-1]) for n in sends}
    assert hops == {("0", "1"), ("1", "2"), ("2", "0")}
    assert len(sends) == 6


def test_a_rank_copies_only_what_it_gives_on() -> None:
    given = values(8, 8)
    after = lowered(all_gather_op(given, **group(8, lowering="hypercube")), given)
    assert [n.op.name for n in after if n.op.name in ("Identity", "ConcatV2")] == ["ConcatV2"] * 8 * 3


def test_several_ranks_of_one_device_send_nothing() -> None:
    with get_default_graph().device(device(0)):
        given = [placeholder("float32", [4]) for _ in range(3)]
    for lowering in ALGORITHMS["AllReduce"]:
        after = lowered(all_reduce_op(given, **group(3, lowering=lowering)), given)
        assert list(partition(after)) == [device(0)]


def test_users_lines_stay() -> None:
    given = values(2, 3)
    results = all_reduce_op(given, **group(2, lowering="ring"))
    after = lowered(results, given)
    assert {n.source for n in after if n.op.name == "AddV2"} == {results[0].op.node.source}


# --- order


def test_collectives_of_a_device_come_in_the_order_of_creation() -> None:
    given = values(2, 3)
    first = all_reduce_op(given, name="first", **group(2, lowering="tree"))
    second = all_reduce_op(given, name="second", **group(2, lowering="tree"))
    after = lowered([*second, *first], given)
    assert [text for text in lines(after) if text.startswith("second")] == [
        "second/_tree/step_0/rank_0/AddV2 = AddV2(v0, v1) ^first/_tree/step_0/rank_0/AddV2",
        "second/_tree/rank_1/Identity = Identity(second/_tree/step_0/rank_0/AddV2)",
    ]


def test_a_collective_waits_for_what_it_is_told_to() -> None:
    given = values(2, 3)
    with get_default_graph().control_dependencies([op("NoOp", name="before")]):
        results = all_reduce_op(given, name="sum", **group(2, lowering="tree"))
    with get_default_graph().control_dependencies([results[0].op]):
        behind = op("NoOp", name="behind")
    after = lowered([], given, [behind])
    assert after.nodes["sum/_tree/step_0/rank_0/AddV2"].controls == ("before",)
    assert after.nodes["behind"].controls == ("sum/_tree/step_0/rank_0/AddV2", "sum/_tree/rank_1/Identity")


def test_a_target_keeps_its_name() -> None:
    given = values(2, 3)
    results = all_reduce_op(given, name="sum", **group(2, lowering="tree"))
    after = lowered([], given, [results[0].op])
    assert lines(after)[-1] == ("sum = NoOp() ^sum/_tree/step_0/rank_0/AddV2 ^sum/_tree/rank_1/Identity")


def test_a_result_that_nobody_wants_is_not_made() -> None:
    given = values(3, 3)
    results = all_reduce_op(given, name="sum", **group(3, lowering="tree"))
    after = lowered(results[:1], given)
    assert [n.op.name for n in after] == ["_Feed"] * 3 + ["AddV2"] * 2


# --- between graphs


def test_messages_to_another_graph_come_before_those_from_it() -> None:
    given = values(1, 4)
    results = all_reduce_op(given, name="sum", **group(2, [1], "g", lowering="ring"))
    after = lowered(results, given)
    texts = without_constants(after)
    assert [t.split(" = ")[0].rpartition("/")[2] for t in texts if "_Group" in t] == [
        "edge_1_0", "edge_0_1", "edge_1_0", "edge_0_1",
    ]  # fmt: skip
    first, second = [n for n in after if n.op.name == "_GroupRecv"]
    assert first.controls == ("sum/_ring/step_0/rank_1/edge_1_0",)
    assert second.controls[-1] == "sum/_ring/step_1/rank_1/edge_1_0"
    what = "g;0;AllReduce 'sum' float32[4] reduction=sum ring"
    assert first.attrs["edge"] == f"{what};0;1;0"
    assert second.attrs["edge"] == f"{what};0;1;1"


def test_a_native_collective_is_waited_for_where_its_result_is_read() -> None:
    given = values(1, 4)
    first = all_reduce_op(given, name="first", **group(2, [0], "g"))
    second = all_reduce_op(given, name="second", **{**group(2, [0], "g"), "instance_key": "1"})
    between = op("Exp", given[0], name="between")
    reader = op("AddV2", first[0], between, name="reader")
    after = lowered([reader], given, [second[0].op])
    assert lines(after) == [
        "v0 = _Feed()",
        "first/_native/rank_0/start = _GroupStart(v0)",
        "second/_native/rank_0/start = _GroupStart(v0) ^first/_native/rank_0/start",
        "between = Exp(v0)",
        "first/_native/rank_0/wait = _GroupWait(v0) ^first/_native/rank_0/start",
        "reader = AddV2(first/_native/rank_0/wait, between)",
        "second/_native/rank_0/wait = _GroupWait(v0) ^second/_native/rank_0/start",
        "second = NoOp() ^second/_native/rank_0/wait",
    ]


def test_what_is_ready_travels_while_the_rest_is_computed() -> None:
    """The gradients of two layers: the collective of the first that is there begins before the other is."""
    given = values(1, 4)
    late = op("Exp", given[0], name="late")
    early = op("Neg", late, name="early")
    last = op("Exp", early, name="last")
    where = group(2, [0], "g")
    first = all_reduce_op([early], name="first", **where)
    second = all_reduce_op([last], name="second", **{**where, "instance_key": "1"})
    after = lowered([*second, *first], given)
    assert [node.name for node in after] == [
        "v0", "late", "early", "first/_native/rank_0/start", "last", "second/_native/rank_0/start",
        "first/_native/rank_0/wait", "second/_native/rank_0/wait",
    ]  # fmt: skip


def test_a_native_collective_that_nobody_reads_takes_place() -> None:
    given = values(1, 4)
    all_reduce = all_reduce_op(given, name="sum", **group(2, [0], "g"))
    after = lowered([], given, [all_reduce[0].op])
    assert "sum/_native/rank_0/wait" in after.targets


def test_what_cannot_be_native() -> None:
    given = values(2, 5)
    results = reduce_scatter_op(given, **group(2, key="g", lowering="native"))
    with pytest.raises(InvalidArgumentError, match="expected a dimension 0 divisible by 2 ranks"):
        lowered(results, given)
    results = reduce_scatter_op(given[:1], **group(2, [0], "g", lowering="auto"))  # is expanded instead
    assert any(n.op.name == "_GroupSend" for n in lowered(results, given))


def test_between_graphs_shapes_must_be_known() -> None:
    with get_default_graph().device(device(0)):
        given = [placeholder("float32", [None], name="v")]
    results = all_reduce_op(given, name="sum", **group(2, [0], "g", lowering="ring"))
    with pytest.raises(InvalidArgumentError, match=r"'sum'.*expected values of a static shape"):
        lowered(results, given)


# --- counted


def collective(kind: str, given: list[Tensor], root: int, where: dict[str, Any]) -> list[Tensor]:
    if kind in ("Broadcast", "Scatter"):
        define = broadcast_op if kind == "Broadcast" else scatter_op
        results = define([given[root]], places_of(given), root=root, **where)
    elif kind in ("Reduce", "Gather"):
        results = [(reduce_op if kind == "Reduce" else gather_op)(given, root=root, **where)]
    else:
        others = {
            "AllReduce": all_reduce_op,
            "AllGather": all_gather_op,
            "ReduceScatter": reduce_scatter_op,
            "AllToAll": all_to_all_op,
        }
        results = others[kind](given, **where)
    found: list[Tensor] = results
    return found


def nbytes(send: Node, part: Subgraph) -> int:
    spec = part.spec(send.inputs[0])
    return (num_elements(spec.shape) or 0) * 4


NAMES = [(kind, name) for kind, found in ALGORITHMS.items() for name in found if kind != "Barrier"]


@given(
    st.sampled_from(NAMES),
    st.integers(1, 9),
    st.integers(0, 8),
    st.integers(0, 5),
    st.lists(st.integers(0, 3), max_size=2),
)
def test_messages_and_bytes_are_the_schedules(
    which: tuple[str, str], p: int, root: int, rows: int, rest: list[int]
) -> None:
    """Of each rank; rows is a multiple of all chunk counts, so that chunks are equal."""
    kind, name = which
    tasks = Group((0,) * p, root % p)
    if name not in algorithms_for(kind, tasks):
        return
    schedule = schedule_of(kind, name, tasks)
    with Graph():
        given = values(p, rows * p * math.lcm(schedule.chunks, p), *rest)
        after = lowered(collective(kind, given, root % p, group(p, lowering=name)), given)
        payload = (num_elements(given[0].spec.shape) or 0) * 4
        whole = payload * (p if kind in ("AllGather", "Gather", "AllToAll") else 1)
        parts = partition(after)
    for rank in range(p):
        part = parts.get(device(rank), Subgraph({}))
        sends = [n for n in part if n.op.name == "_Send"]
        sent = traffic(schedule, whole, rank)
        assert len(sends) == sent.messages
        assert sum(nbytes(n, part) for n in sends) == sent.nbytes
