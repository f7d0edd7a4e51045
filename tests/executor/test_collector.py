"""The garbage collector stands still while a plan is compiled, and goes on as it was before."""

from __future__ import annotations

import gc

import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.executor.observe import gc_pause
from flowrt.executor.observe.gc_pause import paused_collector


@pytest.fixture(autouse=True)
def collector(monkeypatch):
    """Enabled, without frozen objects: the workers of pytest freeze what they have collected."""
    gc.enable()
    gc.unfreeze()
    monkeypatch.setattr(gc_pause, "_found_frozen", False)
    yield
    gc.enable()
    gc.freeze()


def test_no_collection_begins_in_the_context_and_later_ones_do():
    began: list[str] = []
    gc.callbacks.append(lambda phase, _: began.append(phase))
    try:
        with paused_collector():
            kept = [[] for _ in range(10_000)]
            assert began == []
        kept += [[] for _ in range(10_000)]
        assert began
    finally:
        gc.callbacks.pop()


def test_what_the_context_has_made_is_old_afterwards():
    with paused_collector():
        kept: list[object] = [[]]
    assert any(found is kept for found in gc.get_objects(generation=2))


def test_frozen_objects_stay_frozen():
    gc.freeze()
    try:
        with paused_collector():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_frozen_objects_are_counted_once(monkeypatch):
    gc.freeze()
    try:
        with paused_collector():
            pass
        monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("a million take 50 ms"))
        with paused_collector():
            pass
    finally:
        gc.unfreeze()


def test_the_collector_is_as_it_was_after_a_compile_that_failed():
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [])
        with pytest.raises(InvalidArgumentError):
            session.run(x + 1.0)
    assert gc.isenabled()


def test_who_switched_it_off_finds_it_off():
    gc.disable()
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.constant(1.0) + 1.0)
    assert not gc.isenabled()
