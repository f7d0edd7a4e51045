"""The parts of `verify_program` do what they say. `tests.executor.test_planted_faults` has the faults that it
finds, `tests.executor.test_verified_programs` programs in which it finds none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import flowrt as tf
from flowrt.executor.verify.memory_contents import Memory, Use, Write
from flowrt.executor.verify.stream_clocks import StreamClocks


def node() -> Any:
    return tf.constant(0.0).op.node


def test_content_is_what_was_written_last() -> None:
    """Against an array with a writer for each byte."""
    rng, memory, expected = np.random.default_rng(0), Memory(), dict[int, Write]()
    user = Use((0, 0), node())
    for number in range(300):
        start = int(rng.integers(200))
        where = start, start + int(rng.integers(1, 40))
        if rng.random() < 0.5:
            write = Write(user.node, str(number))
            memory.write(where, write, user)
            expected |= dict.fromkeys(range(*where), write)
        pieces = memory.at(where)
        found = {at: piece.write for piece in pieces for at in range(piece.start, piece.stop)}
        assert found == {at: expected.get(at) for at in range(*where)}


def test_a_use_of_some_bytes_is_not_one_of_their_neighbours() -> None:
    memory, writer, reader = Memory(), Use((0, 1), node()), Use((0, 2), node())
    memory.write((0, 8), Write(writer.node, "write"), writer)
    for piece in memory.at((2, 4)):
        piece.uses.append(reader)
    assert [[use.moment for use in piece.uses] for piece in memory.at((0, 8))] == [
        [(0, 1)], [(0, 1), (0, 2)], [(0, 1)],
    ]  # fmt: skip


def test_after_two_paths_only_what_both_left_is_known() -> None:
    user, unknown = Use((0, 0), node()), Write(None, "unknown")
    memory = Memory()
    both, one, other = [Write(user.node, name) for name in ("both", "one", "other")]
    memory.write((0, 8), both, user)
    copied = memory.copy()
    memory.write((2, 4), one, user)
    copied.write((3, 6), other, user)
    memory.join(copied, unknown)
    assert [(piece.start, piece.write) for piece in memory.at((0, 8))] == [
        (0, both), (2, unknown), (3, unknown), (4, unknown), (6, both),
    ]  # fmt: skip


def test_a_stream_knows_what_it_has_waited_for_and_what_came_before_that() -> None:
    clocks = StreamClocks()
    first, second = clocks.step(0), clocks.step(1)
    assert clocks.is_over(first, 0)
    assert not clocks.is_over(first, 1)
    clocks.send(0, "event")
    later = clocks.step(0)
    clocks.wait(1, "event")
    assert clocks.is_over(first, 1)
    assert not clocks.is_over(later, 1)
    clocks.wait_for_stream(2, 1)
    assert clocks.is_over(second, 2)
    assert clocks.is_over(first, 2)
    assert not clocks.is_over(later, 2)
