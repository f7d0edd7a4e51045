"""Functions of sparse tensors, and their gradients."""

import numpy as np


def results(tf):
    rng = np.random.default_rng(1)
    places = np.array([[0, 1], [0, 3], [2, 0], [3, 3]])
    values = rng.standard_normal(4)
    found = {}
    with tf.Session() as session:
        fed = tf.sparse_placeholder(tf.float64)
        given = tf.SparseTensorValue(places, values, [4, 5])
        right, left = (tf.constant(rng.standard_normal(shape)) for shape in ((5, 3), (4, 3)))
        products = {
            "plain": tf.sparse_tensor_dense_matmul(fed, right),
            "adjoint_a": tf.sparse_tensor_dense_matmul(fed, left, adjoint_a=True),
            "adjoint_b": tf.sparse_tensor_dense_matmul(fed, tf.transpose(right), adjoint_b=True),
        }
        for name, product in products.items():
            weights = tf.constant(rng.standard_normal(session.run(tf.shape(product), {fed: given})))
            both = tf.gradients(tf.reduce_sum(product * weights), [fed.values, right, left])
            there = [d for d in both if d is not None]
            for i, value in enumerate(session.run([product, *there], {fed: given})):
                found[f"{name}{i}"] = value
        dense = tf.sparse_tensor_to_dense(fed, default_value=-1.0)
        shuffled = tf.SparseTensor(places[::-1].copy(), values, [4, 5])
        kept = tf.sparse_retain(fed, [True, False, True, False])
        filled, empty = tf.sparse_fill_empty_rows(fed, 9.0)
        text = ["a b,c", "", "d,"]
        sparse = {
            "reordered": tf.sparse_reorder(shuffled), "kept": kept, "filled": filled,
            "transposed": tf.sparse_transpose(fed), "permuted": tf.sparse_transpose(fed, [0, 1]),
            "reshaped": tf.sparse_reshape(fed, [2, -1]), "split": tf.string_split(text, delimiter=" ,"),
            "split_all": tf.string_split(text, delimiter=",", skip_empty=False),
        }  # fmt: skip
        other = tf.SparseTensor(
            [[0, 1], [1, 1], [2, 0]], tf.constant([-values[0], 2.0, 0.5], tf.float64), [4, 5]
        )
        wide = tf.SparseTensor([[0, 6], [1, 2]], tf.constant([3.0, 4.0], tf.float64), [4, 7])
        sparse.update({
            "added": tf.sparse_add(fed, other), "added_large": tf.sparse_add(fed, other, 0.6),
            "maximum": tf.sparse_maximum(fed, other), "minimum": tf.sparse_minimum(fed, other),
            "softmax": tf.sparse_softmax(fed), "joined": tf.sparse_concat(-1, [fed, wide]),
            "below": tf.sparse_concat(0, [fed, wide], expand_nonconcat_dim=True),
            "part": tf.sparse_slice(fed, [1, 0], [2, 9]), "outside": tf.sparse_slice(fed, [4, 0], [2, 2]),
        })  # fmt: skip
        ids = tf.SparseTensor(places, [2, 0, 1, 2], [4, 5])
        sparse.update({
            "dense": tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]]),
            "wider": tf.sparse.expand_dims(other, 1), "eye": tf.sparse.eye(2, 3),
            "wider_first": tf.sparse.expand_dims(other, -3), "wider_last": tf.sparse.expand_dims(other),
            "merged": tf.sparse_merge(ids, fed, 3), "merged_two": tf.sparse_merge([ids, ids], fed, [3, 4]),
            "tight": tf.sparse_reset_shape(fed), "larger": tf.sparse_reset_shape(fed, [6, 5]),
            "none_left": tf.sparse_reset_shape(tf.sparse_retain(fed, [False] * 4)),
        })  # fmt: skip
        for axis in (0, 1):
            parts = tf.sparse_split(sp_input=fed, num_split=3, axis=axis)
            sparse.update({f"split_{axis}_{i}": part for i, part in enumerate(parts)})
            for kind in ("max", "sum"):
                reduce = getattr(tf, f"sparse_reduce_{kind}_sparse")
                sparse[f"{kind}_{axis}"] = reduce(fed, axis)
                sparse[f"{kind}_{axis}_kept"] = reduce(fed, [axis - 2], keepdims=True)
        for name, value in session.run(sparse, {fed: given}).items():
            for part in ("indices", "values", "dense_shape"):
                found[f"{name}_{part}"] = getattr(value, part)
        sums = [tf.sparse_reduce_sum(fed, axis) for axis in (None, 0)]
        sums.append(tf.sparse_reduce_sum(fed, [1], keepdims=True))
        (slope,) = tf.gradients(dense * tf.constant(rng.standard_normal((4, 5))), [fed.values])
        sums += [tf.sparse_reduce_max(fed, axis) for axis in (None, 0, [1], [-1, 0])]
        sums += [tf.sparse_reduce_max(fed, 0, keepdims=True), tf.sparse_to_indicator(ids, 3)]
        rows = tf.constant(rng.standard_normal((5, 2, 3)))
        for reduce in (tf.sparse_segment_sum, tf.sparse_segment_mean, tf.sparse_segment_sqrt_n):
            for numbers in ([0, 0, 1, 2], [1, 1, 1, 4]):
                combined = reduce(rows, [4, 1, 1, 0], numbers)
                more = reduce(rows, [4, 1, 1, 0], numbers, num_segments=6)
                slopes = [tf.gradients(tf.sin(y), [rows])[0] for y in (combined, more)]
                sums += [combined, more, *map(tf.convert_to_tensor, slopes)]
        masked = tf.sparse_mask(tf.IndexedSlices(rows, tf.constant([7, 5, 3, 1, 9])), [5, 9])
        sums += [masked.values, masked.indices]
        sums.append(tf.sparse_add(tf.ones([4, 5], tf.float64), fed))
        weights = tf.constant(rng.standard_normal((4, 5)))
        for made in (sparse["added"], sparse["softmax"], sums[-1]):
            whole = made if isinstance(made, tf.Tensor) else tf.sparse_tensor_to_dense(made)
            sums += tf.gradients(whole * weights, [fed.values])
        for i, value in enumerate(session.run([dense, empty, slope, *sums], {fed: given})):
            found[f"dense{i}"] = value
        gathered = tf.sparse.SparseConditionalAccumulator(tf.float64, [5, 2])
        for rows, step in (([0, 2, 4], 0), ([2, 3], 0), ([0, 2], 1)):
            slices = tf.IndexedSlices(tf.constant(rng.standard_normal((len(rows), 2))), rows, [5, 2])
            session.run(gathered.apply_indexed_slices_grad(slices, step))
        mean = session.run(gathered.take_indexed_slices_grad(3))
        found.update({"gathered_values": mean.values, "gathered_indices": mean.indices})
        session.run(gathered.apply_indexed_slices_grad(slices, 0))  # too late: the mean was taken
        found["gathered_count"] = session.run(gathered.num_accumulated())
    return found
