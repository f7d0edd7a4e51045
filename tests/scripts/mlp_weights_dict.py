"""A multilayer perceptron with dictionaries of weights, Adam, and dropout through a keep_prob placeholder."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

tf.set_random_seed(1)
data = load_digits()
X, T = (data.data / 16.0).astype(np.float32), np.eye(10, dtype=np.float32)[data.target]
rng = np.random.RandomState(1)

n_input, n_hidden_1, n_hidden_2, n_classes = 64, 48, 32, 10
weights = {
    "h1": tf.Variable((0.1 * rng.randn(n_input, n_hidden_1)).astype("float32"), name="h1"),
    "h2": tf.Variable((0.1 * rng.randn(n_hidden_1, n_hidden_2)).astype("float32"), name="h2"),
    "out": tf.Variable((0.1 * rng.randn(n_hidden_2, n_classes)).astype("float32"), name="wout"),
}
biases = {
    "b1": tf.Variable(tf.zeros([n_hidden_1])),
    "b2": tf.Variable(tf.zeros([n_hidden_2])),
    "out": tf.Variable(tf.zeros([n_classes])),
}


def multilayer_perceptron(x, weights, biases, keep_prob):
    layer_1 = tf.nn.relu(tf.add(tf.matmul(x, weights["h1"]), biases["b1"]))
    layer_1 = tf.nn.dropout(layer_1, keep_prob)
    layer_2 = tf.nn.sigmoid(tf.nn.xw_plus_b(layer_1, weights["h2"], biases["b2"]))
    return tf.matmul(layer_2, weights["out"]) + biases["out"]


x = tf.placeholder("float", [None, n_input])
y = tf.placeholder("float", [None, n_classes])
keep_prob = tf.placeholder(tf.float32)
logits = multilayer_perceptron(x, weights, biases, keep_prob)
cost = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(logits=logits, labels=y))
train_op = tf.train.AdamOptimizer(learning_rate=0.01).minimize(cost)
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1)), "float"))

sess = tf.Session()
sess.run(tf.global_variables_initializer())
for epoch in range(4):
    for i in range(0, 1500, 50):
        sess.run(train_op, {x: X[i : i + 50], y: T[i : i + 50], keep_prob: 1.0})
    print("epoch", epoch, "cost %.4f" % sess.run(cost, {x: X[:1500], y: T[:1500], keep_prob: 1.0}))
acc = sess.run(accuracy, feed_dict={x: X[1500:], y: T[1500:], keep_prob: 1.0})
print("accuracy over 0.85:", acc > 0.85)
noisy = [sess.run(cost, {x: X[:500], y: T[:500], keep_prob: 0.5}) for _ in range(2)]
print("dropout is drawn anew:", noisy[0] != noisy[1])
sess.close()
