"""Runs graphs by TensorFlow, with its interpreter: python -m tests.models.run_tensorflow FOLDER NAME...

Each is a case of `tests.models.tensorflow_cases`, of which the values are compared. With ``--turns THREADS``
one is run for as many seconds as each line of the input says, and its time is printed: wall clock, processor.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

LAYOUT = ("strides", "padding", "data_format", "dilations")


def spelled_out(graph: Any) -> Any:
    """The GraphDef without the operations that are TensorFlow.js's alone."""
    found = tf.GraphDef()
    found.library.CopyFrom(graph.library)

    def add(name: str, op: str, inputs: Any, like: Any, *copied: str) -> str:
        node = found.node.add(name=name, op=op, input=inputs)
        for key in ("T", *copied):
            node.attr[key].CopyFrom(like.attr[key])
        return name

    def prelu(name: str, x: str, alpha: str, like: Any) -> None:
        below = add(f"{name}/below", "Relu", [add(f"{name}/neg", "Neg", [x], like)], like)
        scaled = add(f"{name}/scaled", "Mul", [below, alpha], like)
        add(name, "Sub", [add(f"{name}/above", "Relu", [x], like), scaled], like)

    for node in graph.node:
        fused = [each.decode() for each in node.attr["fused_ops"].list.s] if "fused_ops" in node.attr else []
        if node.op == "Prelu":
            prelu(node.name, *node.input, node)
        elif node.op.startswith("FusedDepthwise") or "Prelu" in fused:
            conv = "Conv2D" if node.op == "_FusedConv2D" else "DepthwiseConv2dNative"
            x, rest = add(f"{node.name}/conv", conv, node.input[:2], node, *LAYOUT), list(node.input[2:])
            for i, op in enumerate(fused):
                name = node.name if i == len(fused) - 1 else f"{node.name}/{i}"
                if op == "Prelu":
                    prelu(name, x, rest.pop(0), node)
                else:
                    add(name, op, [x, rest.pop(0)] if op == "BiasAdd" else [x], node)
                x = name
        else:
            found.node.add().CopyFrom(node)
    return found


@contextmanager
def opened_saved_model(folder: str, name: str, threads: int) -> Any:
    """A function that runs the default signature of a SavedModel, as TensorFlow 2 does."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    signature = tf2.saved_model.load(Path(folder, f"{name}.path").read_text()).signatures["serving_default"]
    with np.load(Path(folder, f"{name}.npz"), allow_pickle=True) as given:
        feeds = {key[3:]: tf2.constant(given[key]) for key in given.files}
    yield lambda: {key: value.numpy() for key, value in signature(**feeds).items()}, {}


@contextmanager
def opened(folder: str, name: str, threads: int = 0) -> Any:
    """A function that runs a case, and the values to compare with."""
    graph = tf.GraphDef.FromString(Path(folder, f"{name}.pb").read_bytes())
    with np.load(Path(folder, f"{name}.npz")) as given:
        feeds = {key[3:]: given[key] for key in given.files if key.startswith("in/")}
        wanted = {key[4:]: given[key] for key in given.files if key.startswith("out/")}
    config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tf.import_graph_def(spelled_out(graph), name="")
        run = session.make_callable(list(wanted), list(feeds))
        yield lambda: run(*feeds.values()), wanted


def compare(folder: str, names: list[str]) -> None:
    for name in names:
        with opened(folder, name) as (run, wanted):
            for (key, expected), value in zip(wanted.items(), run(), strict=True):
                np.testing.assert_allclose(expected, value, 1e-3, 1e-4, err_msg=f"{name} {key}")
        print("same", name)


def take_turns(folder: str, name: str, threads: int) -> None:
    is_graph = Path(folder, f"{name}.pb").exists()
    with (opened if is_graph else opened_saved_model)(folder, name, threads) as (run, _):
        for line in sys.stdin:
            count, begin, used = 0, time.perf_counter(), time.process_time()
            while not count or time.perf_counter() < begin + float(line):
                run()
                count += 1
            wall, cpu = time.perf_counter() - begin, time.process_time() - used
            print(wall / count, cpu / count, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--turns":
        take_turns(*sys.argv[3:5], int(sys.argv[2]))
    else:
        compare(sys.argv[1], sys.argv[2:])
