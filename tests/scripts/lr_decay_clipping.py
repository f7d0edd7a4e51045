"""Exponential and piecewise decay with global_step, and gradients clipped by global norm."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(8)
A = rng.randn(20, 5).astype(np.float32)
target = A.dot(np.arange(5, dtype=np.float32)[:, None])

global_step = tf.train.get_or_create_global_step()
starter_learning_rate = 0.1
learning_rate = tf.train.exponential_decay(starter_learning_rate, global_step, 10, 0.96, staircase=True)
boundaries = [5, 15]
piecewise = tf.train.piecewise_constant(global_step, boundaries, [1.0, 0.5, 0.1])
poly = tf.train.polynomial_decay(0.1, global_step, 40, end_learning_rate=0.01, power=2.0)
cosine = tf.train.cosine_decay(0.1, global_step, 40)
inverse = tf.train.inverse_time_decay(0.1, global_step, 5, 0.5)

w = tf.get_variable("w", initializer=np.zeros((5, 1), np.float32))
loss = tf.reduce_mean(tf.squared_difference(tf.matmul(A, w), target))
tvars = tf.trainable_variables()
grads, norm = tf.clip_by_global_norm(tf.gradients(loss, tvars), 5.0)
optimizer = tf.train.GradientDescentOptimizer(learning_rate)
train_op = optimizer.apply_gradients(zip(grads, tvars), global_step=global_step)

capped = [(tf.clip_by_value(g, -1.0, 1.0), v) for g, v in tf.train.AdamOptimizer(0.1).compute_gradients(loss)]

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(31):
        _, step, n = sess.run([train_op, global_step, norm])
        if i % 10 == 0:
            row = sess.run([learning_rate, piecewise, poly, cosine, inverse, loss])
            print(i, " ".join("%.5f" % v for v in row))
    print("%.4f" % n, np.round(sess.run(w).ravel(), 3))
    print(np.round(sess.run(capped[0][0]).ravel(), 3), capped[0][1].name)
