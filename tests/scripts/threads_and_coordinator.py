"""Several threads train with one session; a Coordinator stops them and reports the first error."""

import threading

import numpy as np

import flowrt as tf

v = tf.Variable(np.zeros(4, np.float32))
x = tf.placeholder(tf.float32, [4])
update = tf.assign_add(v, x, use_locking=True)
sess = tf.Session()
sess.run(tf.global_variables_initializer())
coord = tf.train.Coordinator()


def worker(n):
    try:
        for _ in range(25):
            if coord.should_stop():
                break
            sess.run(update, {x: np.full(4, n, np.float32)})
    except Exception as e:
        coord.request_stop(e)


threads = [threading.Thread(target=worker, args=(n,)) for n in (1, 2, 3)]
for t in threads:
    t.start()
coord.join(threads)
print(sess.run(v))
runners = tf.train.start_queue_runners(sess=sess, coord=coord)
print(len(runners), coord.should_stop())
options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
run_metadata = tf.RunMetadata()
sess.run(update, {x: np.ones(4)}, options=options, run_metadata=run_metadata)
print("traced devices:", len(run_metadata.step_stats.dev_stats) > 0)
sess.close()
