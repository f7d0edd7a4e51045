"""K-means with unsorted_segment_sum, assignments and where, on iris."""

import numpy as np
from sklearn.datasets import load_iris

import flowrt as tf

points_np = load_iris().data.astype(np.float32)
K, N = 3, len(points_np)
points = tf.constant(points_np)
cluster_assignments = tf.Variable(tf.zeros([N], dtype=tf.int64))
centroids = tf.Variable(points_np[[0, 60, 120]])


def bucket_mean(data, bucket_ids, num_buckets):
    total = tf.unsorted_segment_sum(data, bucket_ids, num_buckets)
    count = tf.unsorted_segment_sum(tf.ones_like(data), bucket_ids, num_buckets)
    return total / count


rep_centroids = tf.reshape(tf.tile(centroids, [N, 1]), [N, K, 4])
rep_points = tf.reshape(tf.tile(points, [1, K]), [N, K, 4])
sum_squares = tf.reduce_sum(tf.square(rep_points - rep_centroids), reduction_indices=2)
best_centroids = tf.argmin(sum_squares, 1)
did_assignments_change = tf.reduce_any(tf.not_equal(best_centroids, cluster_assignments))
means = bucket_mean(points, best_centroids, K)
with tf.control_dependencies([did_assignments_change]):
    do_updates = tf.group(centroids.assign(means), cluster_assignments.assign(best_centroids))

sess = tf.Session()
sess.run(tf.initialize_all_variables())
changed, iters = True, 0
while changed and iters < 100:
    iters += 1
    [changed, _] = sess.run([did_assignments_change, do_updates])
centers, assignments = sess.run([centroids, cluster_assignments])
print("Found in {:d} iterations".format(iters))
print(np.round(centers, 3), np.bincount(assignments))
sess.close()
