"""Nearest neighbour by L1 distance, one test digit a step."""

import numpy as np
from sklearn.datasets import load_digits

import flowrt as tf

d = load_digits()
Xtr, Ytr, Xte, Yte = d.data[:1000], d.target[:1000], d.data[1000:1060], d.target[1000:1060]
xtr = tf.placeholder("float", [None, 64])
xte = tf.placeholder("float", [64])
distance = tf.reduce_sum(tf.abs(tf.add(xtr, tf.negative(xte))), reduction_indices=1)
pred = tf.arg_min(distance, 0)
values, top = tf.nn.top_k(tf.negative(distance), k=3)
hits = 0
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(len(Xte)):
        nn_index = sess.run(pred, feed_dict={xtr: Xtr, xte: Xte[i, :]})
        hits += Ytr[nn_index] == Yte[i]
    print("Accuracy: %.4f" % (hits / len(Xte)))
    v, t = sess.run([values, top], {xtr: Xtr, xte: Xte[0]})
    print(-v, t, t.dtype)
