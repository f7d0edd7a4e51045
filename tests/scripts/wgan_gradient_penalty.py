"""A WGAN critic with gradient penalty: a gradient of a gradient, plus weight clipping ops."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(14)
w1, w2 = (rng.randn(2, 8) * 0.7).astype(np.float32), (rng.randn(8, 1) * 0.7).astype(np.float32)


def critic(inputs, reuse=False):
    with tf.variable_scope("critic", reuse=reuse):
        h = tf.nn.tanh(tf.layers.dense(inputs, 8, kernel_initializer=tf.constant_initializer(w1)))
        return tf.layers.dense(h, 1, kernel_initializer=tf.constant_initializer(w2))


real = tf.placeholder(tf.float32, [None, 2])
fake = tf.placeholder(tf.float32, [None, 2])
alpha = tf.placeholder(tf.float32, [None, 1])
d_loss = tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(real, reuse=True))
interpolates = real + alpha * (fake - real)
gradients = tf.gradients(critic(interpolates, reuse=True), [interpolates])[0]
slopes = tf.sqrt(tf.reduce_sum(tf.square(gradients), reduction_indices=[1]))
gradient_penalty = tf.reduce_mean((slopes - 1.0) ** 2)
total = d_loss + 10.0 * gradient_penalty
d_vars = tf.trainable_variables("critic")
train = tf.train.AdamOptimizer(1e-2, beta1=0.5, beta2=0.9).minimize(total, var_list=d_vars)
clip = tf.group(*[v.assign(tf.clip_by_value(v, -0.01, 0.01)) for v in d_vars])

feed = {real: rng.randn(32, 2) + 1, fake: rng.randn(32, 2) - 1, alpha: rng.rand(32, 1)}
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(41):
        _, d, gp = sess.run([train, d_loss, gradient_penalty], feed)
        if i % 10 == 0:
            print(i, "%.4f %.4f" % (d, gp))
    sess.run(clip)
    print("%.4f" % max(np.abs(v).max() for v in sess.run(d_vars)))
