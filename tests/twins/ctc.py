"""Losses of labels without times, their gradients, and decoders."""

import numpy as np


def sparse(tf, rows):
    indices = [[i, j] for i, row in enumerate(rows) for j in range(len(row))]
    values = np.array([label for row in rows for label in row], np.int32)
    return tf.SparseTensor(indices, values, [len(rows), max(map(len, rows))])


def results(tf):
    rng = np.random.default_rng(4)
    logits = tf.constant(rng.normal(0, 2, (12, 5, 6)).astype(np.float32))
    lengths = [12, 7, 5, 2, 3]
    rows = [[0, 0, 1, 1, 4], [3, 2, 2], [4], [1], [1, 1, 2, 0]]
    fits = sparse(tf, [*rows[:4], [2, 2]])
    fetches = {}
    for name, labels, options in (
        ("plain", fits, {}),
        ("apart", fits, {"ctc_merge_repeated": False}),
        ("collapsed", fits, {"preprocess_collapse_repeated": True}),
        ("both", fits, {"preprocess_collapse_repeated": True, "ctc_merge_repeated": False}),
        ("longer", sparse(tf, rows), {"ignore_longer_outputs_than_inputs": True}),
        ("ended", sparse(tf, [[0, 5], [1], [2, 1], [3], [2, 5]]), {}),
    ):
        fetches[name] = loss = tf.nn.ctc_loss(labels, logits, lengths, **options)
        fetches[f"{name}_slope"] = tf.gradients(loss * [1.0, 2, 3, 4, 5], logits)[0]
    fetches["batch_major"] = tf.nn.ctc_loss(fits, tf.transpose(logits, [1, 0, 2]), lengths, time_major=False)
    dense, counts = tf.constant([[1, 1, 2], [3, 0, 0], [4, 4, 4], [2, 1, 2], [0, 0, 0]]), [3, 1, 3, 2, 0]
    moved = tf.where(tf.equal(dense, 2), dense + 3, dense)
    for name, labels, blank in (("first", dense, None), ("last", dense, -1), ("inner", moved, 2)):
        fetches[f"dense_{name}"] = loss = tf.nn.ctc_loss_v2(
            labels, logits, counts, lengths, blank_index=blank
        )
        fetches[f"dense_{name}_slope"] = tf.gradients(loss * [1.0, 2, 3, 4, 5], logits)[0]
    fetches["unique"], fetches["places"] = unique = tf.nn.ctc_unique_labels(dense)
    fetches["dense_batch_major"] = tf.nn.ctc_loss_v2(
        dense, tf.transpose(logits, [1, 0, 2]), counts, lengths, logits_time_major=False, unique=unique
    )
    others = sparse(tf, [[0], [1], [2], [4], [4]])
    fetches["sparse_inner"] = tf.nn.ctc_loss_v2(others, logits, None, lengths, blank_index=3)
    fetches["collapsed_rows"], fetches["counts"] = tf.nn.collapse_repeated(dense, [3, 2, 3, 2, 0])
    fetches["beam_v2_score"] = tf.nn.ctc_beam_search_decoder_v2(logits[:, :3], lengths[:3], 100, 2)[1]
    for merges in (True, False):
        for name, (decoded, score) in {
            "greedy": tf.nn.ctc_greedy_decoder(logits, lengths, merges),
            "beam": tf.nn.ctc_beam_search_decoder(logits[:, :3], lengths[:3], 100, 4, merges),
            **{
                f"beam_of_{width}": tf.nn.ctc_beam_search_decoder(
                    logits[:, :3], lengths[:3], width, min(width, 2), merges
                )
                for width in (1, 2, 3, 5, 10, 17)
            },
        }.items():
            fetches[f"{name}_{merges}_score"] = score
            for i, each in enumerate(decoded):
                for part in ("indices", "values", "dense_shape"):
                    fetches[f"{name}_{merges}_{i}_{part}"] = getattr(each, part)
    with tf.Session() as session:
        return session.run(fetches)
