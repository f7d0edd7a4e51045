"""What a run costs whose plan is there: few calls of Python, no lock, nothing asked about types."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

import flowrt as tf

LOCKS = (type(threading.Lock()), type(threading.RLock()))


def calls_of(run):
    """Python functions that ``run`` enters, and built-in ones that it calls, when it is called again."""
    run()
    run()
    python, built_in = [], []

    def note(frame, event, function):
        if event == "call":
            python.append(frame.f_code.co_qualname)
        elif event == "c_call":
            built_in.append(function)

    gc.disable()  # it calls what garbage has to be told
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return python[1:], built_in[:-1]  # without `run` itself, and without setprofile


def nothing(x, y, step):
    return step.graph.get_operation_by_name("nothing"), None


def no_fetch(x, y, step):
    return [], None


def one_tensor(x, y, step):
    return y, {x: np.ones(4, np.float32)}


def a_tensor_and_a_step(x, y, step):
    return [y, step], {x: np.ones(4, np.float32)}


def a_dict_with_a_tuple(x, y, step):
    return {"y": (y, y), "step": step}, {x: np.ones(4, np.float32)}


@pytest.mark.parametrize(
    ("asked", "n_functions", "n_locks"),
    [
        (nothing, 10, 0), (no_fetch, 12, 0), (one_tensor, 11, 0), (a_tensor_and_a_step, 20, 2),
        (a_dict_with_a_tuple, 30, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("jit", ["off", "eager"])
def test_a_cached_run(monkeypatch, jit, asked, n_functions, n_locks):
    """The one lock, which is taken and given back, is the variable's that is written."""
    monkeypatch.setenv("FLOWRT_JIT", jit)
    x, v = tf.placeholder(tf.float32, [4]), tf.Variable(tf.zeros([4]))
    y = tf.tanh(x) * 2.0 + 1.0
    step = v.assign_add(y, read_value=False)
    tf.no_op(name="nothing")
    fetches, feeds = asked(x, y, step)
    with tf.Session() as session:
        session.run(v.initializer)
        python, built_in = calls_of(lambda: session.run(fetches, feeds))
    assert len(python) <= n_functions, python
    assert isinstance not in built_in
    assert len([f for f in built_in if isinstance(getattr(f, "__self__", None), LOCKS)]) <= n_locks
