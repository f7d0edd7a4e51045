from __future__ import annotations

import pytest

from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.effects import AT_END
from flowrt.graph.passes.prepare.order_effects import effectful_nodes, order_effects
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import op, snapshot, subgraph_of


@pytest.fixture
def v():
    return op("VarHandleOp", dtype="float32", shape=[], name="v")


def read(handle, name):
    return op("ReadVariableOp", handle, dtype="float32", name=name)


def controls(*fetches, targets=(), feeds=()):
    before = subgraph_of(fetches, targets, feeds)
    seen = snapshot(before)
    after = order_effects(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    assert order_effects(after) is after
    return {node.name: node.controls for node in after if node.controls}


def test_a_read_waits_for_the_last_write_before_it(v):
    writes = [op("AssignVariableOp", v, constant(1.0), name=name) for name in ("w1", "w2")]
    assert controls(read(v, "r"), targets=writes) == {"w2": ("w1",), "r": ("w2",)}


def read_at_end(handle, name):
    return op("ReadVariableOp", handle, dtype="float32", name=name, **{AT_END: True})


def test_a_read_at_the_end_waits_for_the_last_write_of_all(v):
    fetched, plain = read_at_end(v, "fetched"), read(v, "plain")
    write = op("AssignVariableOp", v, constant(1.0), name="w")
    twice = op("Neg", fetched, name="twice")
    assert controls(fetched, plain, twice, targets=[write]) == {"w": ("plain",), "fetched": ("w",)}


def test_a_read_at_the_end_that_a_write_needs_keeps_its_place(v):
    write = op("AssignVariableOp", v, op("Neg", read_at_end(v, "fetched")), name="w")
    again = op("AssignVariableOp", v, constant(1.0), name="w2")
    assert controls(targets=[write, again]) == {"w": ("fetched",), "w2": ("w",)}


def test_a_write_waits_for_all_reads_since_the_last_write(v):
    reads = [read(v, name) for name in ("r1", "r2")]
    write = op("AssignVariableOp", v, constant(1.0), name="w")
    assert controls(*reads, targets=[write]) == {"w": ("r1", "r2")}


def test_a_read_that_is_not_run_is_not_waited_for(v):
    read(v, "unused")
    write = op("AssignVariableOp", v, constant(1.0), name="w")
    assert controls(targets=[write]) == {}


def test_a_write_of_what_was_read_needs_no_second_edge(v):
    write = op("AssignVariableOp", v, read(v, "r"), name="w")
    assert controls(targets=[write]) == {}


def test_different_variables_are_not_ordered(v):
    other = op("VarHandleOp", dtype="float32", shape=[])
    write = op("AssignVariableOp", other, constant(1.0))
    assert controls(read(v, "r"), targets=[write]) == {}


def test_an_update_writes_its_slots_too(v):
    slot = op("VarHandleOp", dtype="float32", shape=[], name="slot")
    early = read(slot, "early")
    update = op("ResourceApplyMomentum", v, slot, constant(1.0), constant(1.0), constant(1.0), name="update")
    late = read(slot, "late")
    assert controls(early, late, targets=[update]) == {"update": ("early",), "late": ("update",)}


def test_what_comes_after_an_effect_has_it_behind_itself(v):
    x = placeholder("float32", [], name="x")
    write = op("AssignVariableOp", v, x, name="w")
    with get_default_graph().control_dependencies([write]):
        y = op("Neg", x, name="y")
    subgraph = subgraph_of([op("Exp", y, name="z"), op("Exp", x, name="free")], feeds=[x])
    assert effectful_nodes(subgraph) == {"w", "y", "z"}


def test_a_handle_that_went_through_an_identity_is_still_the_same_variable(v):
    passed = op("Identity", v, name="passed")
    write = op("AssignVariableOp", passed, 1.0, name="write")
    after = order_effects(subgraph_of([read(v, "read")], [write]))
    assert after.nodes["read"].controls == ("write",)
    assert after.nodes["write"].inputs[0] == ("v", 0)
