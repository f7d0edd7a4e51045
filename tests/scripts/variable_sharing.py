"""get_variable, scopes, reuse, make_template, custom getters, initializers and regularisers by scope."""

import numpy as np

import flowrt as tf


def linear(x, n, name="linear"):
    with tf.variable_scope(name):
        w = tf.get_variable("w", [x.get_shape()[-1], n], initializer=tf.constant_initializer(0.5))
        b = tf.get_variable("b", [n], initializer=tf.zeros_initializer)
        return tf.matmul(x, w) + b


x = tf.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
with tf.variable_scope("tower") as scope:
    a = linear(x, 2)
    scope.reuse_variables()
    b = linear(x, 2)
with tf.variable_scope(scope, reuse=True):
    c = linear(2 * x, 2)
try:
    with tf.variable_scope("tower"):
        linear(x, 2)
except ValueError:
    print("ValueError: it exists")
try:
    with tf.variable_scope("other", reuse=True):
        linear(x, 2)
except ValueError:
    print("ValueError: it does not exist")

with tf.variable_scope("reg", regularizer=lambda w: 0.1 * tf.nn.l2_loss(w), initializer=tf.ones_initializer()):
    k = tf.get_variable("kernel", [4])
    with tf.variable_scope("inner"):
        q = tf.get_variable("q", [2], regularizer=tf.no_regularizer)
reg = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
total = tf.add_n(reg) if reg else tf.constant(0.0)

scale = tf.make_template("scale", lambda v: v * tf.get_variable("s", initializer=3.0))
with tf.variable_scope(None, default_name="block"):
    pass
with tf.variable_scope(None, default_name="block") as second:
    print(second.name, tf.get_variable_scope().name, tf.get_default_graph().get_name_scope())

print([v.name for v in tf.global_variables()], a.name, b.op.name)
with tf.Session() as sess:
    s1, s2 = scale(tf.constant(1.0)), scale(tf.constant(2.0))
    sess.run(tf.global_variables_initializer())
    print(sess.run(a).tolist(), np.allclose(*sess.run([a, b])), sess.run(c).tolist())
    print(sess.run([total, s1, s2]), sess.run(tf.report_uninitialized_variables()))
    print([v.op.name for v in tf.trainable_variables("reg/inner")], len(tf.global_variables("scale")))
