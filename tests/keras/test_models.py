"""Models of `flowrt.keras`: built, trained, asked, saved, and used as a part of a graph."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import keras
from flowrt.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from flowrt.keras import backend as K
from flowrt.keras import layers

X = np.random.RandomState(0).normal(size=(50, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], np.float32) + 0.3


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def linear(**options: Any) -> keras.Sequential:
    model = keras.Sequential([layers.Dense(1, input_shape=(4,), **options)])
    model.compile(keras.optimizers.SGD(lr=0.1), "mse", metrics=["mae"])
    return model


def test_an_epoch_is_gradient_descent_and_its_loss_the_mean_over_samples(capsys: Any) -> None:
    model = linear(kernel_initializer="zeros")
    history = model.fit(X, Y, batch_size=32, epochs=2, shuffle=False)
    w, b, expected = np.zeros([4, 1]), 0.0, []
    for _ in range(2):
        total = 0.0
        for rows in (slice(0, 32), slice(32, 50)):
            x, error = X[rows], X[rows] @ w + b - Y[rows]
            total += float((error**2).sum())
            w, b = w - 0.1 * 2 * x.T @ error / len(x), b - 0.1 * 2 * error.mean()
        expected.append(total / 50)
    np.testing.assert_allclose(history.history["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-4)
    assert list(history.history) == ["loss", "mean_absolute_error"]
    assert history.epoch == [0, 1]
    shown = capsys.readouterr().out
    assert "Train on 50 samples" in shown
    assert "50/50 [==============================]" in shown


def test_names_and_numbers_are_tensorflows() -> None:
    model = keras.Sequential([layers.Conv2D(2, 3, input_shape=(5, 5, 1)), layers.BatchNormalization()])
    model.add(layers.Flatten())
    model.add(layers.Dense(3))
    assert [w.name for w in model.weights] == [
        "conv2d/kernel:0", "conv2d/bias:0", "batch_normalization/gamma:0", "batch_normalization/beta:0",
        "batch_normalization/moving_mean:0", "batch_normalization/moving_variance:0", "dense/kernel:0",
        "dense/bias:0",
    ]  # fmt: skip
    assert [len(model.trainable_weights), len(model.non_trainable_weights)] == [6, 2]
    assert model.count_params() == 20 + 8 + 57
    assert (model.input_shape, model.output_shape) == ((None, 5, 5, 1), (None, 3))
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    assert lines[-3:-1] == ["Trainable params: 81", "Non-trainable params: 4"]


def test_a_model_is_a_part_of_a_graph() -> None:
    model = keras.Sequential([layers.Dense(3, activation="relu", input_dim=4), layers.Dense(1)])
    x = tf.placeholder(tf.float32, [None, 4])
    loss = tf.reduce_mean(tf.square(model(x) - 1.0))
    gradients = tf.gradients(loss, model.trainable_weights)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(loss, {x: X})
        assert [g.shape for g in session.run(gradients, {x: X})] == [(4, 3), (3,), (3, 1), (1,)]
        session.run(train, {x: X})
        assert session.run(loss, {x: X}) < before
        np.testing.assert_allclose(model.predict(X), session.run(model(x), {x: X}), rtol=1e-5)


def test_optimizers_of_train_train_models() -> None:
    model = keras.Sequential([layers.Dense(1, input_dim=4)])
    model.compile(tf.train.AdamOptimizer(0.05), "mse")
    losses = model.fit(X, Y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    with pytest.raises(InvalidArgumentError, match=r"expected an optimizer of flowrt\.keras"):
        model.fit(X, Y, verbose=0, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])


def test_operations_between_layers_are_part_of_the_model() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, tf.exp(layers.Dense(2)(x) * 2.0) + 1.0)
    again = model(tf.constant(X))
    np.testing.assert_allclose(K.get_value(again), model.predict(X), rtol=1e-5)
    assert len(model.trainable_weights) == 2


def test_dropout_and_batch_statistics_are_those_of_training_only() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, layers.Dropout(0.5)(layers.BatchNormalization()(x)))
    steps = K.function([x, K.learning_phase()], [model.output])
    still, moving = steps([X, 0])[0], steps([X, 1])[0]
    np.testing.assert_allclose(still, X / np.sqrt(1.001), rtol=1e-5)
    assert 0.2 < (moving == 0).mean() < 0.8
    assert len(model.updates) == 2
    assert model.get_updates_for(None) == []


def test_frozen_layers_keep_their_weights() -> None:
    first = layers.Dense(3, input_dim=4)
    model = keras.Sequential([first, layers.Dense(1)])
    first.trainable = False
    model.compile("adam", "mse")
    before = model.get_weights()
    model.fit(X, Y, verbose=0)
    after = model.get_weights()
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [True, True, False, False]


def test_padding_that_is_masked_does_not_count() -> None:
    words = np.array([[3, 4, 0, 0], [1, 2, 3, 4]])
    x = keras.Input((None,), dtype="int32")
    model = keras.Model(x, layers.LSTM(5)(layers.Embedding(9, 3, mask_zero=True)(x)))
    padded, cut = model.predict(words), model.predict(words[:1, :2])
    np.testing.assert_allclose(padded[0], cut[0], rtol=1e-6)
    assert not np.allclose(padded[0], padded[1])


def test_weights_of_samples_and_classes_count_as_often() -> None:
    labels = np.arange(50) % 2
    model = keras.Sequential([layers.Dense(1, activation="sigmoid", input_dim=4)])
    model.compile("sgd", "binary_crossentropy")
    start = model.get_weights()
    by_class = model.train_on_batch(X, labels, class_weight={0: 1.0, 1: 3.0})
    model.set_weights(start)
    by_sample = model.train_on_batch(X, labels, sample_weight=1.0 + 2.0 * labels)
    assert by_class == pytest.approx(by_sample)
    model.set_weights(start)
    p = model.predict(X)[:, 0]
    each = -np.where(labels == 1, np.log(p), np.log(1 - p)) * (1 + 2 * labels)
    assert by_sample == pytest.approx(each.mean(), rel=1e-4)


def test_generators_and_sequences_feed_epochs() -> None:
    class Halves(keras.utils.Sequence):
        ended = 0

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return X[25 * index : 25 * index + 25], Y[25 * index : 25 * index + 25]

        def on_epoch_end(self) -> None:
            self.ended += 1

    def forever() -> Iterator[Any]:
        while True:
            yield X, Y

    model, data = linear(), Halves()
    assert len(model.fit(data, epochs=3, verbose=0).history["loss"]) == 3
    assert data.ended == 3
    history = model.fit_generator(forever(), steps_per_epoch=2, epochs=2, verbose=0, validation_data=(X, Y))
    assert len(history.history["val_loss"]) == 2
    assert model.evaluate_generator(forever(), steps=1)[0] == pytest.approx(
        model.evaluate(X, Y, verbose=0)[0]
    )
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(25).repeat()
    model.fit(dataset, steps_per_epoch=2, epochs=2, verbose=0)


def test_each_step_takes_all_of_the_arrays() -> None:
    """`steps_per_epoch` with arrays, as in TensorFlow 1.15: a batch is the whole of them."""
    one, other = linear(kernel_initializer="zeros"), linear(kernel_initializer="zeros")
    found = one.fit(X, Y, steps_per_epoch=3, verbose=0, validation_data=(X, Y), validation_steps=2).history
    whole = other.fit(X, Y, batch_size=50, epochs=3, verbose=0).history
    assert found["loss"] == [pytest.approx(np.mean(whole["loss"]), rel=1e-5)]
    np.testing.assert_allclose(one.get_weights()[0], other.get_weights()[0], rtol=1e-5)
    assert found["val_loss"] == [pytest.approx(one.evaluate(X, Y, steps=2, verbose=0)[0], rel=1e-5)]
    assert one.predict(X, steps=2).shape == (100, 1)


def test_callbacks_end_training_and_change_rates(tmp_path: Path) -> None:
    model = linear()
    rates: list[float] = []
    log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "w-{epoch}"), monitor="loss", save_best_only=True, save_weights_only=True
    )
    halve = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * 0.5**epoch)
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rates.append(logs["lr"]))
    board = keras.callbacks.TensorBoard(str(tmp_path / "logs"))
    stop = keras.callbacks.EarlyStopping(monitor="loss", min_delta=100.0, patience=2)
    history = model.fit(X, Y, epochs=9, verbose=0, callbacks=[halve, note, log, best, board, stop])
    assert history.epoch == [0, 1, 2]
    assert rates == pytest.approx([0.1, 0.05, 0.025])
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "epoch,loss,lr,mean_absolute_error"
    assert (tmp_path / "w-1.index").exists()
    assert any((tmp_path / "logs").iterdir())


def test_saved_weights_and_architecture_make_the_same_model(tmp_path: Path) -> None:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = layers.Dense(3, activation="tanh", kernel_regularizer=keras.regularizers.l2(0.1))
    merged = layers.concatenate([shared(a), layers.Dropout(0.5)(shared(b))])
    inner = keras.Sequential(
        [layers.Dense(2, kernel_initializer="he_normal", input_shape=(6,)), layers.ReLU(6.0)]
    )
    model = keras.Model([a, b], [inner(merged), layers.Dense(1)(merged)])
    model.save_weights(str(tmp_path / "weights"))
    text = model.to_json()
    expected = model.predict([X, -X])
    for make in (lambda: keras.models.model_from_json(text), lambda: keras.models.clone_model(model)):
        copy = make()
        assert [layer.name for layer in copy.layers] == [layer.name for layer in model.layers]
        copy.load_weights(str(tmp_path / "weights"))
        for found, wanted in zip(copy.predict([X, -X]), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert tf.train.load_checkpoint(str(tmp_path / "weights")).has_tensor(
        "layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    )


def test_copies_have_layers_of_their_own() -> None:
    x = keras.Input((5, 3))
    y = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(x)
    y = layers.TimeDistributed(layers.Dense(3, activation=lambda v: v * 2.0))(y)
    y = layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)])(y)
    model = keras.Model(x, layers.Lambda(lambda v: v + 1.0)(y))
    copy = keras.models.clone_model(model)
    assert not set(copy.weights) & set(model.weights)
    copy.set_weights(model.get_weights())
    data = np.random.RandomState(2).normal(size=(4, 5, 3))
    np.testing.assert_allclose(copy.predict(data), model.predict(data), rtol=1e-6)
    assert model.layers[1].compute_output_shape((None, 7, 3)).as_list() == [None, 7, 4]


def test_a_model_comes_back_from_hdf5(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    model, path = linear(kernel_regularizer="l2"), str(tmp_path / "model.h5")
    model.fit(X, Y, verbose=0)
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.train_on_batch(X, Y) == pytest.approx(model.train_on_batch(X, Y))
    model.save_weights(path)
    loaded.load_weights(path, by_name=True)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_without_h5py_hdf5_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UnimplementedError, match="expected h5py"):
        linear().save(str(tmp_path / "model.h5"))


def test_misuse_is_named() -> None:
    model = linear()
    other = keras.Input((3,))
    for call, error, message in (
        (lambda: keras.Sequential([layers.Dense(1)]).fit(X, Y), InvalidArgumentError, "compile"),
        (lambda: keras.Sequential([layers.Dense(1)]).weights, InvalidArgumentError, "input_shape"),
        (lambda: model.fit(X), InvalidArgumentError, "expected targets"),
        (lambda: model.fit(X, Y[:7]), InvalidArgumentError, "one number of samples; got 7, 50"),
        (lambda: model.fit([X, X], Y), InvalidArgumentError, "expected 1 arrays"),
        (lambda: model.fit(X, np.ones([50, 3]), verbose=0), InvalidArgumentError, "target"),
        (lambda: model.compile("nosuch", "mse"), InvalidArgumentError, "optimizer: expected a known name"),
        (lambda: model.load_weights("/nowhere/w"), NotFoundError, "there is none at /nowhere/w"),
        (lambda: model.set_weights([1]), InvalidArgumentError, "expected 2 arrays; got 1"),
        (lambda: layers.Dense(3, aktivation="relu"), TypeError, "aktivation"),
        (lambda: keras.Model(keras.Input((3,)), layers.Dense(1)(other)), InvalidArgumentError, "missing"),
        (lambda: model.get_layer("nosuch"), InvalidArgumentError, "expected one of dense"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_convolutional_lstm_of_single_pixels_is_an_lstm(data_format: str) -> None:
    x = np.random.RandomState(0).normal(size=(2, 4, 3, 3, 5)).astype("float32")
    first = data_format == "channels_first"
    images = np.moveaxis(x, 4, 2) if first else x
    options = {"data_format": data_format, "recurrent_initializer": "glorot_uniform"}
    frames = keras.Sequential(
        [layers.ConvLSTM2D(6, 1, return_sequences=True, input_shape=images.shape[1:], **options)]
    )
    pixels = keras.Sequential([layers.LSTM(6, return_sequences=True, input_shape=(4, 5))])
    pixels.set_weights([w[0, 0] if w.ndim == 4 else w for w in frames.get_weights()])
    expected = pixels.predict(x.transpose(0, 2, 3, 1, 4).reshape(18, 4, 5)).reshape(2, 3, 3, 4, 6)
    found = frames.predict(images)
    np.testing.assert_allclose(
        np.moveaxis(found, 2, 4) if first else found, expected.transpose(0, 3, 1, 2, 4), atol=1e-5
    )


def test_a_convolutional_lstm_with_dropout_trains() -> None:
    x = np.random.RandomState(0).normal(size=(8, 3, 5, 4, 2)).astype("float32")
    model = keras.Sequential([
        layers.ConvLSTM2D(3, 2, strides=(2, 1), dropout=0.2, recurrent_dropout=0.2, input_shape=x.shape[1:]),
        layers.Flatten(),
        layers.Dense(1),
    ])  # fmt: skip
    assert model.layers[0].output_shape == (None, 2, 3, 3)
    model.compile("sgd", "mse")
    before = model.evaluate(x, np.ones((8, 1)), verbose=0)
    model.fit(x, np.ones((8, 1)), epochs=4, verbose=0)
    assert model.evaluate(x, np.ones((8, 1)), verbose=0) < before
    with pytest.raises(UnimplementedError, match="stateful=True is not supported"):
        layers.ConvLSTM2D(3, 2, stateful=True, batch_input_shape=(8, 3, 5, 4, 2))(tf.constant(x))


def test_functions_of_the_backend() -> None:
    """Values by hand: 3 of 9 paths give one label in two steps; a causal window sees no later step."""
    third = np.full([1, 2, 3], 1 / 3)
    one = K.constant([[1]], dtype="int32")
    steps = K.constant([[[1.0], [2.0], [3.0]]])
    dense, score = K.ctc_decode(K.constant([[[0.1, 0.7, 0.2], [0.1, 0.2, 0.7]]]), K.constant([2]))
    fetched = {
        "ctc": K.ctc_batch_cost(one, K.constant(third), 2 * one, one),
        "decoded": dense[0],
        "score": score,
        "causal": K.conv1d(steps, np.ones([2, 1, 1], "float32"), padding="causal", dilation_rate=2),
        "volume": K.pool3d(K.ones([1, 2, 2, 2, 1]), (2, 2, 2), pool_mode="avg"),
        "padded": K.shape(K.spatial_3d_padding(K.zeros([1, 2, 2, 2, 1]), ((1, 0), (0, 2), (3, 0)))),
        "grown": K.shape(K.conv2d_transpose(K.ones([1, 3, 3, 1]), K.ones([2, 2, 5, 1]), (None, 4, 4, 5))),
    }
    found = K.get_session().run(fetched)
    np.testing.assert_allclose(found["ctc"], [[np.log(3)]], rtol=1e-5)
    np.testing.assert_array_equal(found["decoded"], [[1]])
    np.testing.assert_allclose(found["score"], [[-2 * np.log(0.7)]], rtol=1e-5)
    np.testing.assert_array_equal(found["causal"][0, :, 0], [1, 2, 4])
    np.testing.assert_array_equal(found["volume"].ravel(), [1])
    np.testing.assert_array_equal(found["padded"], [1, 3, 4, 5, 1])
    np.testing.assert_array_equal(found["grown"], [1, 4, 4, 5])


def test_random_layers_draw_their_seeds_from_numpy() -> None:
    """The order of batches, which NumPy draws too, depends on it, as in TensorFlow."""
    np.random.seed(7)
    keras.Sequential([layers.LSTM(2, dropout=0.1, recurrent_dropout=0.1, input_shape=(3, 2))])
    after = np.random.rand()
    expected = np.random.RandomState(7)
    expected.randint(10_000_000, size=8)  # two masks for each of four gates
    assert after == expected.rand()


def test_the_order_of_a_sequence_is_that_of_a_seed() -> None:
    class Numbers(keras.utils.Sequence):
        seen: list[int] = []  # noqa: RUF012

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            self.seen.append(index)
            return np.ones([1, 1]), np.ones([1, 1])

    model = keras.Sequential([layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    random.seed(3)
    model.fit_generator(Numbers(), verbose=0)
    expected = list(range(6))
    random.Random(3).shuffle(expected)
    assert Numbers.seen == expected


def test_the_order_of_an_epoch_is_tensorflows() -> None:
    """TensorFlow 1.15 shuffles the arrays of a validation, too: the second epoch has another order."""
    x = np.arange(20).reshape(20, 1) / 20
    losses: list[float] = []
    noted = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    model = keras.Sequential([layers.Dense(1, input_shape=(1,), kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    np.random.seed(0)
    options: dict[str, Any] = {"batch_size": 8, "verbose": 0, "callbacks": [noted]}
    model.fit(x, (3 * x) ** 2, epochs=2, validation_data=(x[:5], (3 * x[:5]) ** 2), **options)
    np.testing.assert_allclose(losses, [17.32135, 3.17296, 3.12871, 6.74696, 3.8933, 2.39056], rtol=1e-5)


def test_an_epoch_cut_short_is_not_validated() -> None:
    model = keras.Sequential([layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    stop = keras.callbacks.LambdaCallback(on_batch_end=lambda *_: setattr(model, "stop_training", True))
    x = np.ones((4, 1))
    assert set(model.fit(x, x, verbose=0, validation_data=(x, x), callbacks=[stop]).history) == {"loss"}


def test_training_ends_with_a_generator_that_ends_early(caplog: pytest.LogCaptureFixture) -> None:
    model = keras.Sequential([layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    x = np.ones((4, 1))
    history = model.fit_generator(iter([(x, x)] * 2), steps_per_epoch=3, epochs=2, verbose=0)
    assert history.epoch == [0]
    assert "expected 3 batches in epoch 1; there were 2" in caplog.text


def test_a_validation_split_weights_classes_once() -> None:
    x, y = np.arange(8.0)[:, None], np.eye(2)[np.arange(8) % 2]
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, "softmax", input_shape=(1,))])
    model.compile(tf.keras.optimizers.SGD(0.0), "categorical_crossentropy")
    losses = -np.log((model.predict(x) * y).sum(1)) * np.where(np.arange(8) % 2, 3.0, 1.0)
    history = model.fit(x, y, validation_split=0.5, class_weight={0: 1.0, 1: 3.0}, verbose=0).history
    np.testing.assert_allclose(history["loss"] + history["val_loss"], losses.reshape(2, 4).mean(1), rtol=1e-5)
