"""The ways in which a session can run a graph: what a test finds in one it has to find in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flowrt as tf
from flowrt.executor.analysis import streams

SEED = 7
STREAMS = 2


def unoptimised() -> tf.ConfigProto:
    options = tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)
    return tf.ConfigProto(graph_options=tf.GraphOptions(optimizer_options=options))


WAYS = ("plain", "unoptimised", "compiled", "streams", "seeded")


def open_session(way: str, monkeypatch: Any) -> tf.Session:
    """A session that runs in that way."""
    monkeypatch.setenv("FLOWRT_JIT", "eager" if way == "compiled" else "off")
    if way == "unoptimised":
        return tf.Session(config=unoptimised())
    if way == "streams":  # spread even where that does not pay
        monkeypatch.setattr(streams, "SWITCH_SECONDS", 0.0)
        monkeypatch.setattr(streams, "MIN_GAIN", -1e9)
        return tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=STREAMS))
    return tf.Session(seed=SEED) if way == "seeded" else tf.Session()


Run = Callable[..., Any]


def runner(way: str, monkeypatch: Any) -> Run:
    """``run(fetches, feeds)``: the values in a new session, in which variables have their first values."""

    def run(fetches: Any, feeds: Mapping[Any, Any] | None = None) -> Any:
        with open_session(way, monkeypatch) as session:
            session.run(tf.global_variables_initializer())
            return session.run(fetches, feeds)

    return run
