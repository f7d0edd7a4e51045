"""Mistakes, one a line, that a type checker must find: nothing here runs.

Each is marked with mypy's code for it. A checker that misses one reports an unused comment: mypy by
``warn_unused_ignores``, pyright by ``reportUnnecessaryTypeIgnoreComment``.
"""

import flowrt as tf
from flowrt.typing import TensorLike

x = tf.placeholder(tf.float32, [None, 3])
w = tf.get_variable("w", [3, 2])
sess = tf.Session()
dataset = tf.data.Dataset.range(3)


def names() -> None:
    tf.redcue_mean(x)  # type: ignore[attr-defined]
    tf.float23  # type: ignore[attr-defined]
    tf.nn.sofmax(x)  # type: ignore[attr-defined]
    tf.train.AdamOptimiser(0.1)  # type: ignore[attr-defined]
    tf.losses.mean_square_error(x, x)  # type: ignore[attr-defined]
    tf.layers.Dens(3)  # type: ignore[attr-defined]
    tf.data.Datset  # type: ignore[attr-defined]
    tf.math.squre(x)  # type: ignore[attr-defined]
    tf.contrib.layer  # type: ignore[attr-defined]
    tf.GraphKeys.GLOBAL_VARIABLE  # type: ignore[attr-defined]
    tf.random_norml([3])  # type: ignore[attr-defined]
    tf.global_variables_initialiser()  # type: ignore[attr-defined]
    x.shap  # type: ignore[attr-defined]
    x.get_shap()  # type: ignore[attr-defined]
    x.numpy()  # type: ignore[attr-defined]
    w.asign(x)  # type: ignore[attr-defined]
    w.initialiser  # type: ignore[attr-defined]
    sess.rum(x)  # type: ignore[attr-defined]
    dataset.bacth(3)  # type: ignore[attr-defined]
    tf.train.AdamOptimizer(0.1).minimise(x)  # type: ignore[attr-defined]
    tf.train.Saver().safe(sess, "model")  # type: ignore[attr-defined]
    tf.Graph().get_operation("w")  # type: ignore[attr-defined]


def arguments() -> None:
    tf.matmul(x)  # type: ignore[call-arg]
    tf.matmul(x, w, transpose=True)  # type: ignore[call-arg]
    tf.reduce_mean(x, axes=1)  # type: ignore[call-arg]
    tf.reduce_sum()  # type: ignore[call-arg]
    tf.nn.relu(x, x, x)  # type: ignore[arg-type, call-arg]
    tf.nn.relu(x, nam="relu")  # type: ignore[call-arg]
    tf.reshape(x)  # type: ignore[call-arg]
    tf.cast(x)  # type: ignore[call-arg]
    tf.layers.dense(x)  # type: ignore[call-arg]
    tf.layers.dense(x, 3, activaton=tf.nn.relu)  # type: ignore[call-arg]
    tf.layers.conv2d(x, 8)  # type: ignore[call-arg]
    tf.losses.log_loss(x)  # type: ignore[call-arg]
    tf.train.GradientDescentOptimizer()  # type: ignore[call-arg]
    tf.train.AdamOptimizer(lr=0.1)  # type: ignore[call-arg]
    tf.train.Saver().save(sess)  # type: ignore[call-arg]
    tf.get_variable()  # type: ignore[call-arg]
    tf.while_loop(lambda i: i < 3, [x])  # type: ignore[arg-type, call-arg]
    dataset.shuffle()  # type: ignore[call-arg]
    tf.placeholder(tf.float32, name="x", shapes=[3])  # type: ignore[call-arg]


def types() -> None:
    tf.matmul(x, "w")  # type: ignore[arg-type]
    tf.layers.dense(x, "32")  # type: ignore[arg-type]
    tf.layers.dense(x, 3, name=3)  # type: ignore[arg-type]
    tf.train.AdamOptimizer("0.001")  # type: ignore[arg-type]
    tf.train.exponential_decay(0.1, "step", 100, 0.9)  # type: ignore[arg-type]
    tf.reduce_mean(x, axis="rows")  # type: ignore[arg-type]
    tf.nn.conv2d(x, w, strides=1, padding="SAEM")  # type: ignore[arg-type]
    tf.nn.max_pool(x, 2, 2, "same")  # type: ignore[arg-type]
    tf.layers.conv2d(x, 8, 3, padding="vald")  # type: ignore[arg-type]
    tf.losses.mean_squared_error(x, x, reduction="average")  # type: ignore[arg-type]
    tf.cast(x, "flaot32")  # type: ignore[arg-type]
    tf.placeholder("float33")  # type: ignore[arg-type]
    tf.get_variable(3)  # type: ignore[arg-type]
    sess.run(3)  # type: ignore[arg-type]
    sess.run(x, feed_dict=[1.0])  # type: ignore[arg-type]
    tf.Session(config={"CPU": 2})  # type: ignore[arg-type]
    dataset.batch("3")  # type: ignore[arg-type]
    x + sess  # type: ignore[operator]
    x - "two"  # type: ignore[arg-type]
    x["first"]  # type: ignore[index]
    tf.group(3)  # type: ignore[arg-type]
    tf.gradients(x, w).shape  # type: ignore[attr-defined]
    tf.train.AdamOptimizer(0.1).minimize(x).shape  # type: ignore[attr-defined]
    tf.argmax(x, 1).op.outputs.dtype  # type: ignore[attr-defined]
    scaled(None)  # type: ignore[arg-type]
    tf.Variable(0.0, trainble=False)  # type: ignore[call-arg]
    tf.Variable(0.0).assign_ad(1.0)  # type: ignore[attr-defined]


def scaled(value: TensorLike) -> tf.Tensor:
    return tf.multiply(value, 2.0)  # type: ignore[arg-type]
