"""Softmax regression on the digits, written with the log by hand."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

digits = load_digits()
images = digits.data / 16.0
labels = np.eye(10)[digits.target]
train_x, train_y, test_x, test_y = images[:1400], labels[:1400], images[1400:], labels[1400:]

x = tf.placeholder(tf.float32, [None, 64], name="InputData")
y = tf.placeholder(tf.float32, [None, 10], name="LabelData")
W = tf.Variable(tf.zeros([64, 10]))
b = tf.Variable(tf.zeros([10]))
pred = tf.nn.softmax(tf.matmul(x, W) + b)
cost = tf.reduce_mean(-tf.reduce_sum(y * tf.log(pred), reduction_indices=1))
optimizer = tf.train.GradientDescentOptimizer(0.5).minimize(cost)
correct_prediction = tf.equal(tf.argmax(pred, 1), tf.argmax(y, 1))
accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))

with tf.Session(config=tf.ConfigProto(log_device_placement=False)) as sess:
    sess.run(tf.initialize_all_variables())
    for epoch in range(10):
        avg_cost = 0.0
        total_batch = len(train_x) // 100
        for i in range(total_batch):
            batch_xs, batch_ys = train_x[i * 100 : (i + 1) * 100], train_y[i * 100 : (i + 1) * 100]
            _, c = sess.run([optimizer, cost], feed_dict={x: batch_xs, y: batch_ys})
            avg_cost += c / total_batch
        print("Epoch: %04d cost= %.6f" % (epoch + 1, avg_cost))
    print("Accuracy:", round(float(accuracy.eval({x: test_x, y: test_y})), 4))
