"""Ops for tests of streams: one that takes time without using the CPU, one that ends only beside another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowrt.graph import op_def
from flowrt.graph.op_def import LINEAR, NONDIFFERENTIABLE, OpDef, define_op, sample

MEETING = threading.Barrier(2)


def _sleep(xp, x, seconds):
    time.sleep(seconds)
    return x + 0


def _meet(xp, x, seconds):
    MEETING.wait(timeout=200)
    return x + 0


@contextmanager
def _defined(name: str, kernel) -> Iterator[OpDef]:
    """An op of one float that "takes" its attribute ``seconds``, which is gone at the end."""
    op = define_op(
        name,
        "x: float32 -> float32",
        attrs="seconds: float",
        shape=lambda s: [s.shapes[0]],
        kernel=kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=LINEAR,
        samples=lambda rng: [sample(rng.random(2), seconds=0.0)],
        doc="Takes time.",
    )
    try:
        yield op
    finally:
        del op_def._registry[name]


def sleep_op():
    """``op(x, seconds=)``: sleeps, then gives ``x``."""
    return _defined("SleepForTest", _sleep)


def meet_op():
    """``op(x, seconds=)``: waits until two calls are under way at once, then gives ``x``."""
    return _defined("MeetForTest", _meet)
