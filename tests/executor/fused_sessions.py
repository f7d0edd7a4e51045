"""Sessions with compiled loops and without, for tests that compare them."""

from __future__ import annotations

import contextlib
import threading
import time

import flowrt as tf
from flowrt.executor.bind import bind_kernel
from flowrt.executor.bind.awaited_loops import AwaitedLoops
from flowrt.executor.kernels import split_call
from flowrt.executor.plan.tiers import RUNS_BEFORE_COMPILING, compile_beside
from tests.contracts.check_transport import wait_until

WAIT_S = 60.0
IN_ITS_MIDST_S = 0.1


def plans_of(session):
    return [plan for request in session._requests.values() for plan in request.plans.values()]


def fused_of(session):
    """The groups of a session's plans, as the names of their members' ops."""
    return [
        [member.op.name for member in node.attrs["group"].members]
        for plan in plans_of(session)
        for part in plan.partitions.values()
        for node in part.subgraph
        if "group" in node.attrs
    ]


def both(monkeypatch, build, feeds, steps=1):
    """The results of a plain session and of one with loops, and the groups of the latter."""
    found = []
    for mode in ("off", "eager"):
        monkeypatch.setenv("FLOWRT_JIT", mode)
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            fetches, feed = build()
            named = {feed[key]: value for key, value in feeds.items()}
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                found.append([session.run(fetches, named) for _ in range(steps)])
                groups = fused_of(session)
    return found[0], found[1], groups


def in_all_modes(monkeypatch, fetches, feeds):
    """The results of one step of the default graph with FLOWRT_JIT off, eager and background, where it is the
    first step with compiled loops; of one that awaits all of these, and makes every call in parts that it
    can; and the groups of the eager plan.
    """
    results = {}
    for mode in ("off", "eager", "background", "awaiting"):
        monkeypatch.setenv("FLOWRT_JIT", "background" if mode == "awaiting" else mode)
        with monkeypatch.context() as patch, tf.Session() as session:
            if mode == "awaiting":
                patch.setattr(AwaitedLoops, "compile", lambda self: iter(()))
                patch.setattr(bind_kernel, "MIN_BYTES", 1)
                patch.setattr(split_call, "num_threads", lambda: 3)
            if mode in ("background", "awaiting"):
                for _ in range(RUNS_BEFORE_COMPILING):
                    session.run(fetches, feeds)
                wait_for_loops()
            results[mode] = session.run(fetches, feeds)
            if mode == "eager":
                groups = fused_of(session)
    return results, groups


def wait_for_loops(nodes=0):
    """Until the thread that compiles plans of so many nodes has done what it was given."""
    is_done = threading.Event()
    compile_beside(is_done.set, nodes)
    assert is_done.wait(WAIT_S)


@contextlib.contextmanager
def ends(session, end):
    """Call ``end()`` in the midst of the step of ``session`` that runs inside, on another thread."""

    def wait_and_end():
        wait_until(lambda: session._running, "a step runs", WAIT_S)
        time.sleep(IN_ITS_MIDST_S)  # it is only just beginning
        end()

    ending = threading.Thread(target=wait_and_end)
    ending.start()
    try:
        yield
    finally:
        ending.join()


def execute(action):
    """Do what an instruction does."""
    function, arguments = action.bound()
    function(*arguments)
