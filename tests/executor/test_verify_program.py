"""`verify_program` finds planted faults of what decides the memory of programs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InternalError
from flowrt.executor.analysis import streams
from flowrt.executor.bind import extend_program
from flowrt.executor.bind.verify_program import Memory, Write
from flowrt.executor.buffers import buffer_assignment
from flowrt.executor.buffers.buffer_assignment import _Assigner
from flowrt.executor.buffers.lifetimes import Lifetimes
from flowrt.executor.buffers.memory_plan import ArenaPlanner
from flowrt.executor.program import program, updates
from tests.executor.random_programs import RandomProgram
from tests.executor.test_growth import check_growing

SEEDS = 60


@pytest.fixture(autouse=True)
def _checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_CHECK", "1")


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every independent node on a stream of its own choice, whether it pays or not."""
    monkeypatch.setattr(streams, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(streams, "MIN_GAIN", -1e9)


# --- planted faults


def early_free(patch: pytest.MonkeyPatch) -> None:
    """Buffers are free one node before their last reader."""
    right = Lifetimes.ending_at
    patch.setattr(Lifetimes, "ending_at", lambda self, position: right(self, position + 1))


def overwritten_input(patch: pytest.MonkeyPatch) -> None:
    """Inputs are overwritten though others read them later."""
    patch.setattr(Lifetimes, "are_done", lambda *_: True)
    patch.setattr(_Assigner, "_inheritable", lambda self, node, position: [
        r for r in map(self._lifetimes.root, node.inputs) if r in self._live
    ])  # fmt: skip


def wrong_alias(patch: pytest.MonkeyPatch) -> None:
    """A view is not known as one: its memory is free when its source is."""
    patch.setattr(Lifetimes, "root", lambda self, ref: ref)


def variable_read_in_place(patch: pytest.MonkeyPatch) -> None:
    """A variable that is written later is read where it is."""
    patch.setattr(Lifetimes, "is_overwritten", lambda *_: False)


def one_offset(patch: pytest.MonkeyPatch) -> None:
    """Two live buffers overlap."""
    patch.setattr(ArenaPlanner, "_find", lambda self, size, node: 0 if self._top >= size else None)
    patch.setattr(ArenaPlanner, "_offsets_by_size", lambda self: {b: b.offset for b in self._blocks})


def no_memory_of_functions(patch: pytest.MonkeyPatch) -> None:
    """The memory of a loop's body is free while the loop runs: others' live tensors are there."""
    right = ArenaPlanner.allocate

    def allocate(self: Any, ref: Any, nbytes: int, node: str) -> None:
        right(self, ref, nbytes, node)
        if ref[1] == buffer_assignment.SCRATCH and nbytes:
            self._block_of[ref].offset = 0

    patch.setattr(ArenaPlanner, "allocate", allocate)
    patch.setattr(ArenaPlanner, "_offsets_by_size", lambda self: {b: b.offset for b in self._blocks})


def lost_fetch(patch: pytest.MonkeyPatch) -> None:
    """A fetched tensor is free after its last reader."""
    right = Lifetimes.__init__

    def init(self: Any, subgraph: Any, schedule: Any) -> None:
        right(self, subgraph.replace(fetches=()), schedule)

    patch.setattr(Lifetimes, "__init__", init)


def extension_reads_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """An extended program reads a tensor whose buffer the program has used again."""
    patch.setattr(extend_program, "_is_lasting", lambda *_: True)


def gathered_rows_are_a_variable(patch: pytest.MonkeyPatch) -> None:
    """The rows of a gather count as the variable's own memory."""
    patch.setattr(
        extend_program, "_is_variable", lambda source: source.op.effect is buffer_assignment.Effect.READ
    )


def swapped_instructions(patch: pytest.MonkeyPatch) -> None:
    """A pass exchanges two neighbours."""
    patch.setattr(program, "join_updates", lambda block: [*block[1::-1], *block[2:]])


def lost_instruction(patch: pytest.MonkeyPatch) -> None:
    """A pass drops the last instruction."""
    patch.setattr(program, "join_updates", lambda block: list(block[:-1]) if len(block) > 1 else list(block))


FAULTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    early_free, overwritten_input, wrong_alias, variable_read_in_place, one_offset,
    no_memory_of_functions, lost_fetch, extension_reads_what_is_gone, gathered_rows_are_a_variable,
    swapped_instructions, lost_instruction,
)  # fmt: skip


def run_growing() -> None:
    for seed in range(SEEDS):
        try:
            check_growing(seed)
        except AssertionError:
            pytest.fail(f"seed {seed}: the step gave wrong numbers, and verification found nothing")


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(InternalError, match="program: ") as info:
        run_growing()
    assert "test_growth.py" in str(info.value) or "random_programs.py" in str(info.value)


def test_updates_that_are_joined_though_one_reads_what_another_writes_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    monkeypatch.setattr(updates._Written, "admits", lambda *_: True)
    v, w = tf.Variable(tf.ones([8])), tf.Variable(tf.ones([8]))
    first = v.assign_add(tf.fill([8], 2.0), read_value=False)
    with tf.control_dependencies([first]):
        second = w.assign_add(v.read_value(), read_value=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(InternalError, match=r"the instruction of 'AssignAdd_1' reads"):
            session.run(second)


def test_programs_without_faults_pass() -> None:
    for seed in range(10):
        check_growing(seed)


def run_all() -> None:
    """Steps of random programs on two devices, each with three streams."""
    for seed in range(SEEDS):
        drawn = RandomProgram(seed, devices=2)
        config = tf.ConfigProto(inter_op_parallelism_threads=3, device_count={"CPU": 2})
        with tf.Session(graph=drawn.graph, config=config) as session:
            drawn.run(session)


def test_steps_of_several_streams_and_devices_pass(spread: None) -> None:
    run_all()


def test_memory_that_another_stream_still_uses_is_found(
    spread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArenaPlanner, "_are_over", lambda *_: True)
    monkeypatch.setattr(Lifetimes, "are_done", lambda *_: True)
    with pytest.raises(InternalError, match="does not wait for"):
        run_all()


def test_memory_that_was_sent_and_is_used_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_end(self: Any) -> dict[float, list[Any]]:
        found: dict[float, list[Any]] = {}
        for root, last in self._last.items():
            found.setdefault(last, []).append(root)
        return found

    monkeypatch.setattr(Lifetimes, "_by_end", by_end)
    with pytest.raises(InternalError, match="the receiver of"):
        run_all()


# --- memory


def test_content_is_what_was_written_last() -> None:
    """Against an array with a writer for each byte."""
    rng, memory, expected = np.random.default_rng(0), Memory(), dict[int, Write]()
    for number in range(300):
        start = int(rng.integers(200))
        where = start, start + int(rng.integers(1, 40))
        if rng.random() < 0.5:
            write = Write(None, str(number))
            memory.write(where, write)
            expected |= dict.fromkeys(range(*where), write)
        found = {at: write for begin, end, write in memory.content(where) for at in range(begin, end)}
        assert found == {at: expected[at] for at in range(*where) if at in expected}


def test_adopted_bytes_are_those_that_nothing_wrote() -> None:
    memory, write = Memory(), Write(None, "write")
    memory.write((2, 4), write)
    pieces = [(begin, end, found.what) for begin, end, found in memory.adopt((0, 6), "before")]
    assert pieces == [(0, 2, "before"), (2, 4, "write"), (4, 6, "before")]
