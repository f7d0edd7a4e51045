"""Feature columns: what dense layers and linear models make of a batch, with gradients of their variables."""

import numpy as np


def columns(tf):
    fc = tf.feature_column
    age, size = fc.numeric_column("age"), fc.numeric_column("size", 2, normalizer_fn=lambda x: (x - 1) / 2)
    ages = fc.bucketized_column(age, [18, 30.5, 65])
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    more = fc.categorical_column_with_vocabulary_list("word2", ["a", "b"], num_oov_buckets=3)
    number = fc.categorical_column_with_vocabulary_list("number", [5, 7], default_value=0)
    kind = fc.categorical_column_with_identity("kind", 4)
    other = fc.categorical_column_with_identity("other", 4, default_value=1)
    hashed = fc.categorical_column_with_hash_bucket("name", 7)
    hashed_number = fc.categorical_column_with_hash_bucket("id", 5, tf.int64)
    crossed = fc.crossed_column(["name", "word", ages], 11)
    keyed = fc.crossed_column([kind, fc.crossed_column(["word", other], 5)], 6, hash_key=123)
    weighted = fc.weighted_categorical_column(kind, "weight")
    sparse = [ages, word, more, number, kind, other, hashed, hashed_number, crossed, keyed, weighted]
    table = np.linspace(-1, 1, 60).astype(np.float32)
    dense = [
        age, size, ages, *(fc.indicator_column(each) for each in [word, kind, crossed, weighted]),
        *(
            fc.embedding_column(each, 2, how, tf.constant_initializer(table[: 2 * count].reshape(count, 2)))
            for each, count, how in ((hashed, 7, "mean"), (other, 4, "sqrtn"), (keyed, 6, "sum"))
        ),
        fc.embedding_column(
            weighted, 2, initializer=tf.constant_initializer(table[:8].reshape(4, 2)), max_norm=1.0
        ),
    ]  # fmt: skip
    return dense, [age, size, *sparse]


def batch(tf):
    kinds = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], np.array([3, 1, 1]), [3, 2])
    weights = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], np.array([0.5, 2, 3], np.float32), [3, 2])
    return {
        "age": tf.constant([[18.0], [29.0], [70.0]]), "size": tf.constant([[1, 2], [3, 4], [5, 6.0]]),
        "word": tf.constant([["a", "c"], ["", "x"], ["b", "b"]]), "word2": tf.constant(["x", "b", "y"]),
        "number": tf.constant([[5], [7], [9]]), "kind": kinds, "weight": weights,
        "other": tf.constant([[0, 3], [-1, 9], [2, 2]]), "name": tf.constant([["ann"], ["bob"], [""]]),
        "id": tf.constant([1, 2, 1], tf.int64),
    }  # fmt: skip


def results(tf):
    dense, every = columns(tf)
    features = batch(tf)
    layers, models = {}, {}
    inputs = tf.feature_column.input_layer(features, dense, cols_to_output_tensors=layers)
    linear = tf.feature_column.linear_model(features, every, units=2, cols_to_vars=models)
    variables = sorted(tf.trainable_variables(), key=lambda v: v.name)
    mean = tf.feature_column.linear_model(features, every, sparse_combiner="mean")
    fetches = {f"layer_{column.name}": tensor for column, tensor in layers.items()}
    fetches |= {"inputs": inputs, "linear": linear, "mean": mean}
    others = sorted(set(tf.trainable_variables()) - set(variables), key=lambda v: v.name.replace("_1/", "/"))
    score = tf.reduce_sum(inputs**2) + tf.reduce_sum(linear**2) + tf.reduce_sum(mean**3)
    for variable, slope in zip(variables, tf.gradients(score, variables), strict=True):
        name = variable.name.replace("/", ".").replace(":", "_")
        fetches[f"slope_{name}"] = tf.convert_to_tensor(slope)
    found = {"spec": np.array(sorted(map(str, tf.feature_column.make_parse_example_spec(every))), object)}
    rng = np.random.default_rng(5)
    variables += others  # whose names TensorFlow numbers in another way
    values = [rng.normal(size=v.shape.as_list()).astype(np.float32) for v in variables]
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        found |= {f"first_{name}": value for name, value in session.run(fetches).items()}
        session.run([tf.assign(v, x) for v, x in zip(variables, values, strict=True)])
        return {**found, **session.run(fetches)}
