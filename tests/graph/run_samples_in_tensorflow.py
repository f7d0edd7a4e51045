"""Runs in an environment with TensorFlow, for `tests/graph/test_samples_in_tensorflow.py`:

    PYTHON_WITH_TENSORFLOW tests/graph/run_samples_in_tensorflow.py CALLS RESULTS

CALLS is a pickled dict: for each key, a GraphDef with one operation "op", the values of its placeholders, and
the gradients of its outputs, None for those without. RESULTS gets for each key the outputs and the gradients
of the placeholders, or the text of TensorFlow's error.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def run(message: bytes, feeds: dict[str, Any], weights: list[Any]) -> Any:
    with tf.Graph().as_default() as graph, tf.Session(config=as_written()) as session:
        tf.import_graph_def(tf.GraphDef.FromString(message), name="")
        fed = {graph.get_tensor_by_name(f"{name}:0"): value for name, value in feeds.items()}
        outputs = graph.get_operation_by_name("op").outputs
        values = session.run([t for t in outputs if t.dtype != tf.variant], fed)
        return values, gradients(session, outputs, weights, fed)


def as_written() -> Any:
    """Options with which each operation runs its own kernel."""
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    return config


def gradients(session: Any, outputs: Any, weights: list[Any], fed: dict[Any, Any]) -> dict[str, Any]:
    """Those that TensorFlow has, by placeholder."""
    pairs = [(y, w) for y, w in zip(outputs, weights, strict=True) if w is not None]
    xs = [t for t in fed if t.dtype.is_floating or t.dtype.is_complex]
    if not pairs or not xs:
        return {}
    try:
        found = tf.gradients([y for y, _ in pairs], xs, [tf.constant(w, y.dtype) for y, w in pairs])
    except (LookupError, NotImplementedError):
        return {}
    there = {x.op.name: tf.convert_to_tensor(d) for x, d in zip(xs, found, strict=True) if d is not None}
    return session.run(there, fed)


def main(calls: Path, results: Path) -> None:
    tf.disable_v2_behavior()
    found: dict[str, Any] = {}
    for key, call in pickle.loads(calls.read_bytes()).items():  # noqa: S301 (the test's own file)
        try:
            found[key] = run(*call)
        except Exception as error:  # noqa: BLE001 (the test says which may fail)
            found[key] = f"{type(error).__name__}: {error}"
    results.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(*map(Path, sys.argv[1:]))
