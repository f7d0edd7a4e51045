"""Ratings factorised into user and item embeddings with biases; sparse gradients through gather."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(12)
n_users, n_items, rank = 12, 9, 3
U, V = rng.randn(n_users, rank), rng.randn(n_items, rank)
users, items = [a.ravel() for a in np.meshgrid(range(n_users), range(n_items), indexing="ij")]
ratings = (U[users] * V[items]).sum(1).astype(np.float32)

user = tf.placeholder(tf.int32, shape=[None], name="id_user")
item = tf.placeholder(tf.int32, shape=[None], name="id_item")
rate = tf.placeholder(tf.float32, shape=[None])
with tf.variable_scope("embd"):
    w_user = tf.get_variable("embd_user", initializer=(0.5 * rng.randn(n_users, rank)).astype(np.float32))
    w_item = tf.get_variable("embd_item", initializer=(0.5 * rng.randn(n_items, rank)).astype(np.float32))
    bias_global = tf.get_variable("bias_global", shape=[], initializer=tf.zeros_initializer())
    bias_user = tf.get_variable("bias_user", shape=[n_users], initializer=tf.zeros_initializer())
embd_user = tf.nn.embedding_lookup(w_user, user, name="embedding_user")
embd_item = tf.gather(w_item, item)
infer = tf.reduce_sum(tf.multiply(embd_user, embd_item), 1)
infer = tf.add(tf.add(infer, bias_global), tf.nn.embedding_lookup(bias_user, user), name="svd_inference")
regularizer = tf.add(tf.nn.l2_loss(embd_user), tf.nn.l2_loss(embd_item), name="svd_regularizer")
cost = tf.add(tf.nn.l2_loss(tf.subtract(infer, rate)), tf.multiply(regularizer, tf.constant(0.001)))
grads = tf.gradients(cost, [w_user, bias_user])
print([type(g).__name__ for g in grads], grads[0].values.shape)
train_op = tf.train.AdamOptimizer(0.05).minimize(cost, global_step=tf.Variable(0, trainable=False))

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(60):
        for start in range(0, len(ratings), 27):
            at = slice(start, start + 27)
            sess.run(train_op, {user: users[at], item: items[at], rate: ratings[at]})
        if epoch % 20 == 19:
            p = sess.run(infer, {user: users, item: items})
            print(epoch, "rmse %.3f" % np.sqrt(np.mean((p - ratings) ** 2)))
    sparse = sess.run(grads[0], {user: [3, 3], item: [0, 1], rate: [0.0, 0.0]})
    print(sparse.indices, sparse.values.shape, sparse.dense_shape)
