"""`GraphSaver`: the saver of a graph that was imported: its own operations write and read the checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.train.checkpoints.checkpoint import check_prefix, is_of_flowrt
from flowrt.train.checkpoints.checkpoint import remove_checkpoint as remove_pieces
from flowrt.train.checkpoints.export_meta_graph import meta_graph_of
from flowrt.train.checkpoints.saver import Saver, check_session, existing_checkpoint
from flowrt.train.checkpoints.together import Processes
from flowrt.variables.variable import GraphKeys, Variable


@final
class GraphSaver(Saver):
    """Saves and restores by operations of the graph, which are fed ``filename``, in TensorFlow's format. A
    checkpoint of flowrt's is restored as by ``Saver()``.
    """

    def __init__(self, filename: Tensor, saved: Tensor, restore: Operation, saver_def: Any) -> None:
        hours = saver_def.keep_checkpoint_every_n_hours or 10000.0
        super().__init__(
            max_to_keep=saver_def.max_to_keep, keep_checkpoint_every_n_hours=hours, defer_build=True,
            file_format="tensorflow",
        )  # fmt: skip
        self._filename, self._saved, self._restore = filename, saved, restore
        self._saver_def = saver_def

    def build(self) -> None:
        """Nothing is left to build."""

    def as_saver_def(self) -> Any:
        return self._saver_def

    def _targets(self) -> dict[str, Variable]:
        return {}

    def _write(self, prefix: str, sess: Any, targets: Mapping[str, Variable], processes: Processes) -> None:
        sess.run(self._saved, {self._filename: check_prefix(prefix)})
        remove_pieces(prefix)

    def meta_graph(self, graph: Graph, collection_list: Collection[str] | None = None) -> Any:
        return meta_graph_of(graph, collection_list, saver_def=self._saver_def)

    def restore(self, sess: Any, save_path: str | None) -> None:
        """Run the graph's operation that restores. Raises as `Saver.restore`; after an error some variables
        may have changed.
        """
        check_session(sess, "restore")
        prefix = existing_checkpoint(save_path)
        if is_of_flowrt(prefix):
            Saver(sess.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)).restore(sess, prefix)
        else:
            sess.run(self._restore, {self._filename: prefix})
