"""`Model`: a network that is compiled, trained, evaluated and asked.

A step is one call of a session's callable: batches, targets, weights and the learning phase in; loss, results
of metrics and, in training, the update of the weights out.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrt.dtypes import as_dtype, float64
from flowrt.errors import UnimplementedError, nearest
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.source import misuse
from flowrt.keras import optimizers
from flowrt.keras.callbacks import CallbackList, History, ProgbarLogger
from flowrt.keras.engine.batches import Batch, Batches, Form, GeneratorBatches, Items, as_batches, summary
from flowrt.keras.engine.network import Network
from flowrt.keras.engine.nodes import one_or_list
from flowrt.keras.engine.objective import Objective, Settings, add_measure, make_objective
from flowrt.keras.engine.summary_table import print_summary
from flowrt.keras.engine.training_loop import evaluate_loop, fit_loop, predict_loop
from flowrt.keras.metrics import reset
from flowrt.keras.saving import model_files, weight_files
from flowrt.keras.state.graph_state import tracked
from flowrt.keras.state.sessions import get_session, learning_phase
from flowrt.keras.state.settings import floatx
from flowrt.nest import flatten


class Model(Network):
    """A model: of layers, ``Model(inputs, outputs)``, or a subclass with ``call``.

    `compile` says how it learns; `fit`, `evaluate` and `predict` run it on arrays, generators, `Sequence`s or
    `flowrt.data` datasets. Called, it is a layer: ``model(tensor)``.

    Args:
        args: ``inputs`` and ``outputs``: tensors of `keras.Input` and of layers, or lists of them.
        kwargs: The same by name, and the model's ``name``.

    Example:
        >>> x = tf.keras.Input([4])
        >>> model = tf.keras.Model(x, tf.keras.layers.Dense(1)(x))
        >>> model.compile('sgd', 'mse')
        >>> history = model.fit(np.ones([8, 4]), np.ones([8, 1]), epochs=3, verbose=0)
        >>> len(history.history['loss'])
        3
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizer: Any = None
        self.stop_training = False
        self._settings: Settings | None = None
        self._objective: Objective | None = None
        self._more_measures: list[tuple[Any, Any]] = []
        self._steps: dict[str, Callable[..., Any]] = {}

    # --- what it learns

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        sample_weight_mode: Any = None,
        weighted_metrics: Any = None,
        target_tensors: Any = None,
        **options: Any,
    ) -> None:
        """Set how the model is trained and measured.

        ``optimizer`` is a name, one of `flowrt.keras.optimizers` or of `flowrt.train`; ``loss`` a name, a
        function of true and predicted values, or a list or dict of them, one for each output; ``metrics``
        likewise.
        """
        for name in _NOT_SUPPORTED:
            if options.get(name):
                raise UnimplementedError(f"compile: {name}={options[name]!r} is not supported")
        _refuse_others("compile", options, self.compile, (*_WITHOUT_EFFECT, *_NOT_SUPPORTED))
        self.optimizer = optimizers.get(optimizer)
        self.loss = loss
        self._settings = Settings(
            loss, metrics, loss_weights, sample_weight_mode, weighted_metrics, target_tensors
        )
        self._objective, self._steps = None, {}
        self._trained = list(self.trainable_weights) if self._is_graph_network else None
        if self.outputs is not None:
            self._make_objective()

    def _make_objective(self) -> Objective:
        """Loss and metrics, once the outputs are known. Raises `InvalidArgumentError` before `compile`."""
        if self._settings is None:
            raise misuse(f"model {self.name!r}: expected a call of compile() before")
        if self._objective is None:
            assert self.outputs is not None
            assert self.inputs is not None
            losses = [*self.get_losses_for(None), *self.get_losses_for(self.inputs)]
            with get_default_graph().root.as_default():
                made = make_objective(self.outputs, self.output_names, self._settings, losses)
                for metric, value in self._more_measures:
                    add_measure(made, metric, value)
            self._objective = made
        return self._objective

    def add_metric(self, value: Any, aggregation: str | None = None, name: str | None = None) -> None:
        """Measure the mean of a tensor of the model over batches, once the model is compiled.

        Raises `UnimplementedError` for an ``aggregation`` other than "mean".
        """
        if aggregation != "mean":
            raise misuse(f"add_metric: expected aggregation='mean'; got {aggregation!r}", UnimplementedError)
        self._more_measures.append((name or "metric", value))

    @property
    def metrics_names(self) -> list[str]:
        """The names of what `evaluate` returns."""
        return self._make_objective().names

    @property
    def metrics(self) -> list[Any]:
        return [] if self._objective is None else list(self._objective.metrics)

    @property
    def total_loss(self) -> Tensor | None:
        """The scalar that training minimizes."""
        return None if self._objective is None else self._objective.total_loss

    @property
    def targets(self) -> list[Any]:
        return [] if self._objective is None else [t for t in self._objective.targets if t is not None]

    @property
    def sample_weights(self) -> list[Any]:
        return [] if self._objective is None else [t for t in self._objective.sample_weights if t is not None]

    # --- a step

    def _fed_inputs(self) -> list[Tensor]:
        assert self.inputs is not None
        return [t for t in self.inputs if t.op.type == "Placeholder"]

    def _form(self, with_targets: bool, class_weight: Any = None) -> Form:
        assert self.inputs is not None
        fed = self._fed_inputs()
        names = [name for name, t in zip(self.input_names, self.inputs, strict=True) if t in fed]
        ranks: list[int | None] = []
        output_names: list[str] = []
        if with_targets:
            objective = self._make_objective()
            output_names = self.output_names
            ranks = [
                (t.shape.ndims or 2) if t is not None and is_fed else None
                for t, is_fed in zip(objective.targets, objective.fed, strict=True)
            ]
        form = Form(names, [t.shape.ndims for t in fed], output_names, ranks, class_weight)
        targets = self._make_objective().targets if with_targets else []
        form.shapes.update({("input", name): t.shape for name, t in zip(names, fed, strict=True)})
        for name, target in zip(output_names, targets, strict=True):
            if target is not None:
                form.shapes["target", name] = target.shape
        return form

    def _step(self, kind: str) -> Callable[[Batch], list[Any]]:
        """One run of the session for a batch: "train", "test" or "predict"."""
        assert self.outputs is not None
        if kind not in self._steps:
            self._steps[kind] = self._make_step(kind)
        return self._steps[kind]

    def _make_step(self, kind: str) -> Callable[[Batch], list[Any]]:
        assert self.outputs is not None
        inputs = self._fed_inputs()
        if kind == "predict":
            return _Step(self.outputs, self.state_updates, inputs, [], [], training=False)
        objective = self._make_objective()
        assert objective.total_loss is not None
        targets = [
            t for t, is_fed in zip(objective.targets, objective.fed, strict=True) if is_fed and t is not None
        ]
        weights = [
            w
            for w, is_fed in zip(objective.sample_weights, objective.fed, strict=True)
            if is_fed and w is not None
        ]
        updates = list(objective.updates)
        if kind == "train":
            updates += self._training_updates(objective.total_loss)
        else:
            updates += self.state_updates
        fetches = [objective.total_loss, *objective.measures.values()]
        return _Step(fetches, updates, inputs, targets, weights, training=kind == "train")

    def _training_updates(self, loss: Tensor) -> list[Operation]:
        """The updates of the trainable weights, and those of the layers."""
        weights = self._trained if self._trained is not None else self.trainable_weights
        updates = [*self.get_updates_for(None), *self.get_updates_for(self.inputs)]
        if weights:
            graph = get_default_graph().root
            with graph.as_default(), graph.name_scope("training"):
                if isinstance(self.optimizer, optimizers.Optimizer):
                    updates += self.optimizer.get_updates(loss, weights)
                else:
                    updates.append(self.optimizer.minimize(loss, var_list=weights))
                    for variable in self.optimizer.variables():
                        tracked(variable)
        return list(dict.fromkeys(updates))

    # --- training

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int = 1,
        callbacks: Sequence[Any] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        **options: Any,
    ) -> History:
        """Train for ``epochs`` epochs; returns the results of each.

        ``x`` and ``y`` are arrays, lists or dicts of them; or ``x`` is a generator, `Sequence` or dataset of
        pairs, with ``steps_per_epoch`` batches in an epoch. With arrays, each of these steps takes all of
        them, as in TensorFlow 1.15. ``validation_data`` (or the last ``validation_split`` of the arrays) is
        evaluated after each epoch. Raises `InvalidArgumentError` before `compile` and for data of another
        form.
        """
        epochs = options.pop("nb_epoch", epochs)
        _refuse_others("fit", options, self.fit)
        if callbacks is not None and not isinstance(callbacks, (list, tuple)):
            raise misuse(f"fit: callbacks: expected a list of callbacks; got {callbacks!r}")
        if isinstance(epochs, bool) or not isinstance(epochs, (int, np.integer)):
            raise misuse(f"fit: epochs: expected a whole number; got {epochs!r}")
        self._set_inputs(x, y)
        form = self._form(True, class_weight)
        if validation_split and validation_data is None:
            x, y, sample_weight, validation_data = _split(form, x, y, sample_weight, validation_split)
            form = self._form(True)  # the split weights have the classes' in them
        batches = as_batches(form, x, y, sample_weight, batch_size, shuffle, steps_per_epoch)
        try:
            return self._fit(
                batches, range(initial_epoch, epochs), verbose, callbacks, validation_data, validation_steps,
                validation_freq, batch_size,
            )  # fmt: skip
        finally:
            batches.close()

    def _fit(
        self, batches: Batches, epochs: range, verbose: int, callbacks: Sequence[Any] | None,
        validation_data: Any, validation_steps: int | None, validation_freq: Any, batch_size: int | None,
    ) -> History:  # fmt: skip
        objective = self._make_objective()
        names = objective.names
        validation = self._validation(
            validation_data, validation_steps, batch_size, shuffle=batches.samples is not None
        )
        history = History()
        bar = [ProgbarLogger("samples" if batches.samples else "steps")] if verbose else []
        params = {
            "epochs": epochs.stop, "steps": batches.steps, "samples": batches.samples, "verbose": verbose,
            "batch_size": batch_size or 32, "do_validation": validation is not None,
            "metrics": names + ([f"val_{name}" for name in names] if validation is not None else []),
        }  # fmt: skip
        if verbose and batches.samples:
            more = (
                f", validate on {validation.samples} samples"
                if validation is not None and validation.samples
                else ""
            )
            print(f"Train on {batches.samples} samples{more}")
        listed = CallbackList([*(callbacks or ()), history, *bar], self, params)
        for callback in listed.callbacks:
            callback.validation_data = validation_data

        def validate(epoch: int) -> dict[str, float]:
            if validation is None or not _is_due(epoch, validation_freq):
                return {}
            found = self._evaluate(validation, CallbackList((), self, params))
            return {f"val_{name}": value for name, value in zip(names, found, strict=True)}

        fit_loop(
            self._step("train"), names, batches, listed, epochs, lambda: reset(objective.metrics), validate
        )
        self.history = history
        return history

    def _validation(
        self, data: Any, steps: int | None, batch_size: int | None, shuffle: bool
    ) -> Batches | None:  # fmt: skip
        """Batches of ``data``; TensorFlow 1.15 shuffles arrays, on which the next epoch's order depends."""
        if data is None:
            return None
        form = self._form(True)
        if isinstance(data, np.ndarray):
            raise misuse(f"validation_data: expected (x, y) or (x, y, sample_weight); got {summary(data)}")
        if isinstance(data, (tuple, list)):
            if len(data) not in (2, 3):
                raise misuse(
                    f"validation_data: expected (x, y) or (x, y, sample_weight); got {len(data)} items"
                )
            x, y, weight = (*data, None, None)[:3]
            # all, which as many steps would measure, too
            return as_batches(form, x, y, weight, batch_size, shuffle)
        return as_batches(form, data, steps=steps)

    def _evaluate(self, batches: Batches, callbacks: CallbackList) -> list[float]:
        reset(self._make_objective().metrics)
        return evaluate_loop(self._step("test"), batches, callbacks)

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, verbose: int = 1,
        sample_weight: Any = None, steps: int | None = None, callbacks: Sequence[Any] | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """The loss over all of the data, or with metrics the list of both: see `metrics_names`."""
        _refuse_others("evaluate", options, self.evaluate)
        self._set_inputs(x, y)
        batches = as_batches(self._form(True), x, y, sample_weight, batch_size, steps=steps)
        listed = CallbackList(callbacks or (), self, {"verbose": verbose, "steps": batches.steps})
        return one_or_list(self._evaluate(batches, listed))

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: int = 0, steps: int | None = None,
        callbacks: Sequence[Any] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """The outputs for ``x``: an array, or a list of one for each output."""
        _refuse_others("predict", options, self.predict)
        self._set_inputs(x)
        batches = as_batches(self._form(False), x, batch_size=batch_size, steps=steps, has_targets=False)
        listed = CallbackList(callbacks or (), self, {"verbose": verbose, "steps": batches.steps})
        return one_or_list(predict_loop(self._step("predict"), batches, listed))

    # --- generators, under their older names

    def fit_generator(
        self, generator: Any, steps_per_epoch: int | None = None, epochs: int = 1, verbose: int = 1,
        callbacks: Sequence[Any] | None = None, validation_data: Any = None,
        validation_steps: int | None = None, validation_freq: Any = 1, class_weight: Any = None,
        max_queue_size: int = 10, workers: int = 1, use_multiprocessing: bool = False, shuffle: bool = True,
        initial_epoch: int = 0,
    ) -> History:  # fmt: skip
        """`fit` with a generator of pairs, which a thread reads ahead unless ``workers`` is 0."""
        if self.outputs is None:
            raise misuse(
                f"model {self.name!r}: fit_generator: expected a model with inputs; use fit, or call it"
            )
        form = self._form(True, class_weight)
        if hasattr(generator, "__next__"):
            batches: Batches = GeneratorBatches(
                generator, Items(form, has_targets=True), steps_per_epoch, max_queue_size if workers else 0
            )
        else:
            batches = as_batches(form, generator, shuffle=shuffle, steps=steps_per_epoch)
        try:
            return self._fit(
                batches, range(initial_epoch, epochs), verbose, callbacks, validation_data, validation_steps,
                validation_freq, None,
            )  # fmt: skip
        finally:
            batches.close()

    def evaluate_generator(
        self, generator: Any, steps: int | None = None, callbacks: Any = None, max_queue_size: int = 10,
        workers: int = 1, use_multiprocessing: bool = False, verbose: int = 0,
    ) -> Any:  # fmt: skip
        return self.evaluate(generator, steps=steps, callbacks=callbacks, verbose=verbose)

    def predict_generator(
        self, generator: Any, steps: int | None = None, callbacks: Any = None, max_queue_size: int = 10,
        workers: int = 1, use_multiprocessing: bool = False, verbose: int = 0,
    ) -> Any:  # fmt: skip
        return self.predict(generator, steps=steps, callbacks=callbacks, verbose=verbose)

    # --- one batch

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        reset_metrics: bool = True,
    ) -> Any:
        """The loss, or loss and metrics, of one batch, after which the weights are updated."""
        self._set_inputs(x, y)
        return self._one_batch(
            "train", self._form(True, class_weight).batch(x, y, sample_weight), reset_metrics
        )

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, reset_metrics: bool = True
    ) -> Any:
        self._set_inputs(x, y)
        return self._one_batch("test", self._form(True).batch(x, y, sample_weight), reset_metrics)

    def predict_on_batch(self, x: Any) -> Any:
        self._set_inputs(x)
        return one_or_list(self._step("predict")(self._form(False).batch(x)))

    def _one_batch(self, kind: str, batch: Batch, reset_metrics: bool) -> Any:
        step = self._step(kind)
        if reset_metrics:
            reset(self._make_objective().metrics)
        return one_or_list(list(step(batch)))

    def reset_metrics(self) -> None:
        reset(self._make_objective().metrics)

    def predict_classes(self, x: Any, batch_size: int = 32, verbose: int = 0) -> Any:
        """The class of the largest output; of one output, whether it is above 0.5."""
        found = self.predict(x, batch_size, verbose)
        return found.argmax(-1) if found.shape[-1] > 1 else (found > 0.5).astype("int32")

    def predict_proba(self, x: Any, batch_size: int = 32, verbose: int = 0) -> Any:
        return self.predict(x, batch_size, verbose)

    # --- a model that is a class

    def _set_inputs(self, x: Any, y: Any = None) -> None:
        """Call a model that is a class with placeholders for such data."""
        if self.outputs is not None:
            return
        if not hasattr(x, "shape") and not isinstance(x, (list, tuple, dict)):
            raise misuse(
                f"model {self.name!r}: expected arrays first; with a generator call"
                " model.build(input_shape) before"
            )
        arrays = (
            [np.asarray(a) for a in flatten(x)] if isinstance(x, (list, tuple, dict)) else [np.asarray(x)]
        )
        self._connect_class([(a.shape[1:] or (1,), a.dtype) for a in arrays], isinstance(x, (list, tuple)))

    def build(self, input_shape: Any) -> None:
        """Make the weights of a model that is a class, for inputs of this shape, batch first."""
        if (
            self._is_graph_network
            or self.outputs is not None
            or self._inbound_nodes
            or _is_being_called(self)
        ):
            return
        is_several = bool(input_shape) and isinstance(input_shape[0], (list, tuple))
        shapes = input_shape if is_several else [input_shape]
        self._connect_class([(tuple(s)[1:], np.dtype(floatx())) for s in shapes], is_several)

    def _connect_class(self, kinds: Sequence[tuple[Any, Any]], is_list: bool) -> None:
        graph = get_default_graph().root
        with graph.as_default():
            self.inputs = [
                placeholder(_fed_dtype(dtype), [None, *shape], name=f"input_{i + 1}")
                for i, (shape, dtype) in enumerate(kinds)
            ]
            outputs = self(list(self.inputs) if is_list else self.inputs[0])
        self.outputs = flatten(outputs)
        self.input_names = [f"input_{i + 1}" for i in range(len(self.inputs))]
        self.output_names = [f"output_{i + 1}" for i in range(len(self.outputs))]

    # --- its parts

    def summary(
        self,
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Callable[[str], Any] | None = None,
    ) -> None:
        """Print a table of the layers, their output shapes and numbers of weights."""
        self._check_built()
        print_summary(self, line_length or 65, print_fn or print)

    def to_json(self, **options: Any) -> str:
        """The architecture as JSON, for `flowrt.keras.models.model_from_json`."""
        return model_files.to_json(self, **options)

    def save(
        self, filepath: str, overwrite: bool = True, include_optimizer: bool = True,
        save_format: str | None = None, signatures: Any = None,
    ) -> None:  # fmt: skip
        """Save architecture, weights and optimizer as one HDF5 file.

        Raises `UnimplementedError` for another ``save_format``.
        """
        if save_format not in (None, "h5") or signatures is not None:
            raise misuse(
                f"save: expected save_format='h5' without signatures; got {save_format!r}. A SavedModel is"
                " written by saved_model.simple_save", UnimplementedError,
            )  # fmt: skip
        model_files.save_model(self, filepath, overwrite, include_optimizer)

    def save_weights(self, filepath: str, overwrite: bool = True, save_format: str | None = None) -> None:
        """Save the weights: as HDF5 under a name with ".h5", else as a checkpoint of TensorFlow's format."""
        self._check_built()
        weight_files.save_weights(self, filepath, overwrite, save_format)

    def load_weights(self, filepath: str, by_name: bool = False, skip_mismatch: bool = False) -> None:
        """Load weights that `save_weights` saved, or Keras; ``by_name`` those of layers with equal names
        only.
        """
        self._check_built()
        weight_files.load_weights(self, filepath, by_name, skip_mismatch)


@dataclass(eq=False)
class _Step:
    """A callable of each session: feeds in their order, and the number that the learning phase is."""

    fetches: Sequence[Tensor]
    updates: Sequence[Operation]
    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    weights: Sequence[Tensor]
    training: bool

    def __post_init__(self) -> None:
        with self.fetches[0].graph.as_default():
            phase = learning_phase()
        self._phase = phase if isinstance(phase, Tensor) else None
        self._callables: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def __call__(self, batch: Batch) -> list[Any]:
        session = get_session(self.fetches)
        inputs, targets, weights = batch
        weighted = tuple(i for i, weight in enumerate(weights) if weight is not None)
        own = self._callables.setdefault(session, {})
        run = own.get(weighted)
        if run is None:
            feeds = [*self.inputs, *self.targets, *(self.weights[i] for i in weighted)]
            if self._phase is not None:
                feeds.append(self._phase)
            run = own[weighted] = session.make_callable([list(self.fetches), list(self.updates)], feeds)
        values = [*inputs, *targets, *(weights[i] for i in weighted)]
        if self._phase is not None:
            values.append(self.training)
        return run(*values)[0]


_OF_GENERATORS = ("max_queue_size", "workers", "use_multiprocessing")
"""Arguments of `Model.fit` and its like that change no result."""

_WITHOUT_EFFECT = ("cloning", "experimental_run_tf_function", "options")
"""Arguments of TensorFlow's `Model.compile` that change no result."""

_NOT_SUPPORTED = ("run_eagerly", "distribute", "run_metadata")
"""Arguments of TensorFlow's `Model.compile` with an effect that a program would miss."""


def _refuse_others(
    name: str, options: Mapping[str, Any], function: Callable[..., Any], more: Sequence[str] = _OF_GENERATORS
) -> None:
    """Raise `TypeError` for arguments that no version has; ``more`` are not in the signature, but exist."""
    for unknown in options:
        if unknown not in more:
            known = [*inspect.signature(function).parameters, *more]
            raise TypeError(f"{name}: there is no argument {unknown!r}.{nearest(unknown, known)}")


def _fed_dtype(dtype: Any) -> Any:
    found = as_dtype(dtype)
    return as_dtype(floatx()) if found is float64 else found


def _is_being_called(model: Model) -> bool:
    """Whether `build` is that of the first call: the layers inside are built by ``call``."""
    return bool(model._scope_name)


def _is_due(epoch: int, frequency: int | Sequence[int]) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency


def _split(form: Form, x: Any, y: Any, sample_weight: Any, share: float) -> tuple[Any, Any, Any, Any]:
    """Arrays without their last ``share``, and that."""
    if x is not None and not isinstance(x, (np.ndarray, list, tuple, Mapping)) and not hasattr(x, "iloc"):
        raise misuse(f"validation_split: expected arrays, to split them; got {summary(x)}")
    if not 0 < share < 1:
        raise misuse(f"validation_split: expected a number between 0 and 1; got {share}")
    inputs, targets, weights = form.batch(x, y, sample_weight)
    at = int(len(inputs[0]) * (1.0 - share))

    def part(rows: slice) -> tuple[Any, Any, Any]:
        own = [[None if a is None else a[rows] for a in group] for group in (inputs, targets, weights)]
        given = None if all(w is None for w in own[2]) else one_or_list(own[2])
        return own[0] if len(own[0]) > 1 else own[0][0], one_or_list(own[1]) if own[1] else None, given

    return *part(slice(0, at)), part(slice(at, None))
