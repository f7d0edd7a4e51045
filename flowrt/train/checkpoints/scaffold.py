"""`Scaffold`: a graph's initializers, readiness checks and saver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.ops.text.summaries import merge_all
from flowrt.tf1.aliases import tables_initializer
from flowrt.train.checkpoints.saver import Saver
from flowrt.variables.variable import (
    GraphKeys,
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)


class Scaffold:
    """The parts of the graph that a monitored session needs. Those not given come from the graph's
    collections (INIT_OP, READY_OP, SAVERS, ...) or are created by `finalize`.

    ``init_op`` initializes global variables if no checkpoint is restored, with ``init_feed_dict``;
    ``init_fn(scaffold, session)`` runs after it. ``ready_op`` and ``ready_for_local_init_op`` return the
    names of the variables without a value. ``local_init_op`` initializes session-local state, in every
    session. ``summary_op`` is fetched by `SummarySaverHook`. ``copy_from_scaffold`` provides the parts that
    are not given.
    """

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Any], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        def given_or_copied(name: str, given: Any) -> Any:
            return getattr(copy_from_scaffold, name, None) if given is None else given

        self.init_op = given_or_copied("init_op", init_op)
        self.init_feed_dict = given_or_copied("init_feed_dict", init_feed_dict)
        self._user_init_fn = given_or_copied("_user_init_fn", init_fn)
        self.ready_op = given_or_copied("ready_op", ready_op)
        self.ready_for_local_init_op = given_or_copied("ready_for_local_init_op", ready_for_local_init_op)
        self.local_init_op = given_or_copied("local_init_op", local_init_op)
        self.local_init_feed_dict = given_or_copied("local_init_feed_dict", local_init_feed_dict)
        self.summary_op = given_or_copied("summary_op", summary_op)
        self.saver = given_or_copied("saver", saver)

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        """A function of the session, or None."""
        user_init_fn = self._user_init_fn
        return None if user_init_fn is None else lambda session: user_init_fn(self, session)

    def finalize(self) -> Scaffold:
        """Create the missing parts and freeze the default graph. Raises `InvalidArgumentError` for a
        collection with several items.
        """
        for name, key, make in (
            ("init_op", GraphKeys.INIT_OP, global_variables_initializer),
            ("ready_op", GraphKeys.READY_OP, report_uninitialized_variables),
            (
                "ready_for_local_init_op",
                GraphKeys.READY_FOR_LOCAL_INIT_OP,
                lambda: report_uninitialized_variables(global_variables()),
            ),
            ("local_init_op", GraphKeys.LOCAL_INIT_OP, Scaffold.default_local_init_op),
            ("summary_op", GraphKeys.SUMMARY_OP, merge_all),
            ("saver", GraphKeys.SAVERS, lambda: Saver(sharded=True, allow_empty=True)),
        ):
            if getattr(self, name) is None:
                setattr(self, name, Scaffold.get_or_default(name, key, make))
        self.saver.build()
        get_default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """The only item of a collection; if it is empty, the result of ``default_constructor``, which is
        added to it. Raises `InvalidArgumentError` for several items.
        """
        graph = get_default_graph()
        items = graph.get_collection(collection_key)
        if len(items) > 1:
            raise InvalidArgumentError(
                f"Scaffold: expected one item in the collection {collection_key!r}; got {len(items)}. "
                f"Pass {arg_name}="
            )
        if items:
            return items[0]
        made = default_constructor()
        if made is not None:
            graph.add_to_collection(collection_key, made)
        return made

    @staticmethod
    def default_local_init_op() -> Operation:
        """An operation that initializes local variables and runs the collection TABLE_INITIALIZERS."""
        return group(local_variables_initializer(), tables_initializer())
