"""``serving_script.py ADDRESSES TASK``: of two tasks, the second joins its server and prints how that ended;
the first runs a step on it, and ends when its input does.
"""

import json
import sys

import flowrt as tf

ADDRESSES, TASK = json.loads(sys.argv[1]), int(sys.argv[2])

if __name__ == "__main__":
    server = tf.train.Server({"worker": ADDRESSES}, "worker", TASK)
    if TASK == 1:
        try:
            print("the job has ended", server.join())
        except tf.errors.OpError as error:
            print(error)
    else:
        with tf.device("/job:worker/task:1"):
            there = tf.constant(20)
        with tf.Session(server.target) as session:
            print(session.run(there + 1), flush=True)
            sys.stdin.read()
