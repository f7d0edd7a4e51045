"""Between-graph replication: each worker builds its own graph, variables are on the parameter servers.

    python between_graph.py --job_name=ps --task_index=0 --ps_hosts=... --worker_hosts=...
    python between_graph.py --job_name=worker --task_index=0 --ps_hosts=... --worker_hosts=...
"""

import numpy as np

import flowrt as tf

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "host:port of each parameter server, with commas")
flags.DEFINE_string("worker_hosts", "", "host:port of each worker, with commas")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "which task of the job")
flags.DEFINE_string("train_dir", None, "where checkpoints go")
flags.DEFINE_integer("train_steps", 200, "the last step, of all workers together")
FLAGS = flags.FLAGS


def main(_):
    cluster = tf.train.ClusterSpec(
        {"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")}
    )
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    is_chief = FLAGS.task_index == 0
    worker_device = "/job:worker/task:%d" % FLAGS.task_index
    rng = np.random.RandomState(FLAGS.task_index)
    true_weights = np.array([[1.0], [-2.0], [3.0]], np.float32)

    with tf.device(tf.train.replica_device_setter(worker_device=worker_device, cluster=cluster)):
        global_step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        y = tf.placeholder(tf.float32, [None, 1], name="y")
        weights = tf.get_variable("weights", [3, 1], initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) + bias - y))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=global_step)

    # A worker sees the parameter servers and itself, so another worker may come and go.
    config = tf.ConfigProto(device_filters=["/job:ps", worker_device])
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
    runs = 0
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=FLAGS.train_dir,
        save_checkpoint_steps=50,
        hooks=hooks,
        config=config,
    ) as sess:
        print("worker %d is ready" % FLAGS.task_index, flush=True)
        while not sess.should_stop():
            features = rng.rand(16, 3).astype(np.float32)
            _, loss_value = sess.run(
                [train_op, loss], feed_dict={x: features, y: features.dot(true_weights) + 0.5}
            )
            runs += 1
            print("run %d loss %.6f" % (runs, loss_value), flush=True)
    print("worker %d made %d runs" % (FLAGS.task_index, runs))


if __name__ == "__main__":
    tf.app.run()
