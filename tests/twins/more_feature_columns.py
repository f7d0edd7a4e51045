"""Feature columns of a file's words, and several that share one table."""

import tempfile
from pathlib import Path

import numpy as np


def results(tf):
    path = Path(tempfile.mkdtemp()) / "words.txt"
    path.write_text("a\nb\nc\nd\n")
    fc = tf.feature_column
    filed = fc.categorical_column_with_vocabulary_file("word", str(path), 3)
    wide = fc.categorical_column_with_vocabulary_file("other_word", str(path), num_oov_buckets=2)
    first, second = (fc.categorical_column_with_identity(name, 4) for name in ("first", "second"))
    table = np.linspace(-1, 1, 8).astype(np.float32).reshape(4, 2)
    shared = fc.shared_embedding_columns(
        [first, second], 2, "sum", tf.constant_initializer(table), max_norm=1.2
    )
    features = {
        "word": tf.constant([["a", "d"], ["x", ""], ["b", "b"]]),
        "first": tf.constant([[0, 3], [1, 1], [2, 0]]), "second": tf.constant([[3], [2], [2]]),
        "other_word": tf.constant([["x"], ["d"], [""]]),
    }  # fmt: skip
    dense = [fc.indicator_column(filed), fc.indicator_column(wide), *shared]
    inputs = fc.input_layer(features, dense)
    (variable,) = tf.trainable_variables()
    (slope,) = tf.gradients(tf.reduce_sum(inputs**2), [variable])
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run({"inputs": inputs, "slope": tf.convert_to_tensor(slope)})
