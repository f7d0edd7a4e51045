"""Distances of sequences in edits."""

import numpy as np


def results(tf):
    rng = np.random.default_rng(7)
    fetches = {}
    for kind in (np.int64, np.str_):
        pair = []
        for rows in (4, 5):
            places = np.unique(rng.integers(0, (rows, 3, 9), (60, 3)), axis=0)
            values = rng.integers(0, 3, len(places))
            values = values if kind is np.int64 else values.astype(str).astype(object)
            pair.append(tf.SparseTensor(places, values, [rows, 3, 9]))
        for normalize in (False, True):
            fetches[f"{kind.__name__}{normalize}"] = tf.edit_distance(*pair, normalize=normalize)
    with tf.Session() as session:
        return session.run(fetches)
