"""Batch normalisation with an is_training placeholder and UPDATE_OPS before the train step."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(2)
inputs = (rng.randn(64, 6) * 3 + 5).astype(np.float32)
targets = (inputs[:, :1] > 5).astype(np.float32)

x = tf.placeholder(tf.float32, [None, 6], name="x")
y = tf.placeholder(tf.float32, [None, 1], name="y")
is_training = tf.placeholder(tf.bool, name="is_training")

w1 = tf.constant_initializer(rng.randn(6, 4) * 0.4)
h = tf.layers.dense(x, 4, use_bias=False, kernel_initializer=w1, name="fc1")
h = tf.layers.batch_normalization(h, training=is_training, momentum=0.9, name="bn1")
h = tf.nn.relu(h)
logits = tf.layers.dense(h, 1, kernel_initializer=tf.constant_initializer(rng.randn(4, 1)), name="fc2")
loss = tf.losses.sigmoid_cross_entropy(y, logits)

global_step = tf.Variable(0, name="global_step", trainable=False)
update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
with tf.control_dependencies(update_ops):
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=global_step)

print(len(update_ops), sorted(v.name for v in tf.global_variables() if "Momentum" not in v.name))
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(40):
        sess.run(train_op, {x: inputs, y: targets, is_training: True})
    mean = [v for v in tf.global_variables() if v.name.endswith("moving_mean:0")][0]
    var = [v for v in tf.global_variables() if v.name.endswith("moving_variance:0")][0]
    print(np.round(sess.run(mean), 3), np.round(sess.run(var), 3))
    print("train %.4f" % sess.run(loss, {x: inputs, y: targets, is_training: True}))
    print("test  %.4f" % sess.run(loss, {x: inputs, y: targets, is_training: False}))
    print("global step: %s" % tf.train.global_step(sess, global_step))
