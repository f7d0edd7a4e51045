"""A variational autoencoder: reparameterised noise, KL term, reuse of the decoder for generation."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

tf.reset_default_graph()
tf.set_random_seed(7)
np.random.seed(7)
data = (load_digits().data / 16.0).astype(np.float32)
latent_dim = 4


def encoder(x):
    with tf.variable_scope("encoder", reuse=tf.AUTO_REUSE):
        h = tf.layers.dense(x, 32, activation=tf.nn.elu, name="fc1")
        return tf.layers.dense(h, latent_dim, name="mu"), tf.layers.dense(h, latent_dim, name="log_var")


def decoder(z):
    with tf.variable_scope("decoder", reuse=tf.AUTO_REUSE):
        h = tf.layers.dense(z, 32, activation=tf.nn.elu, name="fc1")
        return tf.layers.dense(h, 64, name="logits")


x = tf.placeholder(tf.float32, shape=[None, 64])
mu, log_var = encoder(x)
eps = tf.random_normal(tf.shape(log_var), 0, 1, dtype=tf.float32)
z = mu + tf.sqrt(tf.exp(log_var)) * eps
logits = decoder(z)
generated = tf.sigmoid(decoder(tf.random_normal([5, latent_dim])))
reconstruction = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=logits), 1)
kl = -0.5 * tf.reduce_sum(1 + log_var - tf.square(mu) - tf.exp(log_var), 1)
loss = tf.reduce_mean(reconstruction + kl)
train = tf.train.AdamOptimizer(5e-3).minimize(loss)

print([v.name for v in tf.trainable_variables()])
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    first = sess.run(loss, {x: data})
    for epoch in range(12):
        np.random.shuffle(data)
        for i in range(0, 1792, 128):
            sess.run(train, {x: data[i : i + 128]})
    last = sess.run(loss, {x: data})
    print("loss fell by more than a quarter:", last < 0.75 * first)
    sample = sess.run(generated)
    print(sample.shape, bool((sample > 0).all() and (sample < 1).all()))
