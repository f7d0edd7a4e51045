"""Loops without end are ended soon: by a deadline, by `Session.close`, by Ctrl-C; however long an iteration
takes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.program import time_slice
from flowrt.executor.program.time_slice import LONG_S, MAX_ITERATIONS, SHORT_S, TimeSlice
from tests.executor.fused_sessions import ends, plans_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

RUNNING_S = 0.2
"""How long a loop runs before its deadline."""


def powers(v, count=60):
    """Arithmetic of some microseconds."""
    for _ in range(count):
        v = tf.pow(tf.abs(v) + 1.0, 0.3)
    return v


def scalars(limit):
    """One function of machine code, whose iterations take 7 us."""
    return tf.while_loop(lambda v: v > limit, powers, [tf.constant(1.0, tf.float64)])


def small_tensors(limit):
    """Calls of loops, made by machine code."""

    def body(v):
        return [tf.matmul(powers(v, 20), tf.eye(16, dtype=tf.float64)) / 2.0]

    return tf.while_loop(lambda v: v[0, 0] > limit, body, [tf.ones([4, 16], tf.float64)])


def inner(v):
    """A loop that ends within a call: 3.5 ms."""
    return tf.while_loop(lambda i, _: i < 500, lambda i, v: (i + 1, powers(v)), [tf.constant(0), v])[1]


def a_loop_in_a_loop(limit):
    return tf.while_loop(lambda v: v > limit, inner, [tf.constant(1.0, tf.float64)])


def a_loop_in_a_branch(limit):
    def outer(v):
        return tf.cond(v > limit, lambda: inner(v), lambda: v)

    return tf.while_loop(lambda v: v > limit, outer, [tf.constant(1.0, tf.float64)])


def by(*loops):
    return pytest.mark.parametrize("loop", loops, ids=lambda f: f.__name__)


@contextlib.contextmanager
def endless(monkeypatch, loop):
    """A session in which a loop has run, and the function that runs it for ever."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default():
        limit = tf.placeholder(tf.float64, [])
        last = loop(limit)
        with tf.Session() as session:
            session.run(last, {limit: 2.0})
            yield session, lambda **options: session.run(last, {limit: -1.0}, **options)


@by(scalars, small_tensors)
def test_by_a_deadline(monkeypatch, loop):
    options = tf.RunOptions(timeout_in_ms=int(RUNNING_S * 1000))
    with endless(monkeypatch, loop) as (_, run):
        with pytest.raises(tf.errors.DeadlineExceededError):
            run(options=options)


@by(scalars, small_tensors, a_loop_in_a_loop, a_loop_in_a_branch)
def test_by_close(monkeypatch, loop):
    with endless(monkeypatch, loop) as (session, run):
        with ends(session, session.close), pytest.raises(tf.errors.CancelledError):
            run()


@by(scalars, small_tensors)
def test_by_ctrl_c(monkeypatch, ctrl_c, loop):
    with endless(monkeypatch, loop) as (session, run):
        interrupt = functools.partial(os.kill, os.getpid(), signal.SIGINT)
        with ends(session, interrupt), pytest.raises(KeyboardInterrupt):
            run()


@by(scalars, small_tensors)
def test_machine_code_goes_at_a_pace(monkeypatch, loop):
    with endless(monkeypatch, loop) as (session, _):
        ((program,),) = [plan.programs for plan in plans_of(session)]
        (control,) = [s.control for s in program.segments if s.control is not None]
        (((function, _),),) = [segment.calls for segment in control.body]
        assert isinstance(function, TimeSlice)


# --- the pace, on a clock of its own


class Machine:
    """Makes iterations that take ``seconds`` each, at most ``room`` a call; behind each it ``waits``."""

    def __init__(self, monkeypatch, seconds, waits=0.0, room=MAX_ITERATIONS):
        self.seconds, self.waits, self.room = seconds, waits, room
        self.wall = self.own = 0.0
        clocks = SimpleNamespace(perf_counter=lambda: self.wall, thread_time=lambda: self.own)
        monkeypatch.setattr(time_slice, "time", clocks)

    def iterate(self, count):
        count = min(count, self.room)
        self.own += count * self.seconds
        self.wall += count * self.seconds + self.waits
        return count

    def paced(self, first=1000, calls=40):
        """The pace after some calls."""
        found = TimeSlice(self.iterate, lambda: True, first)
        for _ in range(calls):
            found()
        return found


@given(seconds=st.floats(1e-9, 1e-2), slower=st.floats(1, 65))
def test_a_call_takes_neither_long_nor_next_to_nothing(seconds, slower):
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(patch, seconds)
        settled = machine.paced()
        assert settled.count * seconds >= SHORT_S or settled.count == MAX_ITERATIONS
        assert settled.count * seconds <= LONG_S or settled.count == 1
        machine.seconds *= slower
        for _ in range(40):
            settled()
        assert settled.count * machine.seconds <= LONG_S or settled.count == 1


def test_who_waits_for_the_gil_makes_no_shorter_calls(monkeypatch):
    machine = Machine(monkeypatch, 1e-6, waits=0.02)
    assert machine.paced().count == 1000


def test_without_room_calls_do_not_get_longer(monkeypatch):
    machine = Machine(monkeypatch, 1e-9, room=64)
    assert machine.paced(first=64).count == 128


def test_a_loop_that_ends_within_a_call_needs_no_longer_ones(monkeypatch):
    machine = Machine(monkeypatch, 1e-9)
    pace_of_short = TimeSlice(machine.iterate, lambda: False, 1000)
    pace_of_short()
    assert pace_of_short.count == 1000
