"""``flowrt.keras.callbacks``: what happens between the steps and epochs of `Model.fit`."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from flowrt.graph.source import misuse
from flowrt.keras.progress_bar import Progbar
from flowrt.keras.state.sessions import get_session, get_value, set_value
from flowrt.logging import info, warning
from flowrt.protos.event_pb2 import Summary
from flowrt.summary.writer import FileWriter

Logs = Mapping[str, Any] | None


class Callback:
    """Base of the callbacks: its methods are called by `fit`, `evaluate` and `predict`; all do nothing.

    ``model`` and ``params`` (epochs, steps, samples, batch_size, verbose, metrics) are set before.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.params: dict[str, Any] = {}
        self.validation_data: Any = None

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params

    def set_model(self, model: Any) -> None:
        self.model = model

    def on_train_begin(self, logs: Logs = None) -> None: ...
    def on_train_end(self, logs: Logs = None) -> None: ...
    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None: ...
    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None: ...
    def on_batch_begin(self, batch: int, logs: Logs = None) -> None: ...
    def on_batch_end(self, batch: int, logs: Logs = None) -> None: ...

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs = None) -> None: ...
    def on_test_end(self, logs: Logs = None) -> None: ...
    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None: ...
    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None: ...
    def on_predict_begin(self, logs: Logs = None) -> None: ...
    def on_predict_end(self, logs: Logs = None) -> None: ...
    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None: ...
    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None: ...


class CallbackList:
    """Several callbacks as one: ``list.on_epoch_end(...)`` calls each in order."""

    def __init__(self, callbacks: Sequence[Any], model: Any, params: dict[str, Any]) -> None:
        self.callbacks, self.model = list(callbacks), model
        for callback in self.callbacks:
            if isinstance(callback, type) or not hasattr(callback, "set_model"):
                raise misuse(f"callbacks: expected objects with the methods of Callback; got {callback!r}")
            callback.set_model(model)
            callback.set_params(params)
        self._methods: dict[str, list[Callable[..., None]]] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        methods = self._methods.setdefault(
            name, [getattr(c, name) for c in self.callbacks if _overrides(c, name)]
        )

        def call(*args: Any) -> None:
            for method in methods:
                method(*args)

        return call


def _overrides(callback: Any, name: str) -> bool:
    """Whether ``callback`` does something in the method ``name``; others are not called each step."""
    own = getattr(type(callback), name, None) is not getattr(Callback, name)
    older = name.replace("train_batch", "batch")
    return own or name in vars(callback) or (older != name and _overrides(callback, older))


class History(Callback):
    """The results of all epochs, as ``history["loss"]``; ``epoch`` has the numbers of the epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[Any]] = {}

    def on_train_begin(self, logs: Logs = None) -> None:
        self.epoch = []
        self.history = {}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.epoch.append(epoch)
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(value)


class BaseLogger(Callback):
    """Accepted: `fit` itself averages the results."""

    def __init__(self, stateful_metrics: Any = None) -> None:
        super().__init__()


class ProgbarLogger(Callback):
    """A bar of samples, or of steps where the number of samples is not known, with the results so far."""

    def __init__(self, count_mode: str = "samples", stateful_metrics: Any = None) -> None:
        super().__init__()
        self._by_samples = count_mode == "samples"

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        verbose, epochs = self.params["verbose"], self.params["epochs"]
        if epochs > 1 and verbose:
            print(f"Epoch {epoch + 1}/{epochs}")
        target = self.params["samples"] if self._by_samples else self.params["steps"]
        names = [name for name in self.params["metrics"] if name not in ("loss", "val_loss")]
        unit = "sample" if self._by_samples else "step"
        self._bar = Progbar(target, verbose=verbose, stateful_metrics=names, unit_name=unit)
        self._seen = 0

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        logs = logs or {}
        self._seen += int(logs["size"]) if self._by_samples else 1
        if self._bar.target is None or self._seen < self._bar.target:
            self._bar.update(self._seen, [(k, logs[k]) for k in self.params["metrics"] if k in logs])

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        logs = logs or {}
        self._bar.stateful = set(self.params["metrics"])  # the epoch's own results, validation included
        self._bar.update(
            self._seen, [(k, logs[k]) for k in self.params["metrics"] if k in logs], finalize=True
        )


class LambdaCallback(Callback):
    """Functions as a callback: ``LambdaCallback(on_epoch_end=lambda epoch, logs: ...)``."""

    def __init__(self, **functions: Callable[..., Any] | None) -> None:
        super().__init__()
        for name, function in functions.items():
            if function is not None:
                setattr(self, name, function)


class TerminateOnNaN(Callback):
    """Ends training when the loss is no finite number."""

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not np.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training")
            self.model.stop_training = True


class _Monitor:
    """The best result so far, by ``mode`` the largest or smallest: "auto" goes by the name of the result."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        up = mode == "max" or (
            mode not in ("min", "max") and ("acc" in monitor or monitor.startswith("fmeasure"))
        )
        self.monitor, self._sign, self._delta = monitor, 1 if up else -1, abs(min_delta)
        self.reset()

    def reset(self) -> None:
        self.best = -self._sign * np.inf

    def value(self, logs: Logs, who: str) -> Any:
        """The result in ``logs``, or None with a warning."""
        found = (logs or {}).get(self.monitor)
        if found is None:
            warning(
                "%s: expected %r among the results; there are %s", who, self.monitor, ",".join(logs or {})
            )
        return found

    def improved(self, value: Any) -> bool:
        return bool(self._sign * (value - self.best) > self._delta)


class EarlyStopping(Callback):
    """Ends training after ``patience`` epochs in a row without an improvement of ``monitor`` by
    ``min_delta``.

    With ``baseline`` the first best is that; ``restore_best_weights`` goes back to the weights of the best
    epoch.
    """

    def __init__(
        self, monitor: str = "val_loss", min_delta: float = 0, patience: int = 0, verbose: int = 0,
        mode: str = "auto", baseline: float | None = None, restore_best_weights: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.monitor, self.patience, self.verbose, self.baseline = monitor, patience, verbose, baseline
        self.restore_best_weights = restore_best_weights
        self._watch = _Monitor(monitor, mode, min_delta)
        self.wait = self.stopped_epoch = 0
        self.best_weights: Any = None

    @property
    def best(self) -> Any:
        return self._watch.best

    def on_train_begin(self, logs: Logs = None) -> None:
        self.wait = self.stopped_epoch = 0
        self._watch.reset()
        if self.baseline is not None:
            self._watch.best = self.baseline

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        current = self._watch.value(logs, "EarlyStopping")
        if current is None:
            return
        if self._watch.improved(current):
            self._watch.best, self.wait = current, 0
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.stopped_epoch = epoch
            self.model.stop_training = True
            if self.restore_best_weights and self.best_weights is not None:
                self.model.set_weights(self.best_weights)

    def on_train_end(self, logs: Logs = None) -> None:
        if self.stopped_epoch > 0 and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1:05d}: early stopping")


class ModelCheckpoint(Callback):
    """Saves the model, or its weights, at the end of epochs, to ``filepath`` with ``{epoch}`` and results in
    it.

    ``save_freq`` is "epoch" or a number of samples; ``period`` a number of epochs.
    """

    def __init__(
        self, filepath: str, monitor: str = "val_loss", verbose: int = 0, save_best_only: bool = False,
        save_weights_only: bool = False, mode: str = "auto", save_freq: str | int = "epoch", period: int = 1,
        **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.filepath, self.monitor, self.verbose = os.fspath(filepath), monitor, verbose
        self.save_best_only, self.save_weights_only = save_best_only, save_weights_only
        self.save_freq, self.period = save_freq, period
        self._watch, self._epochs, self._samples, self._epoch = _Monitor(monitor, mode), 0, 0, 0

    @property
    def best(self) -> Any:
        return self._watch.best

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self.save_freq == "epoch":
            return
        self._samples += int((logs or {}).get("size", 1))
        if self._samples >= int(self.save_freq):
            self._samples = 0
            self._save(self._epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._epochs += 1
        if self.save_freq == "epoch" and self._epochs >= self.period:
            self._epochs = 0
            self._save(epoch, logs)

    def _save(self, epoch: int, logs: Logs) -> None:
        try:
            path = self.filepath.format(epoch=epoch + 1, **(logs or {}))
        except (KeyError, IndexError):
            known = ", ".join(["epoch", *(logs or {})])
            raise misuse(
                f"ModelCheckpoint: filepath: expected fields among {known}; got {self.filepath!r}"
            ) from None
        if self.save_best_only:
            current = self._watch.value(logs, "ModelCheckpoint")
            if current is None:
                return
            if not self._watch.improved(current):
                if self.verbose:
                    print(f"\nEpoch {epoch + 1:05d}: {self.monitor} did not improve from {self.best:0.5f}")
                return
            if self.verbose:
                print(
                    f"\nEpoch {epoch + 1:05d}: {self.monitor} improved from {self.best:0.5f}"
                    f" to {current:0.5f}, saving model to {path}"
                )
            self._watch.best = current
        elif self.verbose:
            print(f"\nEpoch {epoch + 1:05d}: saving model to {path}")
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)


class LearningRateScheduler(Callback):
    """Sets the learning rate before each epoch to ``schedule(epoch)`` or ``schedule(epoch, rate)``."""

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        self.schedule, self.verbose = schedule, verbose

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        rate = _rate(self.model, "LearningRateScheduler")
        try:
            value = self.schedule(epoch, float(get_value(rate)))
        except TypeError:  # a schedule of the epoch alone
            value = self.schedule(epoch)
        if not isinstance(value, (float, np.floating, np.integer, int)):
            raise misuse(f"LearningRateScheduler: expected a schedule that returns a number; got {value!r}")
        set_value(rate, value)
        if self.verbose:
            print(f"\nEpoch {epoch + 1:05d}: LearningRateScheduler reducing learning rate to {value}.")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if isinstance(logs, dict):
            logs["lr"] = float(get_value(_rate(self.model, "LearningRateScheduler")))


def _rate(model: Any, who: str) -> Any:
    """The variable of the learning rate. Raises `InvalidArgumentError` for an optimizer of `flowrt.train`."""
    rate = getattr(model.optimizer, "lr", None)
    if rate is None:
        raise misuse(f"{who}: expected an optimizer of flowrt.keras; got {model.optimizer!r}")
    return rate


class ReduceLROnPlateau(Callback):
    """Multiplies the learning rate by ``factor`` after ``patience`` epochs without an improvement."""

    def __init__(
        self, monitor: str = "val_loss", factor: float = 0.1, patience: int = 10, verbose: int = 0,
        mode: str = "auto", min_delta: float = 1e-4, cooldown: int = 0, min_lr: float = 0.0, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if factor >= 1.0:
            raise misuse(f"ReduceLROnPlateau: expected a factor below 1; got {factor}")
        self.monitor, self.factor, self.patience, self.verbose = monitor, factor, patience, verbose
        self.cooldown, self.min_lr = cooldown, min_lr
        self._watch = _Monitor(monitor, mode, min_delta)
        self.wait = self.cooldown_counter = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        self._watch.reset()
        self.wait = self.cooldown_counter = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rate = _rate(self.model, "ReduceLROnPlateau")
        if isinstance(logs, dict):
            logs["lr"] = float(get_value(rate))
        current = self._watch.value(logs, "ReduceLROnPlateau")
        if current is None:
            return
        if self.cooldown_counter > 0:
            self.cooldown_counter, self.wait = self.cooldown_counter - 1, 0
        if self._watch.improved(current):
            self._watch.best, self.wait = current, 0
        elif self.cooldown_counter <= 0:
            self.wait += 1
            old = float(get_value(rate))
            if self.wait >= self.patience and old > self.min_lr:
                new = max(old * self.factor, self.min_lr)
                set_value(rate, new)
                if self.verbose:
                    print(f"\nEpoch {epoch + 1:05d}: ReduceLROnPlateau reducing learning rate to {new}.")
                self.cooldown_counter, self.wait = self.cooldown, 0


class CSVLogger(Callback):
    """Appends the results of each epoch to a file, a line each, below a line of their names."""

    def __init__(self, filename: str, separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self.filename, self.sep, self.append = filename, separator, append
        self._file: TextIO | None = None
        self._keys: list[str] | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        has_header = self.append and os.path.exists(self.filename) and os.path.getsize(self.filename) > 0
        self._file = open(self.filename, "a" if self.append else "w", newline="")  # noqa: SIM115  until the end
        self._header_due, self._keys = not has_header, None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        logs = logs or {}
        assert self._file is not None
        if self._keys is None:
            self._keys = sorted(logs)
        writer = csv.DictWriter(self._file, ["epoch", *self._keys], delimiter=self.sep, extrasaction="ignore")
        if self._header_due:
            writer.writeheader()
            self._header_due = False
        writer.writerow({"epoch": epoch, **{key: logs.get(key, "NA") for key in self._keys}})
        self._file.flush()

    def on_train_end(self, logs: Logs = None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard(Callback):
    """Writes the results of each epoch, and with ``write_graph`` the graph, for TensorBoard.

    ``update_freq`` "batch", or a number of samples, also writes those of steps, as "batch_loss" and so on.
    The other arguments of Keras are accepted; histograms, images and embeddings are not written.
    """

    def __init__(
        self, log_dir: str = "logs", histogram_freq: int = 0, batch_size: int = 32, write_graph: bool = True,
        write_grads: bool = False, write_images: bool = False, embeddings_freq: int = 0,
        embeddings_layer_names: Any = None, embeddings_metadata: Any = None, embeddings_data: Any = None,
        update_freq: str | int = "epoch", profile_batch: int = 2, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.log_dir, self.write_graph = os.fspath(log_dir), write_graph
        self.update_freq = 1 if update_freq == "batch" else update_freq
        self.writer: FileWriter | None = None
        self._samples = self._written = self._steps = 0
        if histogram_freq or embeddings_freq or write_images:
            info("TensorBoard: histograms, images and embeddings are not written")

    def on_train_begin(self, logs: Logs = None) -> None:
        self.writer = FileWriter(self.log_dir, get_session().graph if self.write_graph else None)

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self.update_freq == "epoch":
            return
        self._samples += int((logs or {}).get("size", 1))
        self._steps += 1
        if self._samples - self._written >= int(self.update_freq):
            self._written = self._samples
            self._write("batch_", logs, self._steps)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._write("epoch_", logs, epoch)
        assert self.writer is not None
        self.writer.flush()

    def _write(self, prefix: str, logs: Logs, step: int) -> None:
        results = {k: v for k, v in (logs or {}).items() if k not in ("batch", "size", "num_steps")}
        values = [
            Summary.Value(tag=prefix + key, simple_value=float(value)) for key, value in results.items()
        ]
        assert self.writer is not None
        self.writer.add_summary(Summary(value=values), step)

    def on_train_end(self, logs: Logs = None) -> None:
        if self.writer is not None:
            self.writer.close()
