"""Random examples, parsed alone and in batches."""

import numpy as np


def example(tf, rng):
    train = tf.train

    def floats(count):
        return train.Feature(float_list=train.FloatList(value=rng.standard_normal(count)))

    def ints(values):
        return train.Feature(int64_list=train.Int64List(value=values))

    kinds = {
        "floats": floats(6),
        "ints": ints(rng.integers(-(2**40), 2**40, rng.integers(4))),
        "strings": train.Feature(bytes_list=train.BytesList(value=[b"a", b"bc", b""][: rng.integers(4)])),
        "rows": floats(2 * rng.integers(4)),
        "one": ints([int(rng.integers(9))]),
    }
    kept = {key: kinds[key] for key in kinds if key == "floats" or rng.random() < 0.8}
    return tf.train.Example(features=tf.train.Features(feature=kept)).SerializeToString()


def results(tf):
    rng = np.random.default_rng(0)
    features = {
        "floats": tf.FixedLenFeature([2, 3], tf.float32),
        "ints": tf.VarLenFeature(tf.int64),
        "strings": tf.VarLenFeature(tf.string),
        "rows": tf.FixedLenSequenceFeature([2], tf.float32, allow_missing=True, default_value=-1.0),
        "one": tf.FixedLenFeature([], tf.int64, default_value=-7),
    }
    texts = [example(tf, rng) for _ in range(7)]
    found = {}
    with tf.Session() as session:
        for count in (7, 1, 0):
            parsed = session.run(tf.parse_example(tf.constant(texts[:count], tf.string, [count]), features))
            collect(found, f"many{count}", parsed)
        for i, text in enumerate(texts):
            collect(found, f"one{i}", session.run(tf.parse_single_example(text, features)))
        numbers = tf.decode_csv(
            ["1,2.5,a b,", ' 4 ,,"x,""y""",6'], [[0], [9.0], [""], tf.constant([7], tf.int64)]
        )
        collect(found, "csv", dict(enumerate(session.run(numbers))))
    return found


def collect(found, name, parsed):
    for key, value in parsed.items():
        if hasattr(value, "dense_shape"):
            for part in ("indices", "values", "dense_shape"):
                found[f"{name}_{key}_{part}"] = getattr(value, part)
        else:
            found[f"{name}_{key}"] = value
