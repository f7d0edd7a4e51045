"""Hessians, a Jacobian row by row, Hessian-vector products and a Newton step."""

import numpy as np

import flowrt as tf

x = tf.Variable(np.array([1.5, -0.5, 2.0], np.float64))
f = tf.reduce_sum(x**4) + x[0] * x[1] - tf.sin(x[2])
(H,) = tf.hessians(f, x)
g = tf.gradients(f, x)[0]
v = tf.constant([1.0, 2.0, 3.0], tf.float64)
hv = tf.gradients(tf.reduce_sum(g * tf.stop_gradient(v)), x)[0]
y = tf.stack([x[0] * x[1], tf.exp(x[2]), tf.reduce_prod(x)])
jacobian = tf.stack([tf.gradients(y_i, x)[0] for y_i in tf.unstack(y)])
newton = tf.assign_sub(x, tf.squeeze(tf.matrix_solve(H, tf.expand_dims(g, 1)), 1))
masked = tf.gradients(f, x, stop_gradients=[x])
nothing = tf.gradients(tf.constant(1.0), x)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    print(np.round(sess.run(H), 4).tolist())
    print(np.round(sess.run(hv), 4), np.allclose(sess.run(hv), sess.run(H).dot([1, 2, 3])))
    print(np.round(sess.run(jacobian), 4).tolist())
    for _ in range(8):
        sess.run(newton)
    print(np.round(sess.run(g), 6) + 0.0, nothing)
