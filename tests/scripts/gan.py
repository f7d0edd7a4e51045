"""A GAN with two optimizers, each over the trainable variables of its scope."""

import numpy as np

import flowrt as tf

tf.set_random_seed(0)
rng = np.random.RandomState(0)
noise_dim, batch = 4, 64


def generator(z, reuse=False):
    with tf.variable_scope("Generator", reuse=reuse):
        h = tf.layers.dense(z, 16, activation=tf.nn.leaky_relu)
        return tf.layers.dense(h, 2)


def discriminator(x, reuse=False):
    with tf.variable_scope("Discriminator", reuse=reuse):
        h = tf.layers.dense(x, 16, activation=tf.nn.leaky_relu)
        return tf.layers.dense(h, 1)


z = tf.placeholder(tf.float32, [None, noise_dim], name="noise")
real = tf.placeholder(tf.float32, [None, 2], name="real")
fake = generator(z)
d_real = discriminator(real)
d_fake = discriminator(fake, reuse=True)
d_loss = tf.reduce_mean(
    tf.nn.sigmoid_cross_entropy_with_logits(logits=d_real, labels=tf.ones_like(d_real))
) + tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=d_fake, labels=tf.zeros_like(d_fake)))
g_loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=d_fake, labels=tf.ones_like(d_fake)))

g_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="Generator")
d_vars = [v for v in tf.trainable_variables() if v.name.startswith("Discriminator")]
g_train = tf.train.AdamOptimizer(1e-2, beta1=0.5).minimize(g_loss, var_list=g_vars)
d_train = tf.train.AdamOptimizer(1e-2, beta1=0.5).minimize(d_loss, var_list=d_vars)
print(len(g_vars), len(d_vars), [v.op.name for v in d_vars])

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    frozen = sess.run(g_vars)
    sess.run(d_train, {z: rng.randn(batch, noise_dim), real: rng.randn(batch, 2) + 3})
    print("generator untouched:", all((a == b).all() for a, b in zip(frozen, sess.run(g_vars))))
    for _ in range(400):
        noise, points = rng.randn(batch, noise_dim), 0.3 * rng.randn(batch, 2) + [2.0, -1.0]
        sess.run(d_train, feed_dict={z: noise, real: points})
        sess.run(g_train, feed_dict={z: noise})
    made = sess.run(fake, {z: rng.randn(500, noise_dim)})
    print("near the data:", bool(np.abs(made.mean(0) - [2.0, -1.0]).max() < 1.0))
