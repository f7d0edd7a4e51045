"""Freeze a trained graph, write it, read it back and run it without variables."""

import os
import tempfile

import numpy as np

import flowrt as tf

directory = tempfile.mkdtemp()
x = tf.placeholder(tf.float32, [None, 2], name="input")
w = tf.Variable(np.array([[1.0], [2.0]], np.float32), name="w")
table = tf.Variable(np.arange(6, dtype=np.float32).reshape(3, 2), name="table")
ids = tf.placeholder(tf.int32, [None], name="ids")
rows = tf.nn.embedding_lookup(table, ids)
out = tf.nn.relu(tf.matmul(x + rows, w) - 1.0, name="output")
unused = tf.square(w, name="unused")

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    expected = sess.run(out, {x: [[1, 1], [-3, 0]], ids: [0, 2]})
    frozen = tf.graph_util.convert_variables_to_constants(sess, sess.graph.as_graph_def(), ["output"])
    print("variables left:", any("Var" in node.op for node in frozen.node))
    print("unused left:", any(node.name == "unused" for node in frozen.node))
    tf.train.write_graph(frozen, directory, "frozen.pb", as_text=False)

with tf.Graph().as_default() as graph:
    graph_def = tf.GraphDef()
    with tf.gfile.GFile(os.path.join(directory, "frozen.pb"), "rb") as f:
        graph_def.ParseFromString(f.read())
    (output,) = tf.import_graph_def(graph_def, return_elements=["output:0"], name="net")
    with tf.Session(graph=graph) as sess:
        feed = {"net/input:0": [[1, 1], [-3, 0]], "net/ids:0": [0, 2]}
        print(sess.run(output, feed).tolist(), np.allclose(expected, sess.run(output, feed)))
    print([t.name for op in graph.get_operations() if op.type == "Placeholder" for t in op.outputs])
