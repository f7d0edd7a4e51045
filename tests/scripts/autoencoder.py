"""A tied-size autoencoder trained with RMSProp, with name scopes and a get_shape-driven decoder."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

data = (load_digits().data / 16.0).astype(np.float32)
rng = np.random.RandomState(5)
num_hidden_1, num_hidden_2, num_input = 32, 12, 64
X = tf.placeholder("float", [None, num_input])


def glorot(n, m):
    return (rng.randn(n, m) * np.sqrt(2.0 / (n + m))).astype(np.float32)


weights = {
    "encoder_h1": tf.Variable(glorot(num_input, num_hidden_1)),
    "encoder_h2": tf.Variable(glorot(num_hidden_1, num_hidden_2)),
    "decoder_h1": tf.Variable(glorot(num_hidden_2, num_hidden_1)),
    "decoder_h2": tf.Variable(glorot(num_hidden_1, num_input)),
}
biases = {k: tf.Variable(tf.zeros([v.get_shape()[1]])) for k, v in sorted(weights.items())}


def layer(inputs, key):
    with tf.name_scope(key):
        return tf.nn.sigmoid(tf.add(tf.matmul(inputs, weights[key]), biases[key]), name="act")


code = layer(layer(X, "encoder_h1"), "encoder_h2")
y_pred = layer(layer(code, "decoder_h1"), "decoder_h2")
loss = tf.reduce_mean(tf.pow(X - y_pred, 2))
optimizer = tf.train.RMSPropOptimizer(0.01).minimize(loss)
print(code.name, code.get_shape().as_list(), y_pred.op.name)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(1, 91):
        at = (i * 64) % 1700
        _, l = sess.run([optimizer, loss], feed_dict={X: data[at : at + 64]})
        if i % 30 == 0:
            print("Step %i: Minibatch Loss: %.4f" % (i, l))
