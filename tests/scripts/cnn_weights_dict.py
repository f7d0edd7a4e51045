"""A small convolutional net in the style of the convnet tutorials: wrappers, dictionaries, a reshape."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

rng = np.random.RandomState(3)
digits = load_digits()
images = (digits.data / 16).astype(np.float32)
onehot = np.eye(10, dtype=np.float32)[digits.target]


def init(*shape):
    return tf.Variable((rng.randn(*shape) * np.sqrt(2.0 / np.prod(shape[:-1]))).astype(np.float32))


def conv2d(x, W, b, strides=1):
    x = tf.nn.conv2d(x, W, strides=[1, strides, strides, 1], padding="SAME")
    x = tf.nn.bias_add(x, b)
    return tf.nn.relu(x)


def maxpool2d(x, k=2):
    return tf.nn.max_pool(x, ksize=[1, k, k, 1], strides=[1, k, k, 1], padding="SAME")


def conv_net(x, weights, biases, dropout):
    x = tf.reshape(x, shape=[-1, 8, 8, 1])
    conv1 = maxpool2d(conv2d(x, weights["wc1"], biases["bc1"]), k=2)
    conv2 = maxpool2d(conv2d(conv1, weights["wc2"], biases["bc2"]), k=2)
    fc1 = tf.reshape(conv2, [-1, weights["wd1"].get_shape().as_list()[0]])
    fc1 = tf.nn.relu(tf.add(tf.matmul(fc1, weights["wd1"]), biases["bd1"]))
    fc1 = tf.nn.dropout(fc1, dropout)
    return tf.add(tf.matmul(fc1, weights["out"]), biases["out"])


weights = {"wc1": init(3, 3, 1, 8), "wc2": init(3, 3, 8, 12), "wd1": init(2 * 2 * 12, 32), "out": init(32, 10)}
biases = {k: tf.Variable(tf.constant(0.1, shape=[n])) for k, n in dict(bc1=8, bc2=12, bd1=32, out=10).items()}
x = tf.placeholder(tf.float32, [None, 64])
y = tf.placeholder(tf.float32, [None, 10])
keep_prob = tf.placeholder(tf.float32)
logits = conv_net(x, weights, biases, keep_prob)
prediction = tf.nn.softmax(logits)
loss_op = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=y))
train_op = tf.train.AdamOptimizer(learning_rate=0.003).minimize(loss_op)
correct_pred = tf.equal(tf.argmax(prediction, 1), tf.argmax(y, 1))
accuracy = tf.reduce_mean(tf.cast(correct_pred, tf.float32))

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(1, 61):
        at = (step * 24) % 1400
        feed = {x: images[at : at + 24], y: onehot[at : at + 24], keep_prob: 1.0}
        sess.run(train_op, feed_dict=feed)
        if step % 20 == 0:
            loss, _ = sess.run([loss_op, accuracy], feed_dict=feed)
            print("Step " + str(step) + ", Minibatch Loss= {:.4f}".format(loss))
    test = sess.run(accuracy, feed_dict={x: images[1450:], y: onehot[1450:], keep_prob: 1.0})
    print("Testing Accuracy over 0.75:", test > 0.75)
