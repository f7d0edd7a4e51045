"""The 'deep MNIST for experts' layout: weight_variable helpers, an interactive session, .run() on the train step."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

tf.set_random_seed(4)
digits = load_digits()
images = digits.data.astype(np.float32) / 16
onehot = np.eye(10)[digits.target]


def weight_variable(shape):
    initial = tf.truncated_normal(shape, stddev=0.1)
    return tf.Variable(initial)


def bias_variable(shape):
    initial = tf.constant(0.1, shape=shape)
    return tf.Variable(initial)


def conv2d(x, W):
    return tf.nn.conv2d(x, W, strides=[1, 1, 1, 1], padding="SAME")


def max_pool_2x2(x):
    return tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


sess = tf.InteractiveSession()
x = tf.placeholder(tf.float32, shape=[None, 64])
y_ = tf.placeholder(tf.float32, shape=[None, 10])
x_image = tf.reshape(x, [-1, 8, 8, 1])
h_conv1 = tf.nn.relu(conv2d(x_image, weight_variable([3, 3, 1, 12])) + bias_variable([12]))
h_pool1 = max_pool_2x2(h_conv1)
h_conv2 = tf.nn.relu(conv2d(h_pool1, weight_variable([3, 3, 12, 16])) + bias_variable([16]))
h_pool2_flat = tf.reshape(max_pool_2x2(h_conv2), [-1, 2 * 2 * 16])
h_fc1 = tf.nn.relu(tf.matmul(h_pool2_flat, weight_variable([64, 64])) + bias_variable([64]))
keep_prob = tf.placeholder(tf.float32)
h_fc1_drop = tf.nn.dropout(h_fc1, keep_prob)
y_conv = tf.matmul(h_fc1_drop, weight_variable([64, 10])) + bias_variable([10])
cross_entropy = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y_, logits=y_conv))
train_step = tf.train.AdamOptimizer(2e-3).minimize(cross_entropy)
correct_prediction = tf.equal(tf.argmax(y_conv, 1), tf.argmax(y_, 1))
accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))
sess.run(tf.global_variables_initializer())
for i in range(150):
    at = (i * 50) % 1450
    batch = (images[at : at + 50], onehot[at : at + 50])
    if i % 50 == 0:
        train_accuracy = accuracy.eval(feed_dict={x: batch[0], y_: batch[1], keep_prob: 1.0})
        print("step %d, training accuracy is a number: %s" % (i, 0 <= train_accuracy <= 1))
    train_step.run(feed_dict={x: batch[0], y_: batch[1], keep_prob: 0.7})
test = accuracy.eval(feed_dict={x: images[1500:], y_: onehot[1500:], keep_prob: 1.0})
print("test accuracy over 0.8:", test > 0.8)
sess.close()
