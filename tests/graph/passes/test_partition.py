from __future__ import annotations

import numpy as np
import pytest

from flowrt import dtypes
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.passes.placement.partition import MAX_COPIED_BYTES, partition, task_of
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, op, snapshot, subgraph_of

A, B, C = (f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3))


@pytest.fixture
def x():
    return on(A, lambda: placeholder("float32", [2], name="x"))


def on(device, build):
    with get_default_graph().device(device):
        return build()


def parts(*fetches, targets=(), feeds=()):
    before = subgraph_of(fetches, targets, feeds)
    seen = snapshot(before)
    found = partition(before)
    assert snapshot(before) == seen
    for device, part in found.items():
        verify_subgraph(part)
        assert {node.device for node in part} == {device}
    return found


def kinds(part):
    return [node.op.name for node in part]


def test_a_subgraph_on_one_device_stays_whole(x):
    before = subgraph_of([on(A, lambda: op("Exp", x))], feeds=[x])
    assert partition(before) == {A: before}


def test_a_cut_edge_gets_a_send_and_a_receive(x):
    found = parts(on(B, lambda: op("Exp", x, name="y")), feeds=[x])
    assert lines(found[A]) == ["x = _Feed()", "x/_send_0/localhost_0_0_CPU_1 = _Send(x)"]
    assert lines(found[B]) == [
        "x/_recv_0/localhost_0_0_CPU_1 = _Recv()",
        "y = Exp(x/_recv_0/localhost_0_0_CPU_1)",
    ]


def test_both_ends_of_a_cut_edge_name_it_alike(x):
    found = parts(on(B, lambda: op("Exp", x)), feeds=[x])
    send = next(n for n in found[A] if n.op.name == "_Send")
    recv = next(n for n in found[B] if n.op.name == "_Recv")
    ends = ("tensor_name", "send_device", "recv_device")
    assert [send.attrs[key] for key in ends] == [recv.attrs[key] for key in ends] == ["x:0", A, B]


def test_readers_on_one_device_share_a_pair(x):
    found = parts(*on(B, lambda: [op("Exp", x), op("Neg", x)]), feeds=[x])
    assert kinds(found[A]).count("_Send") == kinds(found[B]).count("_Recv") == 1


def test_readers_on_two_devices_have_a_pair_each(x):
    found = parts(on(B, lambda: op("Exp", x)), on(C, lambda: op("Exp", x)), feeds=[x])
    assert kinds(found[A]).count("_Send") == 2


def test_a_control_edge_becomes_a_pair_that_carries_nothing(x):
    first = on(A, lambda: op("Exp", x, name="first"))
    c = on(B, lambda: constant(1.0))
    with get_default_graph().control_dependencies([first]):
        later = on(B, lambda: op("Neg", c, name="later"))
    found = parts(later, feeds=[x])
    signal = next(n for n in found[A] if n.op.name == "Const")
    assert (signal.controls, signal.outputs[0].shape) == (("first",), (0,))
    recv = next(n for n in found[B] if n.op.name == "_Recv")
    assert found[B].nodes["later"].controls == (recv.name,)


def test_a_small_constant_is_copied_and_a_large_one_sent(x):
    small = on(B, lambda: constant([1.0, 2.0]))
    large = on(B, lambda: constant(np.zeros(MAX_COPIED_BYTES // 4 + 1, np.float32)))
    y = on(A, lambda: op("AddV2", x, small))
    assert "_Recv" not in kinds(parts(y, feeds=[x])[A])
    assert "_Recv" in kinds(parts(on(A, lambda: op("Neg", large)), y, feeds=[x])[A])


def test_a_constant_that_waits_is_not_copied(x):
    with get_default_graph().control_dependencies([x]):
        late = on(B, lambda: constant(1.0))
    assert "_Recv" in kinds(parts(on(A, lambda: op("Neg", late)), feeds=[x])[A])


def test_ends_go_with_the_nodes_they_name(x):
    y, z = on(A, lambda: op("Exp", x, name="y")), on(B, lambda: op("Neg", x, name="z"))
    found = parts(z, y, targets=[z.op], feeds=[x])
    assert [(p.feeds, p.fetches, p.targets) for p in (found[A], found[B])] == [
        (("x",), (("y", 0),), ()),
        ((), (("z", 0),), ("z",)),
    ]


# --- the order of exchanges


def received(part):
    return [node for node in part if node.op.name == "_Recv"]


def test_a_receive_waits_for_what_is_sent_to_get_its_answer(x):
    sent = on(A, lambda: op("Exp", x, name="sent"))
    unsent = on(A, lambda: op("Sin", x, name="unsent"))
    answer = on(C, lambda: op("Neg", on(B, lambda: op("Neg", sent))))
    found = parts(on(A, lambda: op("Neg", answer)), unsent, feeds=[x])
    assert [recv.controls for recv in received(found[A])] == [("sent",)]
    assert [recv.controls for part in (found[B], found[C]) for recv in received(part)] == [(), ()]


def test_a_receive_waits_for_no_more_than_others_imply(x):
    first = on(A, lambda: op("Exp", x, name="first"))
    second = on(A, lambda: op("AddV2", first, on(B, lambda: op("Neg", first)), name="second"))
    answer = on(B, lambda: op("AddV2", on(B, lambda: op("Neg", first)), on(B, lambda: op("Neg", second))))
    found = parts(on(A, lambda: op("Neg", answer)), feeds=[x])
    assert [recv.controls for recv in received(found[A])] == [("first",), ("second",)]


def test_an_answer_from_another_task_waits_too():
    other = "/job:other/replica:0/task:1/device:CPU:0"
    x = on(A, lambda: placeholder("float32", [2], name="x"))
    sent = on(B, lambda: op("Neg", on(A, lambda: op("Exp", x, name="sent"))))
    answer = on(other, lambda: op("Neg", sent))
    whole = subgraph_of([on(A, lambda: op("Neg", answer))], feeds=[x])
    by_task = partition(whole, task_of)
    (recv,) = received(by_task[task_of(A)])
    assert recv.controls == ("sent",)


def test_what_a_group_sends_later_may_need_what_it_sent_first(x):
    """Of ranks in other graphs nothing is known: any earlier collective may lead to a later one."""
    attrs = {"group_key": "g", "rank": 0, "peer": 1}
    sent = on(B, lambda: op("Neg", on(A, lambda: op("Exp", x, name="sent"))))
    send = on(B, lambda: op("_GroupSend", sent, **attrs, edge="first", is_described=False, name="send"))
    result = {"dtype": dtypes.float32, "shape": (2,)}
    answer = on(A, lambda: op("_GroupRecv", **attrs, edge="second", **result, name="answer"))
    whole = subgraph_of([answer], [send], [x])
    assert [node.name for node in whole][-2:] == ["send", "answer"]
    assert partition(whole)[A].nodes["answer"].controls == ("sent",)
