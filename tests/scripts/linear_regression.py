"""Fit a line with plain gradient descent; the learning curve goes to a summary scalar."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(0)
learning_rate = 0.01
training_epochs = 200
display_step = 50

train_X = np.asarray([3.3, 4.4, 5.5, 6.71, 6.93, 4.168, 9.779, 6.182, 7.59, 2.167, 7.042, 10.791, 5.313])
train_Y = 0.25 * train_X + 0.8 + 0.05 * rng.randn(*train_X.shape)
n_samples = train_X.shape[0]

X = tf.placeholder("float")
Y = tf.placeholder("float")
W = tf.Variable(rng.randn(), name="weight", dtype=tf.float32)
b = tf.Variable(rng.randn(), name="bias", dtype=tf.float32)

pred = tf.add(tf.multiply(X, W), b)
cost = tf.reduce_sum(tf.pow(pred - Y, 2)) / (2 * n_samples)
optimizer = tf.train.GradientDescentOptimizer(learning_rate).minimize(cost)
init = tf.global_variables_initializer()

with tf.Session() as sess:
    sess.run(init)
    for epoch in range(training_epochs):
        for x, y in zip(train_X, train_Y):
            sess.run(optimizer, feed_dict={X: x, Y: y})
        if (epoch + 1) % display_step == 0:
            c = sess.run(cost, feed_dict={X: train_X, Y: train_Y})
            print("Epoch:", "%04d" % (epoch + 1), "cost=", "{:.6f}".format(c))
    training_cost = sess.run(cost, feed_dict={X: train_X, Y: train_Y})
    print("Training cost=%.6f W=%.5f b=%.5f" % (training_cost, sess.run(W), sess.run(b)))
