"""Boosted trees on 500 examples, by flowrt and by TensorFlow 1.15, whose results are in the repository:

    cd tests && python boosted_tree_cases.py > golden/boosted_trees.json

Numbers are one of 61: with more than `num_quantiles` boundaries TensorFlow's kernels write behind their
arrays.
"""

import json
import tempfile
from typing import Any

import numpy as np

EXAMPLES = 500
EXPLAINED = 5
"""Examples of which the contributions of columns are compared."""

CASES: "dict[str, tuple[str, int, int, dict[str, Any]]]" = {
    "in memory": ("Regressor", EXAMPLES, 20, {"n_trees": 4, "max_depth": 3, "train_in_memory": True}),
    "batches": ("Classifier", 100, 60, {"n_trees": 4, "max_depth": 3}),
    "regularized": (
        "Regressor", 250, 60,
        {"n_trees": 4, "max_depth": 3, "center_bias": True, "l1_regularization": 0.001,
         "l2_regularization": 0.01},
    ),
    "min_node_weight": (
        "Classifier", 250, 60,
        {"n_trees": 3, "max_depth": 3, "center_bias": True, "min_node_weight": 0.02},
    ),
    "pre-pruned": (
        "Regressor", EXAMPLES, 20,
        {"n_trees": 4, "max_depth": 4, "tree_complexity": 0.002, "pruning_mode": "pre", "learning_rate": 0.5,
         "train_in_memory": True},
    ),
    "post-pruned": (
        "Regressor", EXAMPLES, 20,
        {"n_trees": 4, "max_depth": 4, "tree_complexity": 0.002, "pruning_mode": "post", "learning_rate": 0.5,
         "train_in_memory": True},
    ),
    "post-pruned batches": (
        "Classifier", 250, 40,
        {"n_trees": 4, "max_depth": 4, "tree_complexity": 0.002, "pruning_mode": "post",
         "learning_rate": 0.5},
    ),
}  # fmt: skip
"""By name: the estimator, the size of batches, the number of steps, other arguments."""


def data() -> "tuple[dict[str, Any], Any, Any]":
    """Features, numbers, and classes."""
    rng = np.random.RandomState(0)
    x = np.round(rng.rand(EXAMPLES, 3) * 60).astype(np.float32) / np.float32(60)
    k = rng.randint(0, 4, EXAMPLES)
    y = np.sin(6 * x[:, 0]) + x[:, 1] * (k == 2) + 0.1 * rng.randn(EXAMPLES)
    features = {"a": x[:, :1], "b": x[:, 1:2], "c": x[:, 2:], "k": k[:, None]}
    return features, y.astype(np.float32), (y > 0.3).astype(np.int32)


def columns(tf: Any) -> "list[Any]":
    column = tf.feature_column
    return [
        column.bucketized_column(column.numeric_column("a"), [0.2, 0.4, 0.6, 0.8]),
        column.numeric_column("b"),
        column.numeric_column("c"),
        column.indicator_column(column.categorical_column_with_identity("k", 4)),
    ]


def run(tf: Any, name: str) -> "dict[str, Any]":
    """The losses of training, predictions, importances and evaluation of a case; with a centered bias also
    explanations.
    """
    kind, batch, steps, arguments = CASES[name]
    features, numbers, classes = data()
    labels = numbers if kind == "Regressor" else classes

    def once() -> Any:
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch)

    def again() -> Any:
        if batch == EXAMPLES:  # TensorFlow makes its caches before datasets begin
            return {key: tf.constant(value) for key, value in features.items()}, tf.constant(labels)
        return once().repeat()

    losses = []  # type: list[float]

    class Watch(tf.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.loss = tf.get_collection(tf.GraphKeys.LOSSES)[-1]

        def before_run(self, run_context: Any) -> Any:
            return tf.train.SessionRunArgs(self.loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            losses.append(float(run_values.results))

    with tempfile.TemporaryDirectory() as folder:
        estimator = getattr(tf.estimator, "BoostedTrees" + kind)(
            columns(tf), EXAMPLES // batch, model_dir=folder, **arguments
        )
        estimator.train(again, hooks=[Watch()], steps=steps)
        key = "predictions" if kind == "Regressor" else "logits"
        found = {
            "losses": losses,
            "predictions": [float(each[key][0]) for each in estimator.predict(once)][:50],
            "importances": [[k, float(v)] for k, v in estimator.experimental_feature_importances().items()],
            "loss": float(estimator.evaluate(once)["loss"]),
        }
        if arguments.get("center_bias"):
            explained = list(estimator.experimental_predict_with_explanations(once))[:EXPLAINED]
            found["bias"] = float(explained[0]["bias"])
            found["contributions"] = [sorted(map(float, each["dfc"].values())) for each in explained]
    return found


if __name__ == "__main__":
    import tensorflow

    print(json.dumps({name: run(tensorflow, name) for name in CASES}))
