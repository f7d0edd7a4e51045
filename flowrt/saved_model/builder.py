"""`SavedModelBuilder` and `simple_save`: graphs with their variables, as TensorFlow's SavedModels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from typing import Any

from flowrt import protos
from flowrt.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.source import misuse
from flowrt.saved_model import constants
from flowrt.saved_model.signature_constants import DEFAULT_SERVING_SIGNATURE_DEF_KEY
from flowrt.saved_model.signatures import build_tensor_info, predict_signature_def
from flowrt.saved_model.tag_constants import SERVING
from flowrt.storage.durable_files import PathLike, path_string, replace_file, typed_os_errors
from flowrt.train.checkpoints.export_meta_graph import meta_graph_of
from flowrt.train.checkpoints.saver import Saver
from flowrt.variables.variable import GraphKeys


class SavedModelBuilder:
    """Writes a SavedModel to ``export_dir``, which must be new: first variables, with the graph, then perhaps
    other graphs with these variables; nothing can be loaded before `save`.

    >>> builder = tf.saved_model.builder.SavedModelBuilder("model")
    >>> builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
    >>> builder.save()

    Raises `AlreadyExistsError` for a directory with files.
    """

    def __init__(self, export_dir: PathLike) -> None:
        self._path = path_string(export_dir, "SavedModelBuilder")
        self._saved = protos.meta_graph_pb2.SavedModel(
            saved_model_schema_version=constants.SAVED_MODEL_SCHEMA_VERSION
        )
        with typed_os_errors(self._path):
            if os.path.isdir(self._path) and os.listdir(self._path):
                raise AlreadyExistsError(f"{self._path}: expected a new directory; it has files")
            os.makedirs(self._path, exist_ok=True)

    def add_meta_graph_and_variables(
        self,
        sess: Any,
        tags: Collection[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Collection[Tensor] | None = None,
        legacy_init_op: Operation | None = None,
        clear_devices: bool = False,
        main_op: Operation | None = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
    ) -> None:
        """Write the values of the global variables (or those of ``saver``), and add the graph of ``sess``.

        ``assets_collection`` has string constants with paths of files, which are copied; loading feeds the
        constants with the new paths, and runs ``main_op``. Raises `FailedPreconditionError` for a second
        call, and as `Saver.save`.
        """
        if self._saved.meta_graphs:
            raise misuse("the variables are written already: add_meta_graph()", FailedPreconditionError)
        variables = sess.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        variables += sess.graph.get_collection(GraphKeys.SAVEABLE_OBJECTS)
        if saver is None and variables:
            saver = Saver(variables, file_format="tensorflow")
        folder = os.path.join(self._path, constants.VARIABLES_DIRECTORY)
        with typed_os_errors(folder):
            os.makedirs(folder, exist_ok=True)
        if saver is not None:
            prefix = os.path.join(folder, constants.VARIABLES_FILENAME)
            saver.save(sess, prefix, write_meta_graph=False, write_state=False)
        given = (signature_def_map, assets_collection, main_op or legacy_init_op)
        self._add(sess.graph, tags, *given, saver, clear_devices)

    def add_meta_graph(
        self,
        tags: Collection[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Collection[Tensor] | None = None,
        legacy_init_op: Operation | None = None,
        clear_devices: bool = False,
        main_op: Operation | None = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
    ) -> None:
        """Add the default graph, with the variables that are written already."""
        if not self._saved.meta_graphs:
            raise misuse(
                "expected add_meta_graph_and_variables() before add_meta_graph()", FailedPreconditionError
            )
        saver = saver or Saver(allow_empty=True, file_format="tensorflow")
        given = (signature_def_map, assets_collection, main_op or legacy_init_op)
        self._add(get_default_graph(), tags, *given, saver, clear_devices)

    def _add(
        self,
        graph: Any,
        tags: Collection[str],
        signatures: Mapping[str, Any] | None,
        assets: Collection[Tensor] | None,
        main_op: Operation | None,
        saver: Saver | None,
        clear_devices: bool,
    ) -> None:
        message = meta_graph_of(graph, variables={}) if saver is None else saver.meta_graph(graph)
        message.meta_info_def.tags.extend(tags)
        for name, signature in (signatures or {}).items():
            message.signature_def[name].CopyFrom(signature)
        for tensor in dict.fromkeys(assets or ()):
            self._add_asset(message, tensor)
        if main_op is not None:
            message.collection_def[constants.MAIN_OP_KEY].node_list.value.append(main_op.name)
        if clear_devices:
            for node in message.graph_def.node:
                node.device = ""
        self._saved.meta_graphs.append(message)

    def _add_asset(self, message: Any, tensor: Tensor) -> None:
        if tensor.op.type != "Const":
            raise misuse(f"assets: expected constants with paths; got {tensor!r}", InvalidArgumentError)
        source = os.fsdecode(tensor.op.get_attr("value").item())
        folder = os.path.join(self._path, constants.ASSETS_DIRECTORY)
        with typed_os_errors(f"asset {source}"):
            os.makedirs(folder, exist_ok=True)
            taken = {each.filename for each in message.asset_file_def}
            name, count = os.path.basename(source), 0
            while name in taken:
                count += 1
                name = f"{os.path.basename(source)}_{count}"
            shutil.copyfile(source, os.path.join(folder, name))
        message.asset_file_def.add(filename=name).tensor_info.CopyFrom(build_tensor_info(tensor))

    def save(self, as_text: bool = False) -> str:
        """Write the file that makes the directory a SavedModel. Returns its path."""
        name = constants.SAVED_MODEL_FILENAME_PBTXT if as_text else constants.SAVED_MODEL_FILENAME_PB
        path = os.path.join(self._path, name)
        with typed_os_errors(path):
            content = str(self._saved).encode() if as_text else self._saved.SerializeToString()
            replace_file(path, content)
        return path


Builder = SavedModelBuilder


def simple_save(
    session: Any,
    export_dir: PathLike,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    legacy_init_op: Operation | None = None,
) -> None:
    """Write the graph of ``session`` and its variables as a SavedModel for serving, with one signature.

    >>> tf.saved_model.simple_save(session, "model", {"x": x}, {"y": y})

    Raises as `SavedModelBuilder`.
    """
    builder = SavedModelBuilder(export_dir)
    builder.add_meta_graph_and_variables(
        session,
        [SERVING],
        {DEFAULT_SERVING_SIGNATURE_DEF_KEY: predict_signature_def(inputs, outputs)},
        assets_collection=session.graph.get_collection(GraphKeys.ASSET_FILEPATHS),
        main_op=legacy_init_op,
    )
    builder.save()
