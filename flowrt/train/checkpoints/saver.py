"""`Saver`: variables to checkpoints and back.

The files are those of `flowrt.train.checkpoints.checkpoint`: safetensors shards and a JSON manifest with
checksums, replaced atomically; or TensorFlow's. Nothing is added to the graph: values are taken from and put
into the session (`flowrt.train.checkpoints.variable_pieces`), so a Saver works on a finalized graph, and
nothing in a checkpoint can run.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
    nearest,
)
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.graph.source import misuse, user_line
from flowrt.profiler.text_table import first_few
from flowrt.storage.durable_files import path_string
from flowrt.train.checkpoints.checkpoint import check_prefix, why_absent, write_pieces
from flowrt.train.checkpoints.checkpoint import remove_checkpoint as remove_pieces
from flowrt.train.checkpoints.checkpoint_reader import CheckpointReader
from flowrt.train.checkpoints.checkpoint_state import update_checkpoint_state
from flowrt.train.checkpoints.export_meta_graph import export_meta_graph, meta_graph_of, write_meta_graph
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists, read_one_save, remove_checkpoint
from flowrt.train.checkpoints.stored_tensor import Reshaped, Source, StoredTensor
from flowrt.train.checkpoints.tensorflow_writer import write_bundle_files
from flowrt.train.checkpoints.together import Processes, processes_of
from flowrt.train.checkpoints.variable_pieces import filling, held_pieces, take_part_in_values, values_of
from flowrt.train.optimizers.slot_creator import OPTIMIZER_VARIABLES
from flowrt.variables.variable import GraphKeys, Variable, global_variables

LOGGER = logging.getLogger(__name__)


class Saver:
    """Saves and restores variables.

    Args:
        var_list: A list of variables, a dict of names in the checkpoint to variables, or None for all global
            variables of the default graph at the first use.
        reshape: Whether a value may have another shape with the same number of elements.
        max_to_keep: The number of newest checkpoints that are kept; 0 or None for all.
        keep_checkpoint_every_n_hours: Of older checkpoints, one per so many hours is kept.
        pad_step_number: Whether steps are written with eight digits.
        file_format: "flowrt", or "tensorflow" for checkpoints (version 2) that TensorFlow reads; any is
            restored.

    Example:
        >>> v = tf.Variable(3.0, name='v')
        >>> saver = tf.train.Saver()
        >>> session.run(v.initializer)
        >>> path = saver.save(session, 'model', global_step=100)
        >>> path
        'model-100'
        >>> session.run(v.assign(0.0))
        np.float32(0.0)
        >>> saver.restore(session, path)
        >>> v.eval()
        np.float32(3.0)
    """

    writes_meta_graphs = False
    """Whether checkpoints in flowrt's own format have ``.meta`` files, too: programs under TensorFlow's name
    import them with `import_meta_graph`."""

    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: Any = None,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
        *,
        file_format: Literal["flowrt", "tensorflow"] = "flowrt",
    ) -> None:
        if file_format not in ("flowrt", "tensorflow"):
            raise InvalidArgumentError(
                f"Saver: expected file_format 'flowrt' or 'tensorflow'; got {file_format!r}"
            )
        self._format = file_format
        self._reshape, self._max_to_keep = reshape, max_to_keep or 0
        self._keep_every_s = keep_checkpoint_every_n_hours * 3600
        self._pad, self._allow_empty = pad_step_number, allow_empty
        self._kept_until = time.monotonic() + self._keep_every_s
        self._checkpoints: list[tuple[str, float]] = []
        """Prefixes, with times of the monotonic clock."""
        self._variables: dict[str, Variable] | None = None
        self._given = var_list
        if not defer_build:
            self.build()

    def build(self) -> None:
        """Fix the list of variables. Raises `InvalidArgumentError` for no variables or duplicate names."""
        if self._variables is None:
            saveables = get_default_graph().get_collection(GraphKeys.SAVEABLE_OBJECTS)
            given = self._given if self._given is not None else global_variables() + saveables
            self._variables = _by_name(given)
            if not self._variables and not self._allow_empty:
                raise InvalidArgumentError("Saver: expected variables to save; got none")

    def _targets(self) -> dict[str, Variable]:
        self.build()
        assert self._variables is not None
        return self._variables

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str:
        """Write the variables' values and return the checkpoint's prefix: ``save_path``, or
        ``save_path-STEP``.

        ``global_step`` is an int, a variable or a tensor. If workers hold parts of a variable's value, all
        must save at the same time, or call `take_part`: under one path if each runs its own session of a
        mesh, otherwise each under its own. Raises `FailedPreconditionError` for an uninitialized variable and
        the errors of writing, on a mesh in all of them; the last checkpoint is then untouched.
        """
        check_session(sess, "save")
        prefix = path_string(save_path, "save")
        if global_step is not None:
            step = _step_of(sess, global_step)
            prefix = f"{prefix}-{step:08d}" if self._pad else f"{prefix}-{step}"
        targets = self._targets()
        processes = processes_of(targets.values(), "save")
        self._write(prefix, sess, targets, processes)
        outdated = self._record(prefix) if write_state else []

        def list_checkpoint() -> None:
            if write_state and processes.number == 0:
                directory = os.path.dirname(prefix) or "."
                update_checkpoint_state(directory, prefix, self.last_checkpoints, latest_filename)
                for each in outdated:
                    remove_checkpoint(each)

        processes.all(list_checkpoint)
        is_wanted = self._format == "tensorflow" or self.writes_meta_graphs
        if write_meta_graph and is_wanted and processes.number == 0:
            self._write_meta_graph(sess.graph, f"{prefix}.{meta_graph_suffix}")
        return prefix

    def _write_meta_graph(self, graph: Graph, path: str) -> None:
        try:
            message = self.meta_graph(graph)
        except UnimplementedError as error:  # the values are saved all the same
            LOGGER.warning("%s is not written: %s", path, error)
        else:
            write_meta_graph(message, path)

    def meta_graph(self, graph: Graph, collection_list: Collection[str] | None = None) -> Any:
        """The MetaGraphDef of ``graph``, with operations that save what this one does."""
        return meta_graph_of(graph, collection_list, variables=self._targets())

    def export_meta_graph(
        self,
        filename: str | None = None,
        collection_list: Collection[str] | None = None,
        as_text: bool = False,
        export_scope: str | None = None,
        clear_devices: bool = False,
        clear_extraneous_savers: bool = False,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> Any:
        """`export_meta_graph` of the default graph, with operations that save what this one does."""
        message = self.meta_graph(get_default_graph(), collection_list)
        return export_meta_graph(
            filename, None, message.graph_def, message.saver_def, collection_list, as_text,
            export_scope=export_scope, clear_devices=clear_devices,
        )  # fmt: skip

    def _write(self, prefix: str, sess: Any, targets: Mapping[str, Variable], processes: Processes) -> None:
        if self._format == "flowrt":
            write_pieces(prefix, lambda: held_pieces(sess, targets, processes), processes)
            return
        if processes.count > 1:
            raise FailedPreconditionError(
                "save: expected one process for file_format='tensorflow'; got a mesh of "
                f"{processes.count}. Leave file_format out: all of them save their parts",
                source=user_line(),
            )
        values = values_of(sess, list(targets.values()))
        write_bundle_files(check_prefix(prefix), [(name, values[v]) for name, v in targets.items()])
        remove_pieces(prefix)  # of a checkpoint of flowrt's, which would be read first

    def take_part(self, sess: Any) -> None:
        """Take part in the save of another worker: write, or read, what this one has of the variables."""
        targets = self._targets()
        processes = processes_of(targets.values(), "save")
        if processes.count == 1:
            take_part_in_values(sess, targets.values())
            return
        write_pieces(None, lambda: held_pieces(sess, targets, processes), processes)
        processes.all(lambda: None)  # the first one lists the checkpoint

    def _record(self, prefix: str) -> list[str]:
        """Add ``prefix`` to the list of checkpoints. Drops those to remove from the list and returns them."""
        self._checkpoints = [c for c in self._checkpoints if c[0] != prefix] + [(prefix, time.monotonic())]
        outdated = []
        while self._max_to_keep and len(self._checkpoints) > self._max_to_keep:
            oldest, saved = self._checkpoints.pop(0)
            if saved > self._kept_until:
                self._kept_until += self._keep_every_s
            else:
                outdated.append(oldest)
        return outdated

    def restore(self, sess: Any, save_path: str | None) -> None:
        """Set the variables from a checkpoint; they need not be initialized.

        If each worker runs its own session of a mesh, all restore at the same time. Raises
        `InvalidArgumentError` when there is no checkpoint under that prefix, `NotFoundError` for a variable
        that is not in it, `InvalidArgumentError` for another shape or dtype (with both), `DataLossError` for
        damage. After an error no variable has changed, in any of them.
        """
        check_session(sess, "restore")
        targets = self._targets()
        processes = processes_of(targets.values(), "restore")
        fill: Callable[[], None]

        def prepare() -> str:
            nonlocal fill
            prefix = existing_checkpoint(save_path)
            save_id, fill = read_one_save(prefix, lambda reader: self._filling(sess, targets, reader))
            return save_id

        saves = set(processes.all(prepare))
        if len(saves) > 1:
            raise InvalidArgumentError(
                f"restore: expected one checkpoint in all processes; got {save_path!r} of {len(saves)} saves",
                source=user_line(),
            )
        processes.all(fill)

    def _filling(
        self, sess: Any, targets: Mapping[str, Variable], reader: CheckpointReader
    ) -> tuple[str, Callable[[], None]]:
        """The id of the save, and the function that sets ``targets`` from it."""
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for name, variable in targets.items():
            self._check(reader.prefix, name, variable, shapes, types)
        sources = {variable: _shaped(reader.stored(name), variable) for name, variable in targets.items()}
        return reader.save_id, filling(sess, sources)

    def _check(
        self, prefix: str, name: str, variable: Variable, shapes: Mapping[str, Any], types: Mapping[str, Any]
    ) -> None:
        if name not in shapes:
            content = f" It has {first_few(sorted(shapes), 5)}" if shapes else " It is empty"
            message = f"checkpoint {prefix!r} has no tensor {name!r}.{nearest(name, shapes) or content}"
            if variable in variable.graph.get_collection(OPTIMIZER_VARIABLES):
                message += ". A checkpoint of another optimizer? Saver(var_list) restores what it lists"
            raise NotFoundError(message, op=variable.op.name, source=variable.op.source)
        shape, expected = list(shapes[name]), variable.shape
        fits = expected.is_compatible_with(shape)
        same_size = expected.num_elements() == int(np.prod(shape, dtype=np.int64))
        if not fits and not (self._reshape and same_size):
            message = f"variable {name!r} has shape {expected}; its saved value has shape {shape}"
            message = f"checkpoint {prefix!r}: {message}"
            raise InvalidArgumentError(message, op=variable.op.name, source=variable.op.source)
        if types.get(name) != variable.dtype:
            saved = types[name].name if name in types else "of a dtype that flowrt does not have"
            message = f"variable {name!r} is {variable.dtype.name}; its saved value is {saved}"
            raise DTypeError(
                f"checkpoint {prefix!r}: {message}", op=variable.op.name, source=variable.op.source
            )

    # --- list of checkpoints

    @property
    def last_checkpoints(self) -> list[str]:
        """Prefixes of the checkpoints that are kept, oldest first."""
        return [prefix for prefix, _ in self._checkpoints]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        self._checkpoints = [(prefix, time.monotonic()) for prefix in last_checkpoints]

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[tuple[str, float]]) -> None:
        since = time.monotonic() - time.time()
        self._checkpoints = [(prefix, saved + since) for prefix, saved in last_checkpoints_with_time]

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[str]) -> None:
        """Take over checkpoints of an earlier process, as far as they exist."""
        self.set_last_checkpoints([p for p in checkpoint_paths if checkpoint_exists(p)])


def _by_name(var_list: Any) -> dict[str, Variable]:
    if not isinstance(var_list, Iterable) or isinstance(var_list, str | Variable):
        raise misuse(f"Saver: expected a list or dict of variables; got {var_list!r}", DTypeError)
    for variable in var_list.values() if isinstance(var_list, Mapping) else (var_list := list(var_list)):
        if not isinstance(variable, Variable):
            raise misuse(f"Saver: expected variables; got {variable!r}", DTypeError)
    if isinstance(var_list, Mapping):
        return dict(var_list)
    found: dict[str, Variable] = {}
    for variable in var_list:
        if found.setdefault(variable.op.name, variable) is not variable:
            raise misuse(f"Saver: expected unique variable names; got two of {variable.op.name!r}")
    return found


def check_session(sess: Any, what: str) -> None:
    if not hasattr(sess, "variable_values"):
        raise DTypeError(f"{what}: expected a session first; got {sess!r}")


def _step_of(sess: Any, global_step: Any) -> int:
    if hasattr(global_step, "graph"):
        global_step = sess.run(global_step)
    try:
        return int(global_step)
    except (TypeError, ValueError):
        raise DTypeError(
            f"save: expected global_step as an int, variable or tensor; got {global_step!r}"
        ) from None


def existing_checkpoint(save_path: Any) -> str:
    """The prefix of a checkpoint. Raises `InvalidArgumentError` if there is none."""
    if save_path is None:
        raise InvalidArgumentError(
            "restore: expected a checkpoint's prefix; got None. Was anything saved?", source=user_line()
        )
    prefix = path_string(save_path, "restore")
    if not checkpoint_exists(prefix):
        expected = "expected the prefix of a checkpoint"
        message = f"restore: {expected}; got {prefix!r}: {why_absent(prefix)}"
        raise InvalidArgumentError(message, source=user_line())
    return prefix


def _shaped(stored: StoredTensor[Any], variable: Variable) -> Source:
    """``stored``, in the shape of the variable if that is another one."""
    shape = variable.shape
    fits = shape.is_compatible_with(list(stored.shape))
    return stored if fits else Reshaped(stored, tuple(size or 0 for size in shape.as_list()))
