"""The parts of a unit's variables, and of their slots, are one behind the other in one allocation each."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.local_devices import local_devices
from flowrt.distribute.cluster.containers import Containers
from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError
from flowrt.executor.ends.config import ConfigProto, device_request
from flowrt.graph.layouts.memory_places import GRAIN, MemoryPlace, place_of
from flowrt.graph.node import Node
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.resources.unit_memory import UnitMemory
from flowrt.graph.resources.variables import VariableResource
from tests.distribute.strategies.test_offload import mesh

SHAPES = {"w": [8, 6], "b": [8], "u": [6, 16]}
CONFIG = tf.ConfigProto(device_count={"CPU": 5})


def model(frozen: tuple[str, ...] = (), units: int = 2, **shapes: list[int]) -> Any:
    """The update of a variable of each of `SHAPES`, and of ``shapes``, in each of some units."""
    variables = [
        tf.get_variable(f"unit{i}/{name}", shape, trainable=name not in frozen)
        for i in range(units)
        for name, shape in {**SHAPES, **shapes}.items()
    ]
    loss = tf.add_n([tf.reduce_sum(tf.square(variable - 1.0)) for variable in variables])
    return tf.train.AdamOptimizer(0.1).minimize(loss)


def sharded(size: int = 2, **options: Any) -> Any:
    return tf.distribute.FullyShardedStrategy(mesh(size), **{"units": r"unit\d", "min_bytes": 8, **options})


def variables_of(session: Any) -> dict[tuple[str, str], VariableResource]:
    resources = session._runtime._resources
    return {key: each for key, each in resources.items() if isinstance(each, VariableResource)}


def together(session: Any) -> list[list[str]]:
    """The names of variables that are in one memory, in the order in which they are there: each at the first
    multiple of `GRAIN` elements after the one before it.
    """
    found: dict[int, list[VariableResource]] = {}
    for each in variables_of(session).values():
        found.setdefault(id(each.array.base), []).append(each)
    names = []
    for group in found.values():
        group.sort(key=lambda each: each.array.ctypes.data)
        end = group[0].array.ctypes.data
        for each in group:
            assert each.array.ctypes.data == end, each.name
            grain = GRAIN * each.array.itemsize
            end += -(-each.array.nbytes // grain) * grain
        names.append([each.name for each in group])
    return sorted(group for group in names if len(group) > 1)


def expected(suffixes: list[str], slots: list[str], names: list[str], trained: list[str]) -> list[list[str]]:
    of_slots = [
        [f"unit{i}/{n}{slot}{at}" for n in trained] for i in (0, 1) for at in suffixes for slot in slots
    ]
    return sorted([*[[f"unit{i}/{n}{at}" for n in names] for i in (0, 1) for at in suffixes], *of_slots])


DP2 = ["@dp0", "@dp1"]
ADAM = ["/Adam", "/Adam_1"]
ALL = ["w", "b", "u"]


@pytest.mark.parametrize(
    ("options", "suffixes"),
    [
        pytest.param({}, DP2, id="in parts"),
        pytest.param({"stage": 2, "policy": tf.distribute.Precision("bfloat16")}, DP2, id="stage 2"),
        pytest.param({"reshard_after_forward": False}, DP2, id="gathered once"),
        pytest.param({"policy": tf.distribute.Precision("bfloat16")}, DP2, id="bfloat16"),
        pytest.param({"offload": "parameters"}, DP2, id="on the host"),
        pytest.param({"size": 4}, ["@dp0", "@dp1", "@dp2", "@dp3"], id="of four"),
    ],
)
def test_a_unit_is_one_allocation(options: dict[str, Any], suffixes: list[str]) -> None:
    """On each device, and so are its slots of one kind."""
    shapes = {"u": [8, 16]} if options.get("size") == 4 else {}
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded(**options).scope():
            train = model(**shapes)
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert together(session) == expected(suffixes, ADAM, ALL, ALL)


def test_so_are_the_slots_of_variables_that_are_whole() -> None:
    """Of which each device updates its rows."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded(stage=2).scope():
            model(t=[2 * GRAIN, 2], u=[16, 6])
        session.run(tf.global_variables_initializer())
        names = [*ALL, "t"]
        assert together(session) == [
            group for group in expected(DP2, ADAM, names, names) if "Adam" in group[0]
        ]


def test_copies_in_parts_are_one_allocation_too() -> None:
    """On the devices, while the variables are on the host."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded(offload="optimizer", policy=tf.distribute.Precision("bfloat16")).scope():
            train = model()
        session.run(tf.global_variables_initializer())
        session.run(train)
        copies = [f"@copy{at}" for at in DP2]
        assert together(session) == sorted([*expected(DP2, ADAM, ALL, ALL), *expected(copies, [], ALL, [])])


def test_what_is_not_trained_has_no_place_among_the_slots() -> None:
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded().scope():
            model(frozen=("w",))
        session.run(tf.global_variables_initializer())
        assert together(session) == expected(DP2, ADAM, ALL, ["b", "u"])
        memories = [m for m in session._runtime._resources.values() if isinstance(m, UnitMemory)]
        assert {m.length for m in memories} == {3 * GRAIN, 2 * GRAIN}


def lengths(session: Any) -> dict[str, int]:
    """The elements of each memory on a device."""
    resources = session._runtime._resources.items()
    return {
        name: each.length
        for (device, name), each in resources
        if isinstance(each, UnitMemory) and device == session.devices[1].name
    }


def test_the_states_of_some_variables_take_no_more_than_these() -> None:
    """Though the scope was left before: then all variables might have been trained."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        strategy = sharded(units=None)
        with strategy.scope():
            layers = [tf.get_variable(f"l{i}", [2 * GRAIN]) for i in range(8)]
            loss = tf.add_n([tf.reduce_sum(tf.square(layer)) for layer in layers])
        for some in (layers[6:], layers[:1], layers):
            with strategy.scope():
                tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, var_list=some)
        session.run(tf.global_variables_initializer())
        assert lengths(session) == {
            "l0@unit@dp0": 8 * GRAIN, "l6@unit/0@dp0": 2 * GRAIN, "l0@unit/1@dp0": 8 * GRAIN,
        }  # fmt: skip


def test_slots_in_a_scope_that_has_letters_of_their_variables_are_one_allocation() -> None:
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded(units=None).scope():
            letters = [tf.get_variable(letter, [2 * GRAIN]) for letter in "abc"]
            loss = tf.add_n([tf.reduce_sum(tf.square(letter)) for letter in letters])
            for scope in ("cab", "abc"):
                with tf.variable_scope(scope):
                    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        session.run(tf.global_variables_initializer())
        assert lengths(session) == dict.fromkeys(["a@unit@dp0", "a@unit/0@dp0", "a@unit/1@dp0"], 3 * GRAIN)


def test_unequal_parts_have_memory_of_their_own() -> None:
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded().scope():
            model(odd=[7, 3])
        session.run(tf.global_variables_initializer())
        assert together(session) == expected(DP2, ADAM, ALL, ALL)


def test_found_units_are_too() -> None:
    """Blocks are joined as they are made, so all of a small model is one."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded(units=None).scope():
            model()
        session.run(tf.global_variables_initializer())
        assert [len(group) for group in together(session)] == [6] * 6


def test_the_pool_has_each_byte_once() -> None:
    """Parts that are smaller than what is pooled by itself are counted too, rounded up by `GRAIN`."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with sharded().scope():
            for i in range(64):
                tf.get_variable(f"unit0/{i}", [2 * GRAIN, 8 if i else 1])
        before = [device.pool.stats().bytes_in_use for device in session.devices[1:3]]
        session.run(tf.global_variables_initializer())
        plans = [plan for request in session._requests.values() for plan in request.plans.values()]
        arenas = [
            sum(-(-part.buffers.memory.nbytes // 256) * 256 for part in plan.partitions.values()
                if part.device is device)
            for device in session.devices[1:3] for plan in plans
        ]  # fmt: skip
        kept = [device.pool.stats().bytes_in_use for device in session.devices[1:3]]
        nbytes = (63 * 8 + 1) * GRAIN * 4
        assert [k - b - a for k, b, a in zip(kept, before, arenas, strict=True)] == [nbytes] * 2


def test_the_same_graph_under_two_names_has_two_memories() -> None:
    """Places are texts of handles, so an import has equal ones."""
    with tf.Graph().as_default() as made:
        with sharded(1, offload="parameters").scope():
            model()
        definition = made.as_graph_def()
    with tf.Graph().as_default() as graph, tf.Session(config=CONFIG) as session:
        for number, name in enumerate("ab"):
            tf.import_graph_def(definition, name=name)
            assign = graph.get_operation_by_name(f"{name}/unit0/w/Assign")
            session.run(assign, {assign.inputs[1]: np.full([8, 6], number)})
        values = session.run([f"{name}/unit0/w/Read/ReadVariableOp:0" for name in "ab"])
        np.testing.assert_array_equal(values, [np.full([8, 6], number) for number in range(2)])


def test_variables_get_their_places_in_any_order_and_sessions_their_memories() -> None:
    """One is loaded before the rest has values; a session that is closed takes nothing from another."""
    with tf.Graph().as_default():
        with sharded().scope():
            train = model()
        first, second = (tf.Session(config=CONFIG) for _ in range(2))
        last = tf.global_variables()[5]
        for number, session in enumerate((first, second)):
            last.load(np.full([6, 16], number, np.float32), session)
            others = [v.initializer for v in tf.global_variables() if v is not last]
            session.run(others)
            assert together(session) == expected(DP2, ADAM, ALL, ALL)
        arrays = [{key: v.array for key, v in variables_of(s).items()} for s in (first, second)]
        for key, array in arrays[0].items():
            assert not np.shares_memory(array, arrays[1][key])
        before = second.run(tf.global_variables())
        first.close()
        for found, wanted in zip(second.run(tf.global_variables()), before, strict=True):
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(second.run(last), np.full([6, 16], 1))
        session.run(train)
        session.run(tf.global_variables_initializer())  # again
        assert together(session) == expected(DP2, ADAM, ALL, ALL)
        second.close()


def handle(name: str, place: MemoryPlace, size: int = 4, dtype: Any = float32) -> Node:
    attrs = {"dtype": dtype, "shape": (size,), "container": "", "shared_name": name, "_memory": str(place)}
    return Node(name, var_handle_op, (), (), attrs, "/cpu:0", None, ())


def test_containers_share_memories_as_they_share_variables() -> None:
    (device,) = local_devices(device_request(ConfigProto()))
    containers = Containers()
    for name, is_isolated in (("one", False), ("two", False), ("alone", True)):
        containers.open(name, is_isolated)
    a, b = (handle(n, MemoryPlace(i * GRAIN, 2 * GRAIN, "a@unit")) for i, n in enumerate("ab"))
    of_one, of_two, of_alone = (containers.of(name) for name in ("one", "two", "alone"))
    first, second, other = of_one(device, a), of_two(device, b), of_alone(device, a)
    assert of_two(device, a) is first
    assert first.array.base is second.array.base
    assert other.array.base is not first.array.base
    containers.clear([])
    new = of_one(device, a)
    assert new.array.base is not first.array.base


def test_the_last_variable_frees_the_memory_and_reports_name_those_in_it() -> None:
    """At once: neither a session nor a report makes a cycle of it."""
    (device,) = local_devices(device_request(ConfigProto()))
    before, size = device.pool.stats(), 1 << 14
    containers = Containers()
    containers.open("one", False)
    places = {name: MemoryPlace(i * size, 3 * size, "a@unit") for i, name in enumerate("abc")}
    kept = [containers.of("one")(device, handle(name, place, size)) for name, place in places.items()]
    gc.disable()
    try:
        assert device.pool.stats().num_allocs == before.num_allocs + 1
        assert re.findall(r"64\.0 KiB  (.*)", device.pool.report()) == [*"abc"]
        containers.clear([])
        while kept:
            assert device.pool.stats().bytes_in_use == before.bytes_in_use + 3 * size * float32.size
            kept.pop()
        assert device.pool.stats().bytes_in_use == before.bytes_in_use
    finally:
        gc.enable()


def test_a_memory_gives_each_element_once() -> None:
    memory = UnitMemory(float32, 8)
    memory.pin(np.empty)

    def take(begin: int, size: int, dtype: Any = float32) -> Any:
        return memory.take(begin, handle("v", MemoryPlace(begin, 8, "v@unit"), size, dtype))

    assert take(2, 4).shape == (4,)
    for begin, size, dtype in [
        (5, 1, float32), (1, 2, float32), (2, 4, float32), (6, 3, float32), (6, 1, tf.int32),
    ]:  # fmt: skip
        assert take(begin, size, dtype) is None
    assert take(6, 2) is not None


@pytest.mark.parametrize("shape", [None, [None, 2]])
def test_what_has_no_known_shape_has_memory_of_its_own(shape: Any) -> None:
    """Though a file may give it a place."""
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.placeholder_with_default(np.ones((2, 2), np.float32), shape)
        variable = tf.Variable(value, validate_shape=False)
        variable.op.mutate(attrs={**variable.op.node.attrs, "_memory": "0 64 w@unit"})
        session.run(variable.initializer)
        np.testing.assert_array_equal(session.run(variable), np.ones((2, 2)))


def test_places_are_in_files_of_the_graph() -> None:
    with tf.Graph().as_default() as graph:
        with sharded().scope():
            model()
        handles = [op.node for op in graph.get_operations() if op.type == "VarHandleOp"]
        places = {node.name: place_of(node.attrs) for node in handles}
        assert places["unit0/b"] == MemoryPlace(GRAIN, 3 * GRAIN, "unit0/w@unit")
        assert all(place_of({"_memory": str(place)}) == place for place in places.values() if place)
        text = str(graph.as_graph_def())
        assert len(re.findall("unit0/w@unit", text)) == len(SHAPES) * 4


@pytest.mark.parametrize(
    "text", ["", "0 w@unit", "-1 64 w@unit", "0 64 w@unit x", "0 64 ", "0 64 w", "0 64 w@unit0"]
)
def test_a_text_that_names_no_place_is_an_error(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="_memory: expected a place in memory"):
        place_of({"_memory": text})
