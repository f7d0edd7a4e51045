"""A convolutional classifier of tf.layers under a variable scope, evaluated with reuse=True."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

tf.set_random_seed(11)
digits = load_digits()
images, targets = (digits.images / 16.0).astype(np.float32)[..., None], digits.target.astype(np.int32)


def conv_net(x, n_classes, dropout, reuse, is_training):
    with tf.variable_scope("ConvNet", reuse=reuse):
        conv1 = tf.layers.conv2d(x, 8, 3, activation=tf.nn.relu, padding="same")
        conv1 = tf.layers.max_pooling2d(conv1, 2, 2)
        conv2 = tf.layers.conv2d(conv1, 16, [3, 3], activation=tf.nn.relu, padding="same")
        pooled = tf.layers.average_pooling2d(conv2, pool_size=[2, 2], strides=2)
        fc1 = tf.layers.flatten(pooled)
        fc1 = tf.layers.dense(fc1, 32, activation=tf.nn.relu)
        fc1 = tf.layers.dropout(fc1, rate=dropout, training=is_training)
        return tf.layers.dense(fc1, n_classes)


x = tf.placeholder(tf.float32, [None, 8, 8, 1])
y = tf.placeholder(tf.int32, [None])
logits_train = conv_net(x, 10, 0.2, reuse=False, is_training=True)
logits_test = conv_net(x, 10, 0.2, reuse=True, is_training=False)
pred_classes = tf.argmax(logits_test, axis=1)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits_train, labels=tf.cast(y, tf.int32)))
train_op = tf.train.AdamOptimizer(learning_rate=0.005).minimize(loss, global_step=tf.train.get_global_step())
acc, acc_op = tf.metrics.accuracy(labels=y, predictions=pred_classes)
for v in tf.trainable_variables():
    print(v.name, v.shape)
with tf.Session() as sess:
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    for epoch in range(3):
        for i in range(0, 1440, 32):
            sess.run(train_op, {x: images[i : i + 32], y: targets[i : i + 32]})
    for i in range(1440, 1797, 100):
        sess.run(acc_op, {x: images[i : i + 100], y: targets[i : i + 100]})
    print("accuracy over 0.8:", bool(sess.run(acc) > 0.8))
