"""Writes `fixtures/ops.npz`, with TensorFlow: python -m tests.saved_model.write_op_cases FILE

For each of `CASES` a GraphDef with the one operation "op" on constants, and its outputs.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from tests.saved_model.op_cases import CASES


def constants(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return tf.constant(value)
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [tf.constant(each) for each in value]
    return value


def defaults(op: str) -> dict[str, Any]:
    """The defaults of the attributes that do not follow from the inputs."""
    definition = op_def_registry.get(op)
    inferred = {n for a in definition.input_arg for n in (a.type_attr, a.number_attr, a.type_list_attr)}
    found = {}
    for attr in definition.attr:
        if attr.name not in inferred and attr.HasField("default_value"):
            field = attr.default_value.WhichOneof("value")
            value = getattr(attr.default_value, field)
            if field == "list":
                filled = [v for _, v in value.ListFields()]
                value = list(filled[0]) if filled else []
            found[attr.name] = value
    return found


def write(path: str) -> None:
    found = {}
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    for number, (op, given) in enumerate(CASES):
        with tf.Graph().as_default() as graph, tf.Session(config=config) as session:
            arguments = defaults(op) | {key: constants(value) for key, value in given.items()}
            op_def_library._apply_op_helper(op, name="op", **arguments)
            outputs = graph.get_operation_by_name("op").outputs
            try:
                values = session.run([t for t in outputs if t.dtype != tf.variant])
            except tf.errors.OpError as error:
                raise SystemExit(f"{number} {op}: {error}") from None
            found[f"{number} {op}"] = np.frombuffer(graph.as_graph_def().SerializeToString(), np.uint8)
            found |= {f"{number} {op}:{i}": np.asarray(value) for i, value in enumerate(values)}
    np.savez_compressed(path, allow_pickle=False, **{k: _text(v) for k, v in found.items()})


def _text(value: Any) -> Any:
    return value.astype("S") if value.dtype == object else value


if __name__ == "__main__":
    tf.disable_v2_behavior()
    write(sys.argv[1])
