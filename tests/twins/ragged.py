"""Ragged tensors: made, taken apart, arranged and reduced, with gradients of their elements."""

import numpy as np

ITEMS = (0, -1, np.s_[1:], np.s_[:2], np.s_[:, 1:], np.s_[:, :-1], np.s_[0, 1:], np.s_[1:, :2])


def parts_of(tf, found):
    """The elements and splits of a ragged tensor; a list of the parts of each for a list."""
    if isinstance(found, (list, tuple)):
        return [parts_of(tf, each) for each in found]
    return [found.flat_values, *found.nested_row_splits] if isinstance(found, tf.RaggedTensor) else found


def calls(tf):
    rng = np.random.default_rng(17)
    kind = tf.RaggedTensor
    elements, other = rng.normal(size=(2, 7))
    wide = rng.normal(size=(7, 2))
    dense = rng.normal(size=(3, 4))
    padded = np.array([[1.0, 0, 2, 0], [0, 0, 0, 0], [3, 4, 5, 6]])
    lengths = np.int64([3, 0, 4])

    def rows(values):
        return kind.from_row_lengths(values, lengths)

    def nested(values):
        return kind.from_nested_row_splits(values, [np.int64([0, 2, 2, 3]), np.int64([0, 1, 5, 7])])

    def of(function, make=rows):
        return lambda values, *others: parts_of(tf, function(make(values), *others))

    found = {
        "splits": (lambda v: parts_of(tf, kind.from_row_splits(v, np.int64([0, 3, 3, 7]))), elements),
        "rowids": (lambda v: parts_of(tf, kind.from_value_rowids(v, [0, 0, 2, 2, 2, 3, 3], 6)), elements),
        "rowids_last": (lambda v: parts_of(tf, kind.from_value_rowids(v, [0, 0, 2, 2, 2, 3, 3])), elements),
        "starts": (lambda v: parts_of(tf, kind.from_row_starts(v, [0, 3, 3])), elements),
        "limits": (lambda v: parts_of(tf, kind.from_row_limits(v, [3, 3, 7])), elements),
        "nested_lengths": (
            lambda v: parts_of(tf, kind.from_nested_row_lengths(v, [[2, 0, 1], [1, 4, 2]])),
            elements,
        ),
        "tensor": (lambda t: parts_of(tf, kind.from_tensor(t)), dense),
        "tensor_lengths": (lambda t: parts_of(tf, kind.from_tensor(t, lengths=[1, 0, 3])), dense),
        "tensor_padding": (lambda t: parts_of(tf, kind.from_tensor(t, padding=0.0)), padded),
        "tensor_rank": (
            lambda t: parts_of(tf, kind.from_tensor(t, ragged_rank=2)),
            rng.normal(size=(2, 3, 2, 2)),
        ),
        "sparse": (
            lambda v: parts_of(
                tf, kind.from_sparse(tf.SparseTensor([[0, 0], [0, 1], [2, 0]], v, [4, 3]))
            ),
            elements[:3],
        ),
        "to_sparse": (lambda v: list_of(rows(v).to_sparse()), elements),
        "to_sparse_nested": (lambda v: list_of(nested(v).to_sparse()), elements),
        "facts": (
            lambda v: [
                rows(v).nrows(), rows(v).row_lengths(), rows(v).row_starts(), rows(v).row_limits(),
                rows(v).value_rowids(), rows(v).bounding_shape(), rows(v).nrows(tf.int32),
                nested(v).bounding_shape(), nested(v).bounding_shape(axis=2), *nested(v).nested_row_lengths(),
            ],
            elements,
        ),
        "inner_lengths": (of(lambda r: r.row_lengths(axis=2), nested), elements),
        "constant": (
            lambda v: parts_of(tf, [
                tf.ragged.constant([[1, 2], [], [3]]), tf.ragged.constant([[[1.5], []], [[2, 3]]]),
                tf.ragged.constant([["a"], []]), tf.ragged.constant([[], []]),
                tf.ragged.constant([[[1, 2], [3, 4]], []], ragged_rank=1),
                tf.ragged.constant([[[1, 2], [3, 4]], []], inner_shape=(2,), dtype=tf.int64),
            ]),
            elements,
        ),
        "range": (
            lambda n: parts_of(tf, [
                tf.ragged.range(n), tf.ragged.range([3, 5, 8], [5, 2, 9]), tf.ragged.range(0, n, 2),
                tf.ragged.range([9, 1], [0, 1], -2), tf.ragged.range(np.float32([0.5, 2]), 3.0, 0.4),
            ]),
            np.int32([3, 0, 2]),
        ),
        "boolean_mask": (
            of(lambda r: tf.ragged.boolean_mask(r, r > 0)), elements),
        "boolean_mask_rows": (
            of(lambda r: tf.ragged.boolean_mask(r, np.array([True, False, True]))), elements),
        "boolean_mask_dense": (
            lambda t: parts_of(tf, tf.ragged.boolean_mask(t, np.arange(12).reshape(3, 4) % 3 > 0)), dense),
        "where_places": (of(lambda r: tf.where(r > 0)), elements),
        "where_nested": (of(lambda r: tf.where(r > 0), nested), elements),
        "where": (
            lambda v, w: parts_of(tf, tf.where(rows(v) > 0, rows(v), rows(w))), elements, other),
        "where_rows": (
            lambda v, w: parts_of(tf, tf.where(np.array([True, False, True]), rows(v), rows(w))),
            elements, other),
        "map_flat_values": (of(lambda r: tf.ragged.map_flat_values(lambda t: t * t, r)), elements),
        "embedding": (
            lambda t: parts_of(tf, tf.ragged.map_flat_values(
                tf.nn.embedding_lookup, t, tf.ragged.constant([[1, 0], [], [2, 1, 1]]))), dense),
        "gather_dense": (
            lambda t: parts_of(tf, tf.gather(t, tf.ragged.constant([[1, 0], [], [2, 1, 1]]))), dense),
        "gather": (of(lambda r: tf.gather(r, [2, 0, 2])), elements),
        "gather_square": (of(lambda r: tf.gather(r, [[2, 0], [1, 1]])), elements),
        "gather_nested": (of(lambda r: tf.gather(r, [2, 0]), nested), elements),
        "gather_ragged": (of(lambda r: tf.gather(r, tf.ragged.constant([[1, 0], [], [2]]))), elements),
        "concat": (lambda v, w: parts_of(tf, tf.concat([rows(v), rows(w)], 0)), elements, other),
        "concat_sides": (
            lambda v, w: parts_of(tf, tf.concat([rows(v), rows(w), rows(v)], 1)), elements, other),
        "concat_inner": (
            lambda v, w: parts_of(tf, tf.concat([nested(v), nested(w)], axis=2)), elements, other),
        "concat_dense": (lambda v, t: parts_of(tf, tf.concat([rows(v), t], 1)), elements, dense),
        "stack": (lambda v, w: parts_of(tf, tf.stack([rows(v), rows(w)])), elements, other),
        "stack_sides": (lambda v, w: parts_of(tf, tf.stack([rows(v), rows(w)], 1)), elements, other),
        "stack_vectors": (lambda v, w: parts_of(tf, tf.ragged.stack([v, w[:2]])), elements, other),
        "tile": (of(lambda r: tf.tile(r, [2, 3])), elements),
        "elementwise": (
            lambda v, w: parts_of(tf, [
                rows(v) + rows(w), rows(v) * 2, 3 - rows(v), rows(v) / rows(w), -rows(v), rows(v) ** 2,
                tf.square(rows(v)), tf.maximum(rows(v), rows(w)), tf.add(rows(v), 1.5), abs(rows(v)),
                tf.exp(rows(v)), tf.cast(rows(v), tf.float32), tf.abs(rows(v)), tf.round(rows(v)),
                tf.divide(rows(v), 2), tf.add_n([rows(v), rows(w)]), tf.clip_by_value(rows(v), -0.5, 0.5),
                tf.real(rows(v)), tf.zeros_like(rows(v)), tf.ones_like(rows(v)),
            ]),
            elements, other),
        "beside_rows": (of(lambda r: r + np.float64([[1], [2], [3]])), elements),
        "compared": (
            lambda v, w: parts_of(tf, [rows(v) > rows(w), tf.less(rows(v), 0), tf.equal(rows(v), rows(w)),
                                       tf.logical_not(rows(v) > 0), (rows(v) > 0) & (rows(w) > 0)]),
            elements, other),
        "text": (
            lambda t: parts_of(tf, [tf.strings.join([rows(t), "!"]), tf.strings.length(rows(t)),
                                    tf.strings.substr(rows(t), 0, 1), rows(t).to_tensor()]),
            np.array([b"a", b"bc", b"", b"d", b"e", b"f", b"gh"])),
        "size": (lambda v: [tf.size(rows(v)), tf.rank(nested(v))], elements),
        "split": (
            lambda t: parts_of(tf, tf.strings.split(t, result_type="RaggedTensor")),
            np.array([b"a b", b"", b" c  d"])),
        "split_comma": (
            lambda t: parts_of(tf, tf.strings.split(t, ",", maxsplit=1, result_type="RaggedTensor")),
            np.array([b"a,b,c", b""])),
        "bytes_split": (
            lambda t: parts_of(tf, tf.strings.bytes_split(t)), np.array([[b"ab", b""], [b"c", b"\xc3\xa9"]])),
    }  # fmt: skip
    for name, make, values in (("rows", rows, elements), ("wide", rows, wide), ("nested", nested, elements)):
        rank = 3 if name != "rows" else 2
        found[f"to_tensor_{name}"] = (lambda v, m=make: m(v).to_tensor(), values)
        found[f"to_tensor_{name}_default"] = (lambda v, m=make: m(v).to_tensor(9.0), values)
        for axis in range(rank + 1):
            found[f"expand_dims_{name}_{axis}"] = (of(lambda r, a=axis: tf.expand_dims(r, a), make), values)
        for axis in (*range(rank), None, [0, 1]):
            for reduction in ("sum", "mean", "max", "min", "prod"):
                function = getattr(tf, f"reduce_{reduction}")
                found[f"{reduction}_{name}_{axis}"] = (
                    of(lambda r, f=function, a=axis: f(r, a), make),
                    values,
                )
        for number, key in enumerate(ITEMS):
            found[f"item_{name}_{number}"] = (
                lambda v, m=make, k=key: parts_of(tf, m(v)[k]), values)  # fmt: skip
    for reduction in ("any", "all"):
        for axis in (0, 1, None):
            found[f"{reduction}_{axis}"] = (
                of(lambda r, n=reduction, a=axis: getattr(tf, f"reduce_{n}")(r > 0, a)),
                elements,
            )
    return found


def list_of(sparse):
    return [sparse.indices, sparse.values, sparse.dense_shape]
