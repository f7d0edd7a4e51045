"""`SequenceExample` messages as tensors."""

import numpy as np


def results(tf):
    message = tf.train.SequenceExample()
    message.context.feature["id"].int64_list.value.append(7)
    lists = message.feature_lists.feature_list
    for count in (2, 0, 3):
        lists["words"].feature.add().bytes_list.value.extend([b"w"] * count)
        lists["points"].feature.add().float_list.value.extend([count, 1.5])
    text = message.SerializeToString()
    asked = {
        "words": tf.VarLenFeature(tf.string), "none": tf.VarLenFeature(tf.int64),
        "points": tf.FixedLenSequenceFeature([2], tf.float32),
        "more": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    }  # fmt: skip
    context, steps = tf.parse_single_sequence_example(
        text, {"id": tf.FixedLenFeature([], tf.int64), "far": tf.FixedLenFeature([], tf.float32, 2.5)}, asked
    )
    fetches = {f"context_{key}": value for key, value in context.items()}
    for key, value in steps.items():
        if isinstance(value, tf.SparseTensor):
            fetches |= {
                f"{key}_{part}": getattr(value, part) for part in ("indices", "values", "dense_shape")
            }
        else:
            fetches[key] = value
    with tf.Session() as session:
        return {key: np.asarray(value) for key, value in session.run(fetches).items()}
