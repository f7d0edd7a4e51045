"""The memory plan: nothing that is in use is written over, and little is wasted.

What is in use is found here from the steps themselves, not from the planner's or the compiler's own lists.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from benchmarks import nets
from benchmarks.allocator import MAX_RATIO
from benchmarks.devices import MAX_PLAN_RATIO, measure, measure_unplanned
from benchmarks.nets import NETS, digits_cnn
from flowrt.executor.analysis import streams
from flowrt.executor.buffers import memory_plan
from flowrt.executor.buffers.buffer_assignment import Storage, nbytes_of
from flowrt.executor.buffers.memory_plan import GRAIN, ArenaPlanner
from flowrt.graph.op_def import Effect
from tests.executor.random_programs import RandomProgram

DEEP = "MLP of 1,000 layers"

# --- the planner, driven by random steps


class Step(NamedTuple):
    """A node: the bytes of its outputs, which tensors it reads and which nodes end before it begins (numbers
    that are taken modulo how many there are), and whether it may write over what it reads.
    """

    outputs: list[int]
    reads: list[int]
    after: list[int]
    in_place: bool


STEPS = st.lists(
    st.builds(
        Step,
        outputs=st.lists(st.sampled_from([0, 1, 64, 100, 320, 1000]), max_size=2),
        reads=st.lists(st.integers(0, 100), max_size=3),
        after=st.lists(st.integers(0, 100), max_size=2),
        in_place=st.booleans(),
    ),
    max_size=30,
)


class Buffer:
    """A tensor: who writes and reads it, by position."""

    def __init__(self, ref, nbytes, writer):
        self.ref, self.nbytes, self.users = ref, nbytes, [writer]
        self.above = None
        """The buffer that it is written over."""


class Driver:
    """Takes a planner through ``steps`` as the compiler does, and keeps a record of its own.

    With ``has_streams``, a node is over when another begins if that one reads its output or comes ``after``
    it, or after one for which that holds; without, if it comes earlier.
    """

    def __init__(self, steps, has_streams):
        self.buffers = self._buffers(steps)
        self.before = self._closure(steps, has_streams)
        self.planner = ArenaPlanner(self.is_over if has_streams else None)
        self.live, self.most = {}, 0
        for position, step in enumerate(steps):
            for buffer in [b for b in self.buffers if b.users[0] == position]:
                self._begin(buffer, position, step.in_place)
            self.most = max(self.most, sum(map(rounded, self.live.values())))
            for buffer in [b for b in self.live.values() if b.users[-1] == position]:
                del self.live[buffer.ref]
                self.planner.release(buffer.ref, map(str, buffer.users))
            self.check_gaps()
        self.plan = self.planner.plan()

    def is_over(self, first, second):
        return int(first) in self.before[int(second)]

    def _buffers(self, steps):
        made = []
        for position, step in enumerate(steps):
            for buffer in {made[number % len(made)] for number in step.reads if made}:
                buffer.users.append(position)
            made += [Buffer((str(position), i), n, position) for i, n in enumerate(step.outputs)]
        return made

    def _closure(self, steps, has_streams):
        """For each node those that are over when it begins."""
        before = []
        for position, step in enumerate(steps):
            direct = {b.users[0] for b in self.buffers if position in b.users[1:]}
            direct |= {number % position for number in step.after if position}
            before.append(direct.union(*[before[d] for d in direct]) if has_streams else set(range(position)))
        return before

    def _begin(self, buffer, position, in_place):
        buffer.above = self._source(buffer, position) if in_place else None
        self.live[buffer.ref] = buffer
        if buffer.above is None:
            self.planner.allocate(buffer.ref, buffer.nbytes, str(position))
        else:
            del self.live[buffer.above.ref]
            self.planner.inherit(buffer.ref, buffer.above.ref)

    def _source(self, buffer, position):
        """What the node may write over: of the same size, and read by nobody else at that time or later."""
        for source in self.live.values():
            is_last = source.users[-1] == position != source.users[0] and source.nbytes == buffer.nbytes
            if is_last and set(source.users[:-1]) <= self.before[position]:
                return source
        return None

    # --- what must hold

    def check_gaps(self):
        """The gaps and the places in use tile the arena."""
        planner = self.planner
        spans = [(start, start + size) for size, start in planner._gaps]
        for ref in self.live:
            block = planner._block_of[ref]
            spans += [(block.offset, block.offset + block.size)] if block.size else []
        at = 0
        for start, end in sorted(spans):
            assert start == at < end
            at = end
        assert at == planner._top
        assert planner._gaps == sorted((end - start, start) for start, end in planner._starts.items())
        assert planner._ends == {end: start for start, end in planner._starts.items()}
        assert planner._users.keys() == planner._starts.keys()

    def check_plan(self):
        plan = self.plan
        assert plan.nbytes >= plan.lower_bound == self.most
        assert plan.nbytes <= sum(map(rounded, self.buffers))
        assert sum(map(rounded, [b for b in self.buffers if b.ref in plan.peak])) == self.most
        assert plan.sizes == {b.ref: b.nbytes for b in self.buffers}
        assert plan.offsets.keys() == plan.sizes.keys()
        for buffer in self.buffers:
            offset = plan.offsets[buffer.ref]
            assert offset % GRAIN == 0
            assert 0 <= offset <= plan.nbytes - rounded(buffer)
            if buffer.above is not None:
                assert offset == plan.offsets[buffer.above.ref]
        for i, one in enumerate(self.buffers):
            for other in self.buffers[i + 1 :]:
                assert not overlap(plan, one.ref, other.ref) or self.are_apart(one, other)

    def are_apart(self, one, other):
        """Whether all users of one, but who writes the other over it, are over when the other is written."""
        written = other.users[0]
        users = one.users[:-1] if other.above is one else one.users
        return set(users) <= self.before[written]


def rounded(buffer):
    return -(-buffer.nbytes // GRAIN) * GRAIN


def overlap(plan, one, other):
    """Whether two buffers share bytes."""
    start, end = plan.offsets[one], plan.offsets[one] + plan.sizes[one]
    return max(start, plan.offsets[other]) < min(end, plan.offsets[other] + plan.sizes[other])


@pytest.mark.parametrize("has_streams", [False, True])
@pytest.mark.parametrize("tolerated", [0.0, 1e9], ids=["by size", "as they come"])
@given(steps=STEPS)
def test_nothing_in_use_is_written_over(has_streams, tolerated, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_plan, "TOLERATED", tolerated)
        Driver(steps, has_streams).check_plan()


def replay(*changes):
    """The plan of ``("a", 100)``, which comes with 100 bytes, and ``"a"``, which goes."""
    planner = ArenaPlanner()
    for change in changes:
        if isinstance(change, str):
            planner.release((change, 0))
        else:
            planner.allocate((change[0], 0), change[1], change[0])
    return planner.plan()


def test_the_larger_goes_first_where_gaps_are_too_small():
    changes = [("small", 128), ("kept", 64), "small", ("large", 256)]
    plan = replay(*changes)  # as they come: 128 free, then 64, then 256 at the end
    assert plan.nbytes == plan.lower_bound == 320
    assert plan.offsets == {("small", 0): 0, ("large", 0): 0, ("kept", 0): 256}
    assert plan.peak == (("kept", 0), ("large", 0))


def test_larger_plans_than_can_be_looked_at_pairwise_are_as_they_came(monkeypatch):
    monkeypatch.setattr(memory_plan, "MAX_BY_SIZE", 2)
    plan = replay(("small", 128), ("kept", 64), "small", ("large", 256))
    assert (plan.nbytes, plan.lower_bound) == (448, 320)


def test_equal_sizes_come_back_where_they_are_warm():
    plan = replay(("a", 64), ("b", 256), "a", ("c", 64), "b", ("d", 256), "c", ("e", 10), "d", "e")
    assert plan.offsets == {("a", 0): 0, ("c", 0): 0, ("e", 0): 0, ("b", 0): 64, ("d", 0): 64}


def test_what_is_empty_takes_no_room():
    plan = replay(("a", 0), ("b", 64), ("c", 0), "a", "b", "c", ("d", 0))
    assert (plan.nbytes, plan.lower_bound) == (64, 64)
    assert replay().nbytes == replay(("a", 0)).nbytes == 0


# --- compiled partitions

ORDER_KEEPING = ("Identity", "StopGradient", "PreventGradient", "EnsureShape", "Reshape", "CheckNumerics")


class InUse:
    """Who uses each buffer of a partition, from its nodes and where their outputs are."""

    def __init__(self, part):
        self.part, self.nodes, self.plan = part, part.subgraph.nodes, part.buffers.memory
        self.position = {node.name: i for i, node in enumerate(part.schedule.order)}
        self.position |= dict.fromkeys(part.subgraph.feeds, -1)  # they are filled before the program starts
        self.users = {ref: [ref[0]] for ref in self.plan.offsets}
        self.kept = {self.memory_of(ref) for ref in part.subgraph.fetches}
        for node in part.schedule.order:
            for ref in {self.memory_of(ref) for ref in node.inputs} & self.users.keys():
                self.users[ref].append(node.name)
                self.kept |= {ref} if node.op.name == "_Send" else set()

    def memory_of(self, ref):
        """Whose memory a tensor is in: its own, or that of what it is a view of."""
        node = self.nodes[ref[0]]
        is_view = node.op.alias and node.op.effect is not Effect.READ and node.inputs
        if is_view and self.part.buffers.storage[node.name] is not Storage.BUFFER:
            return self.memory_of(node.inputs[node.op.aliased])
        return ref

    def check(self):
        spans = sorted((self.plan.offsets[ref], self.plan.sizes[ref], ref) for ref in self.users)
        for i, (start, nbytes, one) in enumerate(spans):
            assert nbytes >= nbytes_of(self.part.subgraph.spec(one))
            assert start % GRAIN == 0
            assert start + nbytes <= self.plan.nbytes
            for other_start, other_nbytes, other in spans[i + 1 :]:
                if other_start >= start + nbytes:
                    break
                if other_nbytes:
                    first, second = sorted((one, other), key=lambda ref: self.position[ref[0]])
                    assert self.is_over(first, second), f"{first} and {second}"

    def is_over(self, first, second):
        """Whether no use of ``first`` can meet that of ``second``, which is written later."""
        writer, last = second[0], self.position[self.users[first][-1]]
        if first in self.kept or self.position[writer] < last:
            return False
        if self.position[writer] == last and not self.may_overwrite(self.nodes[writer], first, second):
            return False
        rest = [user for user in self.users[first] if user != writer]
        return self.part.schedule.count == 1 or all(
            self.part.schedule.happens_before(user, writer) for user in rest
        )

    def may_overwrite(self, writer, source, result):
        """Whether ``writer``, the last to read ``source``, may put its result there, element by element."""
        spec = self.part.subgraph.spec
        read = [ref for ref in writer.inputs if self.memory_of(ref) == source]
        return (
            writer.op.elementwise
            and self.plan.offsets[source] == self.plan.offsets[result]
            and spec(source) == spec(result)
            and bool(read)
            and all(map(self.is_in_order, read))
        )

    def is_in_order(self, ref):
        """Whether a view has its buffer's elements in their places."""
        if ref in self.users:
            return True
        node, spec = self.nodes[ref[0]], self.part.subgraph.spec
        is_same = node.op.name in ORDER_KEEPING and spec(ref) == spec(node.inputs[0])
        return is_same and self.is_in_order(node.inputs[0])


def partitions_of(session):
    plans = [plan for request in session._requests.values() for plan in request.plans.values()]
    return [part for plan in plans for part in plan.partitions.values()]


def compiled(build, device, count=0):
    """The partitions of a net's initializers and of its training step."""
    config = tf.ConfigProto(
        device_count={"NULL": 1}, inter_op_parallelism_threads=count, allow_soft_placement=True
    )
    with tf.device(device):
        step = build()
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            session.run(step.fetches, step.feed)
            return partitions_of(session)


@pytest.fixture
def spread(monkeypatch):
    """Every independent node on a stream of its own choice, whether it pays or not."""
    monkeypatch.setattr(streams, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(streams, "MIN_GAIN", -1e9)


@pytest.mark.parametrize(
    "net, device",
    [
        *((net, device) for net in NETS if net != DEEP for device in ("/device:NULL:0", "/cpu:0")),
        *(pytest.param(DEEP, device, marks=pytest.mark.slow) for device in ("/device:NULL:0", "/cpu:0")),
    ],
)
def test_a_training_step_takes_little_more_than_its_largest_moment(net, device):
    found = compiled(NETS[net], device)
    for part in found:
        InUse(part).check()
    plan = max((part.buffers.memory for part in found), key=lambda plan: plan.lower_bound)
    assert plan.lower_bound > 100_000
    assert plan.nbytes <= MAX_PLAN_RATIO * plan.lower_bound


@pytest.mark.parametrize("device", ["/device:NULL:0", "/cpu:0"])
def test_a_reshape_that_copies_holds_neither_its_source_nor_others(device):
    """Ten transposes, each of which is copied: at most one of them and its copy are in use."""

    def turns():
        value, weights = tf.Variable(tf.ones([64, 96])), tf.Variable(tf.ones([128, 192]))
        for _ in range(10):
            turned = tf.transpose(tf.matmul(value, value, transpose_b=True))
            value = tf.matmul(tf.reshape(turned, [32, 128]), weights)
            value = tf.reshape(value, [64, 96])
        return nets.Step([tf.reduce_sum(value)], {})

    part = compiled(turns, device)[-1]
    InUse(part).check()
    storage = [part.buffers.storage[node.name] for node in part.subgraph if node.op.name == "Reshape"]
    assert storage.count(Storage.BUFFER) == 10
    assert part.buffers.memory.lower_bound == 64 * 4 * (64 + 96)


@pytest.mark.parametrize("run", [measure, measure_unplanned])
def test_a_recorded_training_step_reserves_little_more_than_lives(run):
    assert 1.0 <= run(lambda: digits_cnn(None), "/cpu:0").reserved <= MAX_RATIO


@pytest.mark.parametrize("net", [name for name in NETS if name != DEEP])
def test_a_training_step_on_several_streams(spread, net):
    found = compiled(NETS[net], "/device:NULL:0", count=3)
    assert any(part.schedule.count == 3 for part in found)
    for part in found:
        InUse(part).check()


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 75), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("count, cpus", [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_random_programs(spread, count, cpus, seeds):
    used = 0
    for seed in seeds:
        program = RandomProgram(seed, devices=cpus)
        config = tf.ConfigProto(device_count={"CPU": cpus}, inter_op_parallelism_threads=count)
        with tf.Session(graph=program.graph, config=config) as session:
            session.run(program.initializer)
            session.run((program.fetches, program.targets), program.feeds[0])
            for part in partitions_of(session):
                InUse(part).check()
                used += part.schedule.count == count and len(part.buffers.memory.offsets) > 3
    assert used > 0.6 * len(seeds)
