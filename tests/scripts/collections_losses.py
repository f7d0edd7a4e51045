"""tf.losses with weights and regularisers collected into the total loss; metrics over several batches."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(9)
x = rng.randn(8, 3).astype(np.float32)
onehot = np.eye(3, dtype=np.float32)[rng.randint(0, 3, 8)]


def l2(scale):
    return lambda w: scale * tf.nn.l2_loss(w)


with tf.variable_scope("model"):
    k = tf.constant_initializer(rng.randn(3, 3))
    logits = tf.layers.dense(tf.constant(x), 3, kernel_initializer=k, kernel_regularizer=l2(0.01))
xent = tf.losses.softmax_cross_entropy(onehot, logits, weights=2.0, label_smoothing=0.1)
sparse = tf.losses.sparse_softmax_cross_entropy(onehot.argmax(1), logits)
mse = tf.losses.mean_squared_error(onehot, tf.nn.softmax(logits), weights=np.arange(8.0)[:, None])
absolute = tf.losses.absolute_difference(onehot, logits, reduction=tf.losses.Reduction.SUM)
hinge = tf.losses.hinge_loss(onehot, logits)
log_loss = tf.losses.log_loss(onehot, tf.sigmoid(logits))
cosine = tf.losses.cosine_distance(tf.nn.l2_normalize(onehot, 1), tf.nn.l2_normalize(logits, 1), axis=1)
total = tf.losses.get_total_loss()
reg = tf.losses.get_regularization_loss()
values = tf.placeholder(tf.float32, [None])
mean, update_mean = tf.metrics.mean(values)
labels = tf.placeholder(tf.int64, [None])
auc_like, update_precision = tf.metrics.precision(labels, values > 0)
recall, update_recall = tf.metrics.recall(labels, values > 0)
rmse, update_rmse = tf.metrics.root_mean_squared_error(tf.to_float(labels), values)
weights = tf.losses.compute_weighted_loss(tf.constant([1.0, 2.0, 4.0]), [1.0, 0.0, 1.0])

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(tf.local_variables_initializer())
    for t in (xent, sparse, mse, absolute, hinge, log_loss, cosine, total, reg, weights):
        print("%.5f" % sess.run(t))
    for batch in ([1.0, -2.0], [3.0, 4.0]):
        sess.run([update_mean, update_precision, update_recall, update_rmse], {values: batch, labels: [1, 1]})
    print(["%.4f" % v for v in sess.run([mean, auc_like, recall, rmse])])
    print(len(tf.losses.get_losses()), len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)))
