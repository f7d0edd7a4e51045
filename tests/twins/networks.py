"""Functions of neural networks: convolutions, pools, normalizations, losses, embeddings."""

import numpy as np


def calls(tf):
    rng = np.random.default_rng(14)
    nn = tf.nn
    line, picture, volume = (rng.normal(size=(2, *[6, 7, 5][:n], 3)) for n in (1, 2, 3))
    filters = [rng.normal(size=(*[3, 2, 2][:n], 3, 4)) for n in (1, 2, 3)]
    x, y = rng.normal(size=(2, 3, 4))
    table = rng.normal(size=(6, 3))
    classes, share = np.int32([3, 0, 2]), rng.uniform(size=(3, 4))
    share /= share.sum(1, keepdims=True)
    found = {}
    for padding in ("SAME", "VALID"):
        for stride in (1, 2):
            key = f"{padding}_{stride}"
            found.update(
                {
                    f"conv1d_{key}": (
                        lambda t, f, p=padding, s=stride: nn.conv1d(t, f, s, p),
                        line,
                        filters[0],
                    ),
                    f"conv2d_{key}": (
                        lambda t, f, p=padding, s=stride: nn.conv2d(t, f, [1, s, s, 1], p),
                        picture,
                        filters[1],
                    ),
                    f"conv3d_{key}": (
                        lambda t, f, p=padding, s=stride: nn.conv3d(t, f, [1, s, s, s, 1], p),
                        volume,
                        filters[2],
                    ),
                    f"depthwise_{key}": (
                        lambda t, f, p=padding, s=stride: nn.depthwise_conv2d(t, f, [1, s, s, 1], p),
                        picture,
                        filters[1],
                    ),
                    f"separable_{key}": (
                        lambda t, f, g, p=padding, s=stride: nn.separable_conv2d(t, f, g, [1, s, s, 1], p),
                        picture,
                        filters[1],
                        rng.normal(size=(1, 1, 12, 2)),
                    ),
                    f"transposed_{key}": (
                        lambda t, f, p=padding, s=stride: nn.conv2d_transpose(
                            t,
                            f,
                            [
                                2,
                                6 * s + (2 if p == "VALID" and s == 1 else 1 if p == "VALID" else 0),
                                7 * s + (1 if p == "VALID" and s == 1 else 0),
                                4,
                            ],
                            [1, s, s, 1],
                            p,
                        ),
                        picture,
                        rng.normal(size=(3, 2, 4, 3)),
                    ),
                }
            )
            for kind in ("max", "avg"):
                for size, suffix, given in ((1, "1d", line), (2, "", picture), (3, "3d", np.float32(volume))):
                    ones = [3] if size == 1 else [1, *[3, 2, 2][:size], 1]
                    steps = [stride] if size == 1 else [1, *[stride] * size, 1]
                    function = getattr(nn, f"{kind}_pool{suffix}")
                    found[f"{kind}_pool{suffix}_{key}"] = (
                        lambda t, f=function, k=ones, s=steps, p=padding: f(t, k, s, p),
                        given,
                    )
    for name in (
        "crelu",
        "elu",
        "leaky_relu",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "softplus",
        "softsign",
        "tanh",
        "l2_loss",
        "swish",
    ):
        found[name] = (getattr(nn, name), x)
        found[f"{name}_float32"] = (getattr(nn, name), np.float32(x * 5))
    labels, logits = share, x
    found.update(
        {
            "convolution": (
                lambda t, f: nn.convolution(t, f, "SAME", dilation_rate=[2, 1]),
                picture,
                filters[1],
            ),
            "convolution_line": (lambda t, f: nn.convolution(t, f, "VALID", strides=[2]), line, filters[0]),
            "dilated_value": (
                lambda t, f: nn.conv2d(t, f, [1, 1, 1, 1], "SAME", dilations=[1, 2, 2, 1]),
                picture,
                filters[1],
            ),
            "explicit_padding": (
                lambda t, f: nn.conv2d(t, f, [1, 2, 1, 1], [[0, 0], [1, 2], [0, 3], [0, 0]]),
                picture,
                filters[1],
            ),
            "atrous": (lambda t, f: nn.atrous_conv2d(t, f, 2, "SAME"), picture, filters[1]),
            "atrous_valid": (lambda t, f: nn.atrous_conv2d(t, f, 2, "VALID"), picture, filters[1]),
            "depthwise_rate": (
                lambda t, f: nn.depthwise_conv2d(t, f, [1, 1, 1, 1], "SAME", rate=[2, 2]),
                picture,
                filters[1],
            ),
            "depthwise_native": (
                lambda t, f: nn.depthwise_conv2d_native(t, f, [1, 1, 1, 1], "VALID"),
                picture,
                filters[1],
            ),
            "separable_rate": (
                lambda t, f, g: nn.separable_conv2d(t, f, g, [1, 1, 1, 1], "SAME", rate=[2, 2]),
                picture,
                filters[1],
                rng.normal(size=(1, 1, 12, 2)),
            ),
            "backprop_input": (
                lambda f, d: nn.conv2d_backprop_input([2, 6, 7, 3], f, d, [1, 2, 2, 1], "SAME"),
                filters[1],
                rng.normal(size=(2, 3, 4, 4)),
            ),
            "backprop_filter": (
                lambda t, d: nn.conv2d_backprop_filter(t, [3, 2, 3, 4], d, [1, 2, 2, 1], "SAME"),
                picture,
                rng.normal(size=(2, 3, 4, 4)),
            ),
            "conv3d_transposed": (
                lambda t, f: nn.conv3d_transpose(t, f, [2, 12, 14, 10, 4], [1, 2, 2, 2, 1], "SAME"),
                volume,
                rng.normal(size=(3, 2, 2, 4, 3)),
            ),
            "pool": (lambda t: nn.pool(t, [2, 3], "MAX", "SAME", strides=[2, 1]), picture),
            "space_to_depth": (lambda t: nn.space_to_depth(t[:, :6, :6], 2), picture),
            "depth_to_space": (lambda t: nn.depth_to_space(t, 2), rng.normal(size=(1, 2, 3, 8))),
            "space_to_batch": (lambda t: nn.space_to_batch(t, [[0, 0], [1, 0]], 2), picture),
            "batch_normalization": (
                lambda t, m, v, b, s: nn.batch_normalization(t, m, v, b, s, 0.01),
                picture,
                table[0],
                table[1] ** 2,
                table[2],
                table[3],
            ),
            "batch_norm_global": (
                lambda t, m, v, b, s: nn.batch_norm_with_global_normalization(t, m, v, b, s, 0.01, True),
                picture,
                table[0],
                table[1] ** 2,
                table[2],
                table[3],
            ),
            "fused_batch_norm": (
                lambda t, s, b: nn.fused_batch_norm(t, s, b, epsilon=0.01)[0],
                np.float32(picture),
                np.float32(table[0]),
                np.float32(table[1]),
            ),
            "fused_batch_norm_statistics_value": (
                lambda t, s, b: nn.fused_batch_norm(t, s, b)[1:],
                np.float32(picture),
                np.float32(table[0]),
                np.float32(table[1]),
            ),
            "fused_batch_norm_inference": (
                lambda t, s, b, m, v: nn.fused_batch_norm(t, s, b, m, v, is_training=False)[0],
                *map(np.float32, (picture, table[0], table[1], table[2], table[3] ** 2)),
            ),
            "local_response": (
                lambda t: nn.local_response_normalization(t, 1, 1.5, 0.3, 0.7),
                np.float32(picture),
            ),
            "moments": (lambda t: nn.moments(t, [0, 2], keep_dims=True), picture),
            "weighted_moments": (lambda t, w: nn.weighted_moments(t, [0, 1], w), picture, np.abs(picture)),
            "sufficient_statistics": (
                lambda t, s: list(nn.sufficient_statistics(t, [0, 1], shift=s)),
                picture,
                table[0],
            ),
            "normalize_moments": (
                lambda m, v: nn.normalize_moments(np.float64(7), m, v, None),
                table[0],
                table[1] ** 2,
            ),
            "bias_add": (nn.bias_add, picture, table[0]),
            "bias_add_first": (
                lambda t, b: nn.bias_add(t, b, "NCHW"),
                np.moveaxis(picture, 3, 1).copy(),
                table[0],
            ),
            "xw_plus_b": (nn.xw_plus_b, x, y.T.copy(), table[0]),
            "relu_layer": (nn.relu_layer, x, y.T.copy(), table[0]),
            "leaky_relu_slope": (lambda t: nn.leaky_relu(t, 0.05), x),
            "dropout_none": (lambda t: nn.dropout(t, keep_prob=1.0), x),
            "log_softmax": (nn.log_softmax, x),
            "softmax": (nn.softmax, x),
            "sigmoid_cross_entropy": (
                lambda z, t: nn.sigmoid_cross_entropy_with_logits(labels=z, logits=t),
                labels,
                30 * logits,
            ),
            "softmax_cross_entropy": (
                lambda z, t: nn.softmax_cross_entropy_with_logits(labels=z, logits=t),
                labels,
                logits,
            ),
            "softmax_cross_entropy_v2": (
                lambda z, t: nn.softmax_cross_entropy_with_logits_v2(labels=z, logits=t),
                labels,
                300 * logits,
            ),
            "softmax_cross_entropy_axis": (
                lambda z, t: nn.softmax_cross_entropy_with_logits_v2(labels=z, logits=t, axis=0),
                labels,
                logits,
            ),
            "sparse_cross_entropy": (
                lambda z, t: nn.sparse_softmax_cross_entropy_with_logits(labels=z, logits=t),
                classes,
                logits,
            ),
            "weighted_cross_entropy": (
                lambda z, t: nn.weighted_cross_entropy_with_logits(z, t, pos_weight=3.0),
                labels,
                9 * logits,
            ),
            "log_poisson_loss": (nn.log_poisson_loss, labels + 2, logits),
            "log_poisson_loss_full": (
                lambda z, t: nn.log_poisson_loss(z, t, compute_full_loss=True),
                labels * 4,
                logits,
            ),
            "embedding": (nn.embedding_lookup, table, np.int64([[5, 0], [5, 2]])),
            "embedding_div": (
                lambda t, u, i: nn.embedding_lookup([t, u], i, partition_strategy="div"),
                table,
                table * 2,
                np.int64([11, 0, 7]),
            ),
            "embedding_mod": (
                lambda t, u, i: nn.embedding_lookup([t, u], i),
                table,
                table * 2,
                np.int64([11, 0, 7]),
            ),
            "embedding_max_norm": (
                lambda t, i: nn.embedding_lookup(t, i, max_norm=1.0),
                table,
                np.int64([5, 0]),
            ),
            "compute_average_loss": (lambda t: nn.compute_average_loss(t, global_batch_size=6), x),
            "scale_regularization_loss": (nn.scale_regularization_loss, x[0, 0]),
            "accidental_hits": (  # of candidates drawn twice TensorFlow finds the last only, flowrt all
                lambda z, s: list(nn.compute_accidental_hits(z, s, num_true=1)),
                np.int64([[3], [5]]),
                np.int64([5, 3, 4]),
            ),
            "silu": (nn.silu, x),
            "max_pool_with_argmax": (
                lambda t: nn.max_pool_with_argmax(t, [1, 3, 2, 1], [1, 2, 2, 1], "SAME"),
                picture,
            ),
            "max_pool_with_argmax_of_batch": (
                lambda t: nn.max_pool_with_argmax(
                    t, [1, 2, 2, 1], [1] * 4, "VALID", include_batch_in_index=True
                ),
                picture,
            ),
            "max_pool2d": (lambda t: nn.max_pool2d(t, 2, 2, "SAME"), picture),
            "log_sigmoid": (tf.log_sigmoid, 40 * x),
        }
    )
    drawn = (np.int64([5, 3, 0]), np.float32([[0.5], [0.2]]), np.float32([0.7, 0.4, 0.1]))
    table32 = np.float32(table)
    for loss in ("nce_loss", "sampled_softmax_loss"):
        for hits in (False, True):
            found[f"{loss}_{hits}"] = (
                lambda t, b, i, n=loss, h=hits: getattr(nn, n)(
                    t, b, np.int64([[3], [1]]), i, 3, 6, sampled_values=drawn, remove_accidental_hits=h
                ),
                table32,
                table32[:, 0],
                table32[:2] * 2,
            )
        found[f"{loss}_div"] = (
            lambda t, u, b, i, n=loss: getattr(nn, n)(
                [t, u], b, np.int64([[3], [1]]), i, 3, 6, sampled_values=drawn, partition_strategy="div"
            ),
            table32[:3],
            table32[3:],
            table32[:, 0],
            table32[:2] * 2,
        )
    sparse = lambda v: tf.SparseTensor([[0, 0], [0, 2], [1, 1], [3, 0]], v, [4, 3])  # noqa: E731
    for combiner in ("mean", "sum", "sqrtn"):
        found[f"embedding_sparse_{combiner}"] = (
            lambda t, w, c=combiner: nn.embedding_lookup_sparse(
                t, sparse(np.int64([5, 0, 2, 2])), sparse(w), combiner=c
            ),
            table[:, :2],
            np.abs(x[0]),
        )
        found[f"embedding_safe_{combiner}"] = (
            lambda t, w, c=combiner: nn.safe_embedding_lookup_sparse(
                [t], sparse(np.int64([5, 0, 2, -1])), sparse(w), combiner=c
            ),
            table[:, :2],
            np.abs(x[0]),
        )
    return found
