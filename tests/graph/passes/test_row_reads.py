"""Reads of rows of variables become gathers from the variable where it lies, if a loop reads them."""

from __future__ import annotations

import numpy as np

import flowrt as tf
from flowrt.graph.passes.optimise.row_reads import read_rows_in_place
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, op, snapshot, subgraph_of


def rewritten(fetches, targets=()):
    before = order_effects(subgraph_of(fetches, targets))
    seen = snapshot(before)
    after = read_rows_in_place(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    return before, after


def handle(shape=(4, 3)):
    return op("VarHandleOp", dtype=tf.float32, shape=shape, name="table")


def rows_of(table, **attrs):
    ids = tf.constant([0, 2], name="ids")
    return op("ResourceGather", table, ids, dtype=tf.float32, name="rows", **attrs)


def test_rows_that_a_loop_reads_are_gathered():
    y = op("Exp", rows_of(handle()), name="y")
    before, after = rewritten([y])
    assert lines(after) == [
        "table = VarHandleOp()",
        "ids = Const([0, 2])",
        "rows/Read = ReadVariableOp(table) ^ids",
        "rows/Read/axis = Const(0)",
        "rows = GatherV2(rows/Read, ids, rows/Read/axis)",
        "y = Exp(rows)",
    ]
    assert after.nodes["y"] is before.nodes["y"]
    assert after.nodes["rows"].outputs == before.nodes["rows"].outputs


def test_what_is_written_before_is_waited_for_and_what_is_written_after_waits():
    table = handle()
    first = op("AssignVariableOp", table, np.zeros((4, 3), np.float32), name="first")
    y = op("Exp", rows_of(table), name="y")
    last = op("AssignVariableOp", table, np.ones((4, 3), np.float32), name="last")
    _, after = rewritten([y], [first, last])
    assert after.nodes["rows/Read"].controls == ("first", "ids")
    assert "rows" in after.nodes["last"].controls


def test_a_read_waits_for_what_the_row_numbers_wait_for():
    table = handle()
    first = op("AssignVariableOp", table, np.zeros((4, 3), np.float32), name="first")
    with tf.control_dependencies([first]):
        y = op("Exp", rows_of(table), name="y")
    before = order_effects(subgraph_of([y], [first]))
    rows = before.nodes["rows"].replace(controls=())  # as `clean_dependencies` leaves it
    after = read_rows_in_place(before.with_nodes([rows if node.name == "rows" else node for node in before]))
    assert after.nodes["ids"].controls == ("first",)
    assert after.nodes["rows/Read"].controls == ("ids",)


def test_others_stay_as_they_are():
    alone, product = rows_of(handle()), op("MatMul", rows_of(handle()), np.ones((3, 2), np.float32))
    unknown, deep = op("Exp", rows_of(handle((None, 3)))), op("Exp", rows_of(handle((4, 3, 2))))
    in_step = op("Exp", op("ResourceGather", handle((2, 3)), [[0], [1]], dtype=tf.float32, batch_dims=1))
    for fetch in (alone, product, unknown, deep, in_step):
        before, after = rewritten([fetch])
        assert after is before
