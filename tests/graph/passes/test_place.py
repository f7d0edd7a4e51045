from __future__ import annotations

import re
from types import MappingProxyType

import numpy as np
import pytest

import flowrt.device.local_devices  # noqa: F401 (it registers the kinds of devices)
from flowrt.device.spec import parse_device
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.op_def import op_def
from flowrt.graph.passes.placement.place import NO_REASONS, place
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import op, snapshot, subgraph_of

CPU_0, CPU_1, CPU_2 = (f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3))
GPU_0, GPU_1 = (f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(2))
PS_0, PS_1 = (f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2))
WORKER_0, WORKER_0_GPU = (f"/job:worker/replica:0/task:0/device:{kind}:0" for kind in ("CPU", "GPU"))
WORKER_1 = "/job:worker/replica:0/task:1/device:CPU:0"


def placed(
    *fetches,
    on=(CPU_0, CPU_1),
    targets=(),
    feeds=(),
    assigned=MappingProxyType({}),
    soft=False,
    why_none=NO_REASONS,
):
    """The device of each node by name."""
    before = subgraph_of(fetches, targets, feeds)
    seen = snapshot(before)
    devices = [parse_device(name) for name in on]
    after = place(before, devices, assigned=assigned, soft=soft, why_none=why_none)
    assert snapshot(before) == seen
    verify_subgraph(after)
    assert {node.device for node in after} <= set(on)
    assert place(after, devices, assigned=assigned, soft=soft) is after
    return {node.name: node.device for node in after}


def error(*fetches, **options):
    with pytest.raises(InvalidArgumentError) as caught:
        placed(*fetches, **options)
    return str(caught.value)


def on(device, build):
    with get_default_graph().device(device):
        return build()


def variable(name="v", device=""):
    return on(device, lambda: op("VarHandleOp", dtype="float32", shape=[], name=name))


@pytest.fixture
def x():
    return placeholder("float32", [2], name="x")


# --- choice


def test_a_node_that_asks_for_nothing_goes_to_the_default_device(x):
    assert placed(op("Exp", x, name="y"), feeds=[x], on=(CPU_1, CPU_0))["y"] == CPU_0
    assert placed(op("Exp", x, name="y"), feeds=[x], on=(WORKER_1, WORKER_0))["y_1"] == WORKER_1


def test_a_request_is_met(x):
    y = on("/cpu:1", lambda: op("Exp", x, name="y"))
    assert placed(y, feeds=[x])["y"] == CPU_1


def test_a_partial_request_takes_the_best_that_fits(x):
    y = on("/job:ps", lambda: op("Exp", x, name="y"))
    z = on("/job:ps/task:1", lambda: op("Exp", x, name="z"))
    found = placed(y, z, feeds=[x], on=(WORKER_0, PS_1, PS_0))
    assert (found["y"], found["z"]) == (PS_0, PS_1)


def test_a_gpu_is_better_than_a_cpu(x):
    assert placed(op("Exp", x, name="y"), feeds=[x], on=(CPU_0, GPU_0, GPU_1))["y"] == GPU_0


def test_a_near_gpu_is_better_than_a_far_one(x):
    on_ = ("/job:a/replica:0/task:0/device:GPU:0", WORKER_0, WORKER_0_GPU)
    y = op("Exp", x, name="y")
    assert placed(y, feeds=[x], on=(WORKER_0, WORKER_0_GPU, on_[0]))["y"] == WORKER_0_GPU


def test_strings_stay_on_the_host_beside_a_gpu():
    s = placeholder("string", [2], name="s")
    assert placed(op("Identity", s, name="y"), feeds=[s], on=(CPU_0, GPU_0))["y"] == CPU_0


def test_a_list_with_a_string_stays_on_the_host_beside_a_gpu(x):
    s = placeholder("string", [], name="s")
    y = op("AsString", x, name="y")
    z = op("IdentityN", [x, s], name="z")
    found = placed(y, z[0], feeds=[x, s], on=(CPU_0, GPU_0))
    assert found["y"] == found["z"] == CPU_0


def test_a_fixed_string_input_stays_on_the_host_beside_a_gpu():
    s = placeholder("string", [2], name="s")
    assert placed(op("StringLength", s, name="y"), feeds=[s], on=(CPU_0, GPU_0))["y"] == CPU_0


def test_python_functions_stay_on_the_host_beside_a_gpu(x):
    y = op("PyFunc", [x], token="f", Tout=["float32"], name="y")
    assert placed(y[0], feeds=[x], on=(CPU_0, GPU_0))["y"] == CPU_0


# --- groups


def test_a_colocated_node_goes_where_its_partner_was_sent(x):
    y = on("/cpu:1", lambda: op("Exp", x, name="y"))
    z = op("Neg", x, name="z", _class=("loc:@y",))
    assert placed(y, z, feeds=[x])["z"] == CPU_1


def test_colocation_with_a_node_outside_the_subgraph_still_groups(x):
    y = on("/cpu:1", lambda: op("Exp", x, name="y", _class=("loc:@far",)))
    z = op("Neg", x, name="z", _class=("loc:@far",))
    assert placed(y, z, feeds=[x])["z"] == CPU_1


def test_groups_join_through_a_common_member(x):
    a = op("Exp", x, name="a", _class=("loc:@a", "loc:@b"))
    b = op("Neg", x, name="b", _class=("loc:@b",))
    c = on("/cpu:1", lambda: op("Abs", x, name="c", _class=("loc:@a",)))
    assert set(placed(b, a, c, feeds=[x]).values()) == {CPU_1}


def test_what_takes_a_resource_is_where_the_resource_is():
    v = variable(device="/cpu:1")
    read = op("ReadVariableOp", v, dtype="float32", name="read")
    write = op("AssignVariableOp", v, constant(1.0, name="c"), name="write")
    found = placed(read, targets=[write])
    assert {found[name] for name in ("v", "read", "write")} == {CPU_1}


def test_a_request_of_a_reader_sends_the_whole_variable():
    v = variable()
    read = on("/cpu:1", lambda: op("ReadVariableOp", v, dtype="float32", name="read"))
    assert placed(read)["v"] == CPU_1


def test_partial_requests_of_a_group_are_joined(x):
    y = on("/job:ps", lambda: op("Exp", x, name="y"))
    z = on("/task:1", lambda: op("Neg", x, name="z", _class=("loc:@y",)))
    assert set(placed(y, z, feeds=[x], on=(WORKER_0, WORKER_1, PS_0, PS_1)).values()) == {PS_1}


def test_a_group_with_a_member_that_has_no_gpu_kernel_is_on_the_host(x):
    s = op("Const", value=np.array([b"a"], object), dtype="string", name="s")
    y = op("Exp", x, name="y", _class=("loc:@s",))
    assert placed(s, y, feeds=[x], on=(CPU_0, GPU_0))["y"] == CPU_0


# --- earlier placement


def test_a_variable_stays_where_it_was_put_before():
    read = op("ReadVariableOp", variable(), dtype="float32", name="read")
    assert set(placed(read, assigned={"v": CPU_1}).values()) == {CPU_1}


def test_a_random_node_stays_where_it_was_put_before():
    r = op("RandomUniform", constant([2]), seed=1, name="r")
    assert placed(r, assigned={"r": CPU_1})["r"] == CPU_1


def test_a_group_goes_where_a_member_outside_the_subgraph_was_put_before(x):
    y = op("Exp", x, name="y", _class=("loc:@v",))
    assert placed(y, feeds=[x], assigned={"v": CPU_1})["y"] == CPU_1


def test_soft_placement_does_not_move_what_was_put_before():
    v = variable()
    read = on("/cpu:0", lambda: op("ReadVariableOp", v, dtype="float32", name="read"))
    assert placed(read, assigned={"v": CPU_1}, soft=True)["read"] == CPU_1


def test_a_request_against_an_earlier_placement_is_refused():
    v = variable()
    read = on("/cpu:0", lambda: op("ReadVariableOp", v, dtype="float32", name="read"))
    message = error(read, assigned={"v": CPU_1})
    assert "'v'" in message
    assert f"was placed on {CPU_1} by an earlier step" in message
    assert "requests /device:CPU:0" in message


# --- followers


def test_a_shape_is_read_where_its_tensor_is():
    x = placeholder("float32", [None], name="x")
    y = on("/cpu:1", lambda: op("Exp", x, name="y"))
    found = placed(op("Size", op("Shape", y, name="shape"), name="size"), feeds=[x])
    assert (found["shape"], found["size"]) == (CPU_1, CPU_1)


def test_a_constant_follows_its_consumers(x):
    c = constant(1.0, name="c")
    y = on("/cpu:1", lambda: op("AddV2", x, c))
    assert placed(y, on("/cpu:1", lambda: op("Mul", x, c)), feeds=[x])["c"] == CPU_1


def test_a_constant_stays_when_its_consumers_are_scattered(x):
    c = constant(1.0, name="c")
    y = on("/cpu:1", lambda: op("AddV2", x, c))
    assert placed(y, on("/cpu:2", lambda: op("Mul", x, c)), feeds=[x], on=(CPU_0, CPU_1, CPU_2))["c"] == CPU_0


def test_a_constant_with_a_request_does_not_follow(x):
    c = on("/cpu:0", lambda: constant(1.0, name="c"))
    assert placed(on("/cpu:1", lambda: op("AddV2", x, c)), feeds=[x])["c"] == CPU_0


def test_a_feed_follows_its_first_consumer(x):
    first = on("/cpu:1", lambda: op("Exp", x))
    assert placed(first, on("/cpu:0", lambda: op("Neg", x)), feeds=[x])["x"] == CPU_1


def test_a_feed_does_not_follow_who_reads_its_shape_only():
    x = placeholder("float32", [None], name="x")
    shape = op("Shape", x, name="shape")
    y = on("/cpu:1", lambda: op("Exp", x))
    found = placed(shape, y, feeds=[x])
    assert (found["x"], found["shape"]) == (CPU_1, CPU_1)


def test_a_string_does_not_follow_to_a_gpu():
    s = op("Const", value=np.array([b"a"], object), dtype="string", name="s")
    y = on("/gpu:0", lambda: op("Shape", s, name="y"))
    assert placed(y, on=(CPU_0, GPU_0), soft=True)["s"] == CPU_0


# --- soft placement


def test_soft_placement_ignores_a_type_that_is_not_there(x):
    y = on("/gpu:3", lambda: op("Exp", x, name="y"))
    assert placed(y, feeds=[x], soft=True)["y"] == CPU_0


def test_soft_placement_keeps_job_and_task(x):
    y = on("/job:ps/task:1/gpu:0", lambda: op("Exp", x, name="y"))
    assert placed(y, feeds=[x], on=(WORKER_0, PS_0, PS_1), soft=True)["y"] == PS_1


def test_soft_placement_does_not_invent_a_job(x):
    y = on("/job:moon/gpu:0", lambda: op("Exp", x))
    assert "/job:moon" in error(y, feeds=[x], soft=True)


def test_soft_placement_leaves_requests_that_can_be_met(x):
    y = on("/cpu:1", lambda: op("Exp", x, name="y"))
    assert placed(y, feeds=[x], soft=True)["y"] == CPU_1


def test_soft_placement_leaves_the_requests_of_a_group_that_can_be_met(x):
    y = on("/cpu:1", lambda: op("Exp", x, name="y"))
    z = op("Neg", x, name="z", _class=("loc:@y",))
    assert placed(y, z, feeds=[x], soft=True)["z"] == CPU_1


def test_soft_placement_joins_a_group_whose_requests_differ_in_the_index(x):
    y = on("/cpu:0", lambda: op("Exp", x, name="y"))
    z = on("/cpu:1", lambda: op("Neg", x, name="z", _class=("loc:@y",)))
    found = placed(y, z, feeds=[x], soft=True)
    assert found["y"] == found["z"]


# --- errors


def test_an_unknown_device_is_refused_with_the_list_of_devices(x):
    y = on("/gpu:0", lambda: op_def("Exp")(x, name="y"))
    message = error(y, feeds=[x])
    assert re.search(r"Exp 'y' \(.*test_place.py:\d+\)", message)
    assert "requests /device:GPU:0" in message
    assert f"The devices are {CPU_0}, {CPU_1}" in message


def test_a_missing_kernel_is_refused_with_the_types_that_have_one():
    s = on("/gpu:0", lambda: op("Const", value=np.array([b"a"], object), dtype="string", name="s"))
    message = error(s, on=(CPU_0, GPU_0))
    assert "requests /device:GPU:0 and has kernels for CPU only" in message


def test_the_error_names_the_smallest_conflicting_set(x):
    group = ("loc:@g",)
    nodes = [op_def("Exp")(x, name="bystander", _class=group)]
    nodes.append(on("/job:localhost", lambda: op_def("Exp")(x, name="bystander", _class=group)))
    nodes.append(on("/cpu:1", lambda: op_def("Exp")(x, name="right", _class=group)))
    nodes.append(on("/cpu:1", lambda: op_def("Exp")(x, name="right_too", _class=group)))
    nodes.append(on("/cpu:0", lambda: op_def("Exp")(x, name="left", _class=group)))
    message = error(*nodes, feeds=[x], on=(PS_0, CPU_0, CPU_1))
    assert sorted(re.findall(r"Exp '(\w+)' \(.*test_place.py:\d+\) requests", message)) == ["left", "right"]
    assert "bystander" not in message


def test_three_requests_that_conflict_only_together_are_all_named(x):
    devices = tuple(
        f"/job:{job}/replica:0/task:{task}/device:CPU:{index}"
        for job, task, index in (("a", 0, 0), ("a", 1, 1), ("b", 0, 1))
    )
    group = ("loc:@g",)
    nodes = [
        on(request, lambda name=request[1:4]: op("Exp", x, name=name, _class=group))
        for request in ("/job:a", "/task:0", "/cpu:1")
    ]
    message = error(*nodes, feeds=[x], on=devices)
    assert len(re.findall("requests", message)) == 3


def test_two_resources_on_different_devices_for_one_operation_are_refused():
    a, b = variable("a", "/cpu:0"), variable("b", "/cpu:1")
    names = [op("Identity", v, name=v.op.name + "_same", _class=("loc:@pair",)) for v in (a, b)]
    message = error(*names)
    assert "'a'" in message
    assert "'b'" in message


# --- why there is no device


def test_an_error_says_why_there_is_no_device_of_the_type(x):
    y = on("/gpu:0", lambda: op("Exp", x, name="y"))
    found = error(y, feeds=[x], why_none={"GPU": lambda: "it is on holiday", "TPU": lambda: "never was"})
    assert found.endswith(
        "There is no GPU: it is on holiday. allow_soft_placement=True moves it to an existing device."
    )
    assert "TPU" not in found
    assert "There is no" not in error(y, feeds=[x], why_none={"GPU": lambda: None})


def test_a_task_of_a_cluster_is_hinted_at_only_where_there_is_no_cluster(x):
    y = on("/job:trainer/task:1", lambda: op("Exp", x, name="y"))
    assert "Job 'trainer' exists in a session of its cluster: Session(server.target)" in error(
        y, feeds=[x], on=(CPU_0,)
    )
    assert "server.target" not in error(y, feeds=[x], on=(PS_0,))


def test_devices_of_a_cluster_are_made_by_the_servers_configuration(x):
    y = on("/cpu:3", lambda: op("Exp", x, name="y"))
    made = "ConfigProto(device_count={'CPU': 4})"
    assert f"{made} of the session, or of its Server, creates it." in error(y, feeds=[x], on=(CPU_0,))
    assert f"{made} of the task's Server creates it." in error(y, feeds=[x], on=(PS_0, PS_1))


def test_nobody_is_asked_why_where_there_is_a_device(x):
    def why():
        raise AssertionError

    y, z = (on(f"/gpu:{i}", lambda: op("Exp", x, name="y")) for i in (0, 7))
    assert placed(y, feeds=[x], on=(CPU_0, GPU_0), why_none={"GPU": why})["y"] == GPU_0
    assert "requests /device:GPU:7" in error(z, feeds=[x], on=(CPU_0, GPU_0), why_none={"GPU": why})
