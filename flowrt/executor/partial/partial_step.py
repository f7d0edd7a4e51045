"""`PartialStep`: the progress of a step that is run in several calls, as a value.

    begin_partial_step(...) -> PartialStep
    PartialStep.call(fed, fetches, targets) -> PartialCall: the operations to run now, and the step after it

A call runs the operations that its fetches need and no earlier call has run. Results that a later call may
read are kept and fed to it, so each operation runs once. Resources and variants are not kept: operations that
produce handles have no other effect, and are repeated. After TensorFlow's `Session.partial_run`.

Pure: works on nodes and their names, without values, for a session of this process and for a cluster's
master.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, final

from flowrt import dtypes
from flowrt.errors import FailedPreconditionError, InvalidArgumentError, OpError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref

_NOT_KEPT = (dtypes.resource, dtypes.variant)


class PartialCall(NamedTuple):
    """One call: a step that is fed ``used`` and fetches ``computed`` and ``kept`` (a tensor may be in both),
    without control edges from the operations named in ``done``.
    """

    used: tuple[Ref, ...]
    computed: tuple[Ref, ...]
    """Requested fetches that are not known yet."""
    kept: tuple[Ref, ...]
    """Computed tensors that later calls read."""
    targets: tuple[str, ...]
    done: frozenset[str]
    after: PartialStep


def begin_partial_step(
    node_of: Callable[[str], Node], fetches: Collection[Ref], targets: Collection[str], feeds: Collection[Ref]
) -> PartialStep:
    """A step before anything has run: ``fetches``, ``targets`` and ``feeds`` are all those of its calls.
    Raises `InvalidArgumentError` for a placeholder that is needed and not among the feeds.
    """
    nodes: dict[str, Node] = {}
    stack = [*[name for name, index in fetches if (name, index) not in feeds], *targets]
    while stack:
        name = stack.pop()
        if name in nodes:
            continue
        node = nodes[name] = node_of(name)
        if node.op.name == "Placeholder":
            message = "partial_run_setup: expected this placeholder among the feeds, since a fetch needs it"
            raise located(node, InvalidArgumentError(message))
        stack += [*[ref[0] for ref in node.inputs if ref not in feeds], *node.controls]
    pending = frozenset(fetches), frozenset(targets)
    return PartialStep(nodes, frozenset(feeds), *pending, frozenset(), frozenset())


@final
class PartialStep:
    """``nodes`` are all of the step, ``missing`` its feeds that were not given yet, ``pending`` and
    ``pending_targets`` those not fetched yet, ``done`` the operations that ran, ``known`` the available
    tensors that later calls read. Compared by identity.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        missing: frozenset[Ref],
        pending: frozenset[Ref],
        pending_targets: frozenset[str],
        done: frozenset[str],
        known: frozenset[Ref],
    ) -> None:
        self.nodes, self.missing, self.known = nodes, missing, known
        self._pending, self._pending_targets, self._done = pending, pending_targets, done

    @property
    def is_over(self) -> bool:
        """Whether all that was announced has been fetched."""
        return not self._pending and not self._pending_targets

    def call(self, fed: Collection[Ref], fetches: Sequence[Ref], targets: Sequence[str]) -> PartialCall:
        """The call that runs when ``fed`` are given and ``fetches`` and ``targets`` requested. Raises
        `InvalidArgumentError` for elements that were not declared or are repeated, and for a fetch that needs
        a missing feed.
        """
        self._check(fed, fetches, targets)
        there = self.known | frozenset(fed)
        computed = tuple([ref for ref in dict.fromkeys(fetches) if ref not in there])
        left = tuple([name for name in dict.fromkeys(targets) if name not in self._done])
        new, used = self._walk([*[name for name, _ in computed], *left], there)
        pending = self._pending - frozenset(fetches), self._pending_targets - frozenset(targets)
        after = self._done.union(new)
        read = self._read_later(*pending, after)
        kept = tuple([ref for ref in read if ref[0] in new and ref not in there and self._is_kept(ref)])
        known = frozenset([ref for ref in read if ref in there]) | frozenset(kept)
        step = PartialStep(self.nodes, self.missing - there, *pending, after, known)
        return PartialCall(tuple(used), computed, kept, left, self._done, step)

    def _check(self, fed: Collection[Ref], fetches: Sequence[Ref], targets: Sequence[str]) -> None:
        for name, index in fed:
            if (name, index) not in self.missing:
                raise _not_announced("feeds", f"{name}:{index}")
        for name, index in fetches:
            if (name, index) not in self._pending:
                raise _not_announced("fetches", f"{name}:{index}")
            if (name, index) in self.missing and (name, index) not in fed:
                raise _not_fed("the fetch", name, index)
        for name in targets:
            if name not in self._pending_targets:
                raise _not_announced("fetches", name)

    def _walk(self, roots: Sequence[str], there: Collection[Ref]) -> tuple[dict[str, None], dict[Ref, None]]:
        """(the operations that run for the first time, the tensors of ``there`` that they read)."""
        seen: set[str] = set()
        new: dict[str, None] = {}
        used: dict[Ref, None] = {}
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            if name not in self._done:
                new[name] = None
                stack += [control for control in self.nodes[name].controls if control not in self._done]
            for ref in self.nodes[name].inputs:
                if ref in there:
                    used[ref] = None
                elif ref in self.missing:
                    raise _not_fed(repr(name), *ref)
                else:
                    stack.append(ref[0])
        return new, used

    def _read_later(
        self, fetches: Iterable[Ref], targets: Iterable[str], done: Collection[str]
    ) -> dict[Ref, None]:
        """Tensors read by the operations that are still to run, and by those repeated for them."""
        read = dict.fromkeys(sorted(fetches))
        seen: set[str] = set()
        stack = [name for name in sorted(targets) if name not in done]
        stack += [ref[0] for ref in read if self._runs_later(ref, done)]
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.nodes[name]
            for ref in node.inputs:
                read[ref] = None
                if self._runs_later(ref, done):
                    stack.append(ref[0])
            stack += [control for control in node.controls if control not in done]
        return read

    def _runs_later(self, ref: Ref, done: Collection[str]) -> bool:
        """Whether the operation of ``ref`` is still to run, or runs again."""
        if ref in self.missing or ref in self.known:
            return False
        return ref[0] not in done or not self._is_kept(ref)

    def _is_kept(self, ref: Ref) -> bool:
        return self.nodes[ref[0]].outputs[ref[1]].dtype not in _NOT_KEPT


def failed_before(failure: BaseException) -> OpError:
    """The error of calls after the one that failed: that call's effects are unknown."""
    reason = failure.message if isinstance(failure, OpError) else repr(failure)
    return FailedPreconditionError(
        f"partial_run: expected a step that has not failed; got a failed one: {reason}. Start another one "
        "with partial_run_setup"
    )


def _not_announced(what: str, name: str) -> OpError:
    return InvalidArgumentError(
        f"partial_run: expected {what} announced in partial_run_setup, each once; got {name!r}"
    )


def _not_fed(who: str, name: str, index: int) -> OpError:
    return InvalidArgumentError(f"partial_run: {who} needs '{name}:{index}', which has not been fed")
