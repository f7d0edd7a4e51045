"""Scaled dot-product attention with a causal mask, layer normalisation and position encodings, built from parts."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(15)
batch, length, depth, heads = 2, 5, 8, 2


def init(*shape):
    return tf.constant_initializer((rng.randn(*shape) / np.sqrt(shape[0])).astype(np.float32))


def layer_norm(x, scope, epsilon=1e-6):
    with tf.variable_scope(scope):
        scale = tf.get_variable("scale", [depth], initializer=tf.ones_initializer())
        offset = tf.get_variable("offset", [depth], initializer=tf.zeros_initializer())
        mean, variance = tf.nn.moments(x, axes=[-1], keep_dims=True)
        return (x - mean) * tf.rsqrt(variance + epsilon) * scale + offset


def positions(n, d):
    angle = tf.expand_dims(tf.to_float(tf.range(n)), 1) / tf.pow(10000.0, tf.to_float(tf.range(0, d, 2)) / d)
    return tf.reshape(tf.stack([tf.sin(angle), tf.cos(angle)], axis=2), [n, d])


def split_heads(x):
    return tf.transpose(tf.reshape(x, [batch, length, heads, depth // heads]), [0, 2, 1, 3])


ids = tf.placeholder(tf.int32, [batch, length])
table = tf.get_variable("table", [11, depth], initializer=init(11, depth))
x = tf.nn.embedding_lookup(table, ids) * depth**0.5 + positions(length, depth)[tf.newaxis]
with tf.variable_scope("attention"):
    q, k, v = (
        split_heads(tf.layers.dense(x, depth, use_bias=False, name=n, kernel_initializer=init(depth, depth)))
        for n in "qkv"
    )
    logits = tf.matmul(q, k, transpose_b=True) / (depth // heads) ** 0.5
    mask = tf.matrix_band_part(tf.ones([length, length]), -1, 0)
    weights = tf.nn.softmax(logits * mask - 1e9 * (1.0 - mask))
    context = tf.reshape(tf.transpose(tf.einsum("bhqk,bhkd->bhqd", weights, v), [0, 2, 1, 3]), [batch, length, depth])
x = layer_norm(x + context, "norm1")
x = layer_norm(x + tf.layers.dense(tf.nn.relu(x), depth, kernel_initializer=init(depth, depth)), "norm2")
logits = tf.tensordot(x, table, [[2], [1]])
targets = tf.concat([ids[:, 1:], tf.zeros([batch, 1], tf.int32)], 1)
nonpad = tf.to_float(tf.not_equal(targets, 0))
xent = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=targets)
loss = tf.reduce_sum(xent * nonpad) / tf.reduce_sum(nonpad)
step = tf.train.AdamOptimizer(0.01, beta2=0.98).minimize(loss)

feed = {ids: [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]}
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    print(np.round(sess.run(weights, feed)[0, 0], 3).tolist())
    for i in range(31):
        _, value = sess.run([step, loss], feed)
        if i % 10 == 0:
            print(i, "%.4f" % value)
    print(logits.shape.as_list(), sum(int(np.prod(v.shape.as_list())) for v in tf.trainable_variables()))
