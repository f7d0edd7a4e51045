"""Linear regression in a MonitoredTrainingSession; the second loop goes on where the first one stopped."""

import tempfile

import numpy as np

import flowrt as tf

train_dir = tempfile.mkdtemp()
rng = np.random.RandomState(0)
features = rng.rand(64, 3).astype(np.float32)
labels = features.dot(np.array([[1.0], [-2.0], [3.0]], np.float32)) + 0.5


class LossHistory(tf.train.SessionRunHook):
    """Keeps every tenth loss."""

    def __init__(self, loss):
        self._loss = loss
        self.losses = []
        self._step = 0

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        if self._step % 10 == 0:
            self.losses.append(float(run_values.results))
        self._step += 1


class SaveListener(tf.train.CheckpointSaverListener):
    def after_save(self, session, global_step_value):
        print("saved step", global_step_value)


def train(last_step):
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(16)
        iterator = tf.data.make_initializable_iterator(dataset)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        x, y = iterator.get_next()
        global_step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
        tf.summary.scalar("loss", loss)
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, global_step=global_step)

        history = LossHistory(loss)
        final = tf.train.FinalOpsHook([w, b])
        scaffold = tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=2))
        saver_hook = tf.train.CheckpointSaverHook(
            train_dir, save_steps=15, scaffold=scaffold, listeners=[SaveListener()]
        )
        hooks = [
            tf.train.StopAtStepHook(last_step=last_step),
            tf.train.NanTensorHook(loss),
            history,
            final,
            saver_hook,
        ]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=train_dir,
            scaffold=scaffold,
            hooks=hooks,
            save_checkpoint_secs=None,
            save_summaries_steps=10,
        ) as sess:
            while not sess.should_stop():
                sess.run(train_op)
        print("losses", np.round(history.losses, 4))
        print("w", final.final_ops_values[0].ravel(), "b", final.final_ops_values[1])


train(20)
train(45)
checkpoint = tf.train.latest_checkpoint(train_dir)
print(checkpoint.split("/")[-1], tf.train.load_variable(train_dir, "global_step"))
tags = set()
for path in tf.gfile.Glob(train_dir + "/events*"):
    for event in tf.train.summary_iterator(path):
        tags.update(value.tag for value in event.summary.value)
print(sorted(tags))

with tf.Graph().as_default():
    v = tf.get_variable("v", [], initializer=tf.ones_initializer())
    double = tf.assign(v, v * 2)
    with tf.train.SingularMonitoredSession() as sess:
        print([float(sess.run(double)) for _ in range(3)])
    session_creator = tf.train.ChiefSessionCreator(scaffold=tf.train.Scaffold())
    with tf.train.MonitoredSession(session_creator=session_creator) as sess:

        def step_fn(step_context):
            value = float(step_context.run_with_hooks(double))
            if value > 4:
                step_context.request_stop()
            return value

        while not sess.should_stop():
            print("step", sess.run_step_fn(step_fn))
    print("left the loop")

with tf.Graph().as_default():
    try:
        with tf.train.MonitoredTrainingSession(hooks=[tf.train.NanTensorHook(tf.log(-1.0))]) as sess:
            sess.run(tf.constant(1.0))
    except RuntimeError as e:
        print("frozen:", "finalized" in str(e))
with tf.Graph().as_default():
    nan = tf.log(-1.0)
    try:
        with tf.train.MonitoredTrainingSession(hooks=[tf.train.NanTensorHook(nan)]) as sess:
            sess.run(nan)
    except tf.train.NanLossDuringTrainingError as e:
        print(e)
