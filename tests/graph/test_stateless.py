"""Stateless random ops against numbers that TensorFlow 1.15 and 2.21 drew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.protos import graph_pb2

SEED = [-3, 2**40]
DRAWN = {
        ("uniform", "float16"): [0.4395, 0.9717, 0.573, 0.927, 0.124, 0.711, 0.2031],
        ("uniform", "float32"): [0.32622552, 0.1370815, 0.093453765, 0.009512544, 0.7900542, 0.88631725,
        0.1911869],
        ("uniform", "float64"): [0.609805040316808, 0.7476304657934467, 0.32043400199397887,
        0.5294954628483293, 0.27512523293027424, 0.2867365737916745, 0.0939962243664878],
        ("normal", "bfloat16"): [1.1328125, 0.9765625, 0.1298828125, 2.171875, -0.44921875, 0.51953125,
        0.443359375],
        ("normal", "float32"): [1.135596, 0.97506636, 0.13005693, 2.1733987, -0.4497252, 0.51870483,
        0.44401667],
        ("normal", "float64"): [-0.9944911773072073, -0.014807300007557188, -0.2780016745687902,
        -1.4828597238514523, 1.563958525197221, -0.3675479784544899, -1.7550167174923395],
        ("truncated_normal", "float32"): [1.135596, 0.97506636, 0.13005693, -0.4497252, 0.31292218,
        -0.28151757, 0.2304161],
        ("truncated_normal", "float64"): [-0.9944911773072073, -0.014807300007557188, 0.7270441955997637,
        0.3855545477822938, 1.4710077765644205, -0.32221961307573865, -0.5901719725525192],
        ("uniform", "int32"): [849985979, 1846643678, 1191966276, 1560360878, 1558519930, 1735488209,
        135821513],
}  # fmt: skip


def draw(name: str, dtype: str, shape: Any) -> np.ndarray[Any, Any]:
    bounds = {"minval": -7, "maxval": 2**31 - 9} if dtype == "int32" else {}
    with tf.Graph().as_default(), tf.Session() as session:
        drawn = getattr(tf.random, f"stateless_{name}")(shape, SEED, dtype=dtype, **bounds)
        return np.asarray(session.run(drawn))


@pytest.mark.parametrize(("name", "dtype"), DRAWN, ids=str)
def test_numbers_are_tensorflows(name: str, dtype: str) -> None:
    assert draw(name, dtype, [7]) == pytest.approx(DRAWN[name, dtype], rel=3e-7)


def test_a_long_draw_begins_with_the_short_one() -> None:
    for name in ("uniform", "truncated_normal"):
        long = draw(name, "float32", [3, 30_001])
        assert (long.ravel()[:7] == draw(name, "float32", [7])).all()
        assert len(np.unique(long)) > 89_000  # no part is drawn twice


def test_truncated_normals_are_within_two() -> None:
    drawn = draw("truncated_normal", "float64", [20_001])
    assert 1.99 < np.abs(drawn).max() < 2
    assert abs(drawn.std() - 0.8796) < 0.02


def test_classes_follow_their_probabilities() -> None:
    logits = np.log([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]] + np.float64(1e-300))
    logits[1, 1] = -np.inf
    with tf.Graph().as_default(), tf.Session() as session:
        drawn = session.run(tf.random.stateless_categorical(logits, 9999, SEED))
    assert np.bincount(drawn[0]) / 9999 == pytest.approx([0.1, 0.2, 0.7], abs=0.02)
    assert not drawn[1].any()


V2 = """
    node { name: "seed" op: "Placeholder" attr { key: "dtype" value { type: DT_INT64 } } }
    node { name: "shape" op: "Placeholder" attr { key: "dtype" value { type: DT_INT32 } } }
    node { name: "words" op: "StatelessRandomGetKeyCounter" input: "seed"
           attr { key: "Tseed" value { type: DT_INT64 } } }
    node { name: "alg" op: "StatelessRandomGetAlg" }
    node { name: "drawn" op: "StatelessRandomNormalV2"
           input: "shape" input: "words" input: "words:1" input: "alg"
           attr { key: "dtype" value { type: DT_FLOAT } } attr { key: "Tshape" value { type: DT_INT32 } } }
"""


def test_ops_of_tensorflow_2_draw_the_same() -> None:
    graph_def = text_format.Parse(V2, graph_pb2.GraphDef())
    with tf.Graph().as_default(), tf.Session() as session:
        (drawn,) = tf.import_graph_def(graph_def, return_elements=["drawn:0"], name="")
        found = session.run(drawn, {"seed:0": SEED, "shape:0": [7]})
    assert found.tolist() == draw("normal", "float32", [7]).tolist()


def test_bad_seeds_and_bounds_are_refused() -> None:
    seed = tf.placeholder(tf.int64)
    drawn = tf.random.stateless_normal([2], seed)
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError, match=r"seed: expected two integers; got shape \[3\]"):
            session.run(drawn, {seed: [1, 2, 3]})
        with pytest.raises(InvalidArgumentError, match="expected minval < maxval; got minval 3, maxval 3"):
            session.run(tf.random.stateless_uniform([2], [1, 2], 3, 3, tf.int32))
    with pytest.raises(InvalidArgumentError, match="expected maxval, as dtype is int32; got None"):
        tf.random.stateless_uniform([2], [1, 2], dtype=tf.int32)
