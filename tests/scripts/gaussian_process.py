"""Gaussian-process regression by Cholesky factors, with the marginal likelihood maximised over two parameters."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(16)
X = np.linspace(0, 5, 12)[:, None]
Y = np.sin(X) + 0.05 * rng.randn(12, 1)
Z = np.array([[1.1], [2.7]])

log_length = tf.Variable(0.5, dtype=tf.float64)
log_noise = tf.Variable(-1.0, dtype=tf.float64)
x, y = tf.constant(X), tf.constant(Y)


def kernel(a, b):
    d = tf.reduce_sum((tf.expand_dims(a, 1) - tf.expand_dims(b, 0)) ** 2, 2)
    return tf.exp(-0.5 * d / tf.exp(2 * log_length))


K = kernel(x, x) + tf.exp(2 * log_noise) * tf.eye(12, dtype=tf.float64)
L = tf.cholesky(K)
alpha = tf.cholesky_solve(L, y)
nll = 0.5 * tf.reduce_sum(y * alpha) + tf.reduce_sum(tf.log(tf.diag_part(L))) + 6 * np.log(2 * np.pi)
mean = tf.matmul(kernel(tf.constant(Z), x), alpha)
beta = tf.matrix_triangular_solve(L, tf.transpose(kernel(tf.constant(Z), x)), lower=True)
variance = 1 - tf.reduce_sum(beta**2, 0)
train = tf.train.AdamOptimizer(0.1).minimize(nll)
det = tf.matrix_determinant(K)
inverse = tf.matrix_inverse(K)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    print("%.6f" % sess.run(tf.reduce_sum(tf.matmul(inverse, K) - tf.eye(12, dtype=tf.float64))), sess.run(det) > 0)
    for i in range(41):
        _, value = sess.run([train, nll])
        if i % 20 == 0:
            print(i, "%.4f" % value)
    m, v = sess.run([mean, variance])
    print(m.ravel().round(3), v.round(4))
