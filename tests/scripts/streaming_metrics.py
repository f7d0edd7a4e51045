"""Streaming metrics over batches: auc, confusion counts, mean_iou, accuracy, and their local variables."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(17)
labels = tf.placeholder(tf.int64, [None])
scores = tf.placeholder(tf.float32, [None])
predicted = tf.cast(scores > 0.5, tf.int64)
metrics = {
    "accuracy": tf.metrics.accuracy(labels, predicted),
    "auc": tf.metrics.auc(labels, scores),
    "precision": tf.metrics.precision(labels, predicted),
    "recall": tf.metrics.recall(labels, predicted),
    "tp": tf.metrics.true_positives(labels, predicted),
    "fp": tf.metrics.false_positives(labels, predicted),
    "tn": tf.metrics.true_negatives(labels, predicted),
    "fn": tf.metrics.false_negatives(labels, predicted),
    "iou": tf.metrics.mean_iou(labels, predicted, 2),
    "mae": tf.metrics.mean_absolute_error(tf.to_float(labels), scores),
    "below": tf.metrics.percentage_below(scores, 0.3),
}
values = {k: v[0] for k, v in metrics.items()}
updates = [v[1] for v in metrics.values()]
reset = tf.variables_initializer(tf.get_collection(tf.GraphKeys.LOCAL_VARIABLES))
pairwise = tf.losses.mean_pairwise_squared_error(rng.rand(3, 4).astype("f"), rng.rand(3, 4).astype("f"))

with tf.Session() as sess:
    for epoch in range(2):
        sess.run(reset)
        for _ in range(3):
            y = rng.randint(0, 2, 50)
            p = np.clip(0.35 * y + 0.65 * rng.rand(50), 0, 1)
            sess.run(updates, {labels: y, scores: p})
        found = sess.run(values)
        print(" ".join("%s %.4f" % (k, found[k]) for k in sorted(found)))
    print("%.5f" % sess.run(pairwise))
