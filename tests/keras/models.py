"""Models as public Keras programs have them, each with its data: run by flowrt and by TensorFlow alike.

python models.py NAME OUTPUT [WEIGHTS]    # with TensorFlow's Keras: weights and losses into OUTPUT
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

STEPS = 20
Case = tuple[Any, Any, Any]


def _random(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed + sum(shape)).normal(size=shape).astype("float32")


def _classes(n: int, rows: int = 32) -> Any:
    return np.random.RandomState(n).randint(0, n, rows)


def mlp(keras: Any) -> Case:
    layers = keras.layers
    model = keras.Sequential([
        layers.Dense(32, "relu", input_shape=(20,), kernel_regularizer=keras.regularizers.l2(0.01)),
        layers.Dense(16, activation="tanh", activity_regularizer=keras.regularizers.l1(0.001)),
        layers.Dense(5, activation="softmax"),
    ])  # fmt: skip
    model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])
    return model, _random(32, 20), keras.utils.to_categorical(_classes(5), 5)


def cnn(keras: Any) -> Case:
    layers = keras.layers
    model = keras.models.Sequential()
    model.add(layers.Conv2D(8, (3, 3), activation="relu", input_shape=(12, 12, 1)))
    model.add(layers.MaxPooling2D((2, 2)))
    model.add(layers.Conv2D(8, 3, padding="same", use_bias=False))
    model.add(layers.BatchNormalization())
    model.add(layers.Activation("relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(keras.optimizers.RMSprop(lr=0.001), "sparse_categorical_crossentropy", metrics=["acc"])
    return model, _random(32, 12, 12, 1), _classes(10)


def lstm_text(keras: Any) -> Case:
    layers = keras.layers
    model = keras.Sequential([
        layers.Embedding(50, 8, mask_zero=True, input_length=9),
        layers.LSTM(12),
        layers.Dense(1, activation="sigmoid"),
    ])  # fmt: skip
    model.compile(keras.optimizers.Adam(lr=0.01), "binary_crossentropy", metrics=["accuracy"])
    words = np.random.RandomState(1).randint(1, 50, (32, 9))
    words[::3, 5:] = 0
    return model, words, _classes(2)


def gru_bidirectional(keras: Any) -> Case:
    layers = keras.layers
    inputs = layers.Input(shape=(7, 5))
    x = layers.Masking()(inputs)
    x = layers.Bidirectional(layers.GRU(6, return_sequences=True))(x)
    x = layers.TimeDistributed(layers.Dense(4, activation="relu"))(x)
    x = layers.SimpleRNN(5)(x)
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(lr=0.05, momentum=0.9, nesterov=True), "mse", metrics=["mae"])
    x = _random(32, 7, 5)
    x[::4, 4:] = 0
    return model, x, _random(32, 3)


def two_inputs_two_outputs(keras: Any) -> Case:
    layers = keras.layers
    words, numbers = keras.Input((6,), dtype="int32", name="words"), keras.Input((4,), name="numbers")
    x = layers.Embedding(20, 5)(words)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.concatenate([x, layers.Dense(5, activation="elu")(numbers)])
    shared = layers.Dense(6, activation="relu")
    x = layers.add([shared(x), shared(layers.multiply([x, x]))])
    kind = layers.Dense(3, activation="softmax", name="kind")(x)
    size = layers.Dense(1, name="size")(x)
    model = keras.models.Model(inputs=[words, numbers], outputs=[kind, size])
    model.compile(
        "rmsprop",
        loss={"kind": "sparse_categorical_crossentropy", "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.5},
        metrics={"kind": "accuracy", "size": "mae"},
    )
    x = {"words": np.random.RandomState(3).randint(0, 20, (32, 6)), "numbers": _random(32, 4)}
    return model, x, {"kind": _classes(3), "size": _random(32, 1)}


def autoencoder(keras: Any) -> Case:
    layers = keras.layers
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.ZeroPadding2D(1)(x)
    x = layers.Cropping2D(((1, 1), (1, 1)))(x)
    x = layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="selu")(x)
    x = layers.UpSampling2D(2)(x)
    x = layers.AveragePooling2D(2)(x)
    x = layers.SeparableConv2D(3, 3, padding="same", activation="relu")(x)
    x = layers.DepthwiseConv2D(3, padding="same")(x)
    x = layers.PReLU(shared_axes=[1, 2])(x)
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(0.005, amsgrad=True), "binary_crossentropy")
    x = np.random.RandomState(0).rand(32, 8, 8, 1).astype("float32")
    return model, x, x


def residual(keras: Any) -> Case:
    layers = keras.layers

    def block(x: Any, filters: int) -> Any:
        y = layers.Conv2D(filters, 3, padding="same", kernel_initializer="he_normal")(x)
        y = layers.BatchNormalization(axis=-1, momentum=0.9)(y)
        y = layers.ReLU(6.0)(y)
        y = layers.Conv2D(filters, 3, padding="same")(y)
        y = layers.BatchNormalization(scale=False)(y)
        return layers.Activation("relu")(layers.Add()([x, y]))

    inputs = layers.Input((8, 8, 3))
    x = layers.Conv2D(6, 3, padding="same")(inputs)
    x = block(block(x, 6), 6)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs=inputs, outputs=layers.Dense(4)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, decay=1e-2), loss, metrics=["accuracy"])
    return model, _random(32, 8, 8, 3), _classes(4)


def own_layer(keras: Any) -> Case:
    backend = keras.backend

    class Scaled(keras.layers.Layer):
        def __init__(self, units: int, **kwargs: Any) -> None:
            self.units = units
            super().__init__(**kwargs)

        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(
                name="kernel", shape=(int(input_shape[1]), self.units), initializer="uniform", trainable=True
            )
            super().build(input_shape)

        def call(self, x: Any) -> Any:
            return backend.dot(x, self.kernel) * backend.mean(x, axis=1, keepdims=True)

        def compute_output_shape(self, input_shape: Any) -> Any:
            return (input_shape[0], self.units)

    def weighted(y_true: Any, y_pred: Any) -> Any:
        return backend.mean(backend.square(y_pred - y_true) * 2.0 + backend.abs(y_true), axis=-1)

    def error(y_true: Any, y_pred: Any) -> Any:
        return backend.max(backend.abs(y_true - y_pred))

    model = keras.Sequential()
    model.add(Scaled(8, input_dim=10))
    model.add(keras.layers.Lambda(lambda x: backend.l2_normalize(x, axis=1)))
    model.add(keras.layers.Reshape((4, 2)))
    model.add(keras.layers.Permute((2, 1)))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(2, kernel_constraint=keras.constraints.max_norm(0.5)))
    model.compile(optimizer=keras.optimizers.Adagrad(lr=0.1), loss=weighted, metrics=[error])
    return model, _random(32, 10), _random(32, 2)


def subclass(keras: Any) -> Case:
    class Classifier(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="classifier")
            self.dense1 = keras.layers.Dense(16, activation="relu")
            self.blocks = [keras.layers.Dense(16, activation="relu") for _ in range(2)]
            self.normal = keras.layers.LayerNormalization()
            self.dense2 = keras.layers.Dense(4, activation="softmax")

        def call(self, inputs: Any, training: Any = None) -> Any:
            x = self.dense1(inputs)
            for block in self.blocks:
                x = x + block(x)
            return self.dense2(self.normal(x))

    model = Classifier()
    model.compile(keras.optimizers.Nadam(lr=0.002), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, _random(32, 12), _classes(4)


def siamese(keras: Any) -> Case:
    layers = keras.layers
    base = keras.Sequential([layers.Dense(8, activation="relu", input_shape=(6,)), layers.Dense(4)])
    left, right = keras.Input((6,)), keras.Input((6,))
    a, b = base(left), base(right)
    distance = layers.Lambda(
        lambda x: keras.backend.sqrt(keras.backend.sum(keras.backend.square(x[0] - x[1]), 1, True) + 1e-6)
    )([a, b])
    cosine = layers.dot([a, b], axes=1, normalize=True)
    x = layers.Concatenate()([distance, cosine, layers.subtract([a, b]), layers.maximum([a, b])])
    model = keras.Model([left, right], layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adadelta(lr=1.0), keras.losses.BinaryCrossentropy(), metrics=["accuracy"])
    return model, [_random(32, 6), _random(32, 6, seed=1)], _classes(2)


def sequence_tagger(keras: Any) -> Case:
    layers = keras.layers
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(30, 6, embeddings_initializer="glorot_uniform")(inputs)
    x = layers.Conv1D(6, 3, padding="causal", activation="relu", dilation_rate=2)(x)
    x, h, c = layers.LSTM(6, return_sequences=True, return_state=True, recurrent_activation="sigmoid")(x)
    x = layers.LSTM(6, return_sequences=True)(x, initial_state=[h, c])
    x = layers.RNN([layers.LSTMCell(5), layers.GRUCell(4, reset_after=True)], return_sequences=True)(x)
    model = keras.Model(inputs, layers.Dense(7, activation="softmax")(x))
    model.compile("adamax", "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
    tags = np.random.RandomState(5).randint(0, 7, (32, 8, 1))
    return model, np.random.RandomState(4).randint(0, 30, (32, 8)), tags


def frames(keras: Any) -> Case:
    layers = keras.layers
    options = {"recurrent_activation": "hard_sigmoid", "recurrent_initializer": "glorot_uniform"}
    model = keras.Sequential([
        layers.ConvLSTM2D(3, (3, 2), strides=2, return_sequences=True, input_shape=(4, 7, 6, 2), **options),
        layers.BatchNormalization(),
        layers.ConvLSTM2D(2, 3, padding="same", dilation_rate=2, go_backwards=True, **options),
        layers.Flatten(),
        layers.Dense(2, activation="softmax"),
    ])  # fmt: skip
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model, np.random.RandomState(6).rand(32, 4, 7, 6, 2), _classes(2)


def gan(keras: Any) -> Case:
    """The combined model of a generator and a frozen discriminator."""
    layers = keras.layers
    generator = keras.Sequential(
        [
            layers.Dense(8, input_dim=4),
            layers.BatchNormalization(momentum=0.8),
            layers.Dense(6, activation="tanh"),
        ]
    )
    discriminator = keras.Sequential(
        [layers.Dense(8, input_dim=6), layers.LeakyReLU(alpha=0.2), layers.Dense(1, activation="sigmoid")]
    )
    discriminator.compile("adam", "binary_crossentropy")
    z = keras.Input((4,))
    discriminator.trainable = False
    combined = keras.Model(z, discriminator(generator(z)))
    combined.compile(keras.optimizers.Adam(0.01, 0.5), "binary_crossentropy", metrics=["accuracy"])
    return combined, _random(32, 4), np.ones((32, 1))


def embedding(keras: Any, optimizer: str) -> Case:
    """Gradients of rows, of which some are equal: what each optimizer does with the other rows differs."""
    made = keras.optimizers
    chosen = {
        "momentum": lambda: made.SGD(0.1, momentum=0.9, nesterov=True),
        "rmsprop": lambda: made.RMSprop(0.01, momentum=0.9, centered=True),
        "adagrad": lambda: made.Adagrad(0.1),
        "adadelta": lambda: made.Adadelta(1.0),
        "adam": lambda: made.Adam(0.1, clipvalue=0.01, decay=0.1),
        "adamax": lambda: made.Adamax(0.1),
        "nadam": lambda: made.Nadam(0.1),
        "clipped": lambda: made.SGD(0.1, clipnorm=0.1),
    }[optimizer]()
    layers = keras.layers
    model = keras.Sequential([layers.Embedding(9, 3, input_length=4), layers.Flatten(), layers.Dense(1)])
    model.compile(chosen, "mse")
    return model, np.array([[0, 1, 1, 2], [3, 0, 0, 4]]), np.array([[1.0], [-1.0]])


CASES = {
    case.__name__: case
    for case in (
        mlp, cnn, lstm_text, gru_bidirectional, two_inputs_two_outputs, autoencoder, residual, own_layer,
        subclass, siamese, sequence_tagger, frames, gan,
    )
} | {
    f"embedding_{name}": functools.partial(embedding, optimizer=name)
    for name in ("momentum", "rmsprop", "adagrad", "adadelta", "adam", "adamax", "nadam", "clipped")
}  # fmt: skip


def run(keras: Any, name: str, weights: Any = None) -> tuple[list[Any], Any, Any]:
    """Initial weights, results of each step of training, and results of the evaluation after it."""
    model, x, y = CASES[name](keras)
    model.predict(x)  # a model that is a class has weights then
    if weights is not None:
        model.set_weights(weights)
    initial = model.get_weights()
    found = [np.ravel(model.train_on_batch(x, y)) for _ in range(STEPS)]
    return initial, np.array(found), np.ravel(model.evaluate(x, y, verbose=0))


METRICS = (
    "AUC", "BinaryAccuracy", "BinaryCrossentropy", "CosineSimilarity", "FalseNegatives", "FalsePositives",
    "Hinge", "KLDivergence", "LogCoshError", "MeanAbsolutePercentageError", "MeanSquaredError",
    "MeanSquaredLogarithmicError", "Poisson", "Precision", "Recall", "RootMeanSquaredError", "SquaredHinge",
    "TrueNegatives", "TruePositives",
)  # fmt: skip
LOSSES = (
    "binary_crossentropy", "categorical_crossentropy", "categorical_hinge", "cosine_similarity", "hinge",
    "kld", "logcosh", "mae", "mape", "mse", "msle", "poisson", "squared_hinge",
)  # fmt: skip


def measures(keras: Any) -> dict[str, Any]:
    """Every metric and loss of random values."""
    backend, random = keras.backend, np.random.RandomState(0)
    session, found = backend.get_session(), {}
    true, said = (random.rand(20, 1) > 0.5).astype("float32"), random.rand(20, 1).astype("float32")
    for name in METRICS:
        metric = getattr(keras.metrics, name)()
        update = metric.update_state(true, said)
        session.run([variable.initializer for variable in metric.variables])
        session.run(update)
        found[name] = session.run(metric.result())
    labels, scores = np.eye(3, dtype="float32")[random.randint(0, 3, 5)], random.rand(5, 3).astype("float32")
    for name in LOSSES:
        tensors = backend.constant(labels), backend.constant(scores)
        found[name] = session.run(keras.losses.get(name)(*tensors))
    return found


class _Theirs:
    """TensorFlow 1's Keras, with the optimizers that it had then."""

    def __init__(self, keras: Any) -> None:
        self._keras, self.optimizers = keras, keras.optimizers.legacy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keras, name)


if __name__ == "__main__":
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    keras = _Theirs(tf.compat.v1.keras)
    stored = np.load(sys.argv[1])
    results: dict[str, Any] = {}
    for case in sys.argv[3:]:
        keras.backend.clear_session()
        own = [stored[f"{case}/{i}"] for i in range(sum(key.startswith(f"{case}/") for key in stored.files))]
        _, results[f"{case}/steps"], results[f"{case}/end"] = run(keras, case, own)
    np.savez(sys.argv[2], **results, **measures(keras))
