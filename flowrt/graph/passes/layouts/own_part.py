"""The own part of a process: of the operations of all coordinates, those that it runs in its own session.

All processes lower the same global graph and get the same step, in the same order. Of it each keeps the nodes
on its devices:

    collective         its ranks; the others are in other graphs
    edge               between processes, a message to each of those that read it, under its name
    control edge       the same, of no elements
    loop, branch       its part, if it has devices in it: arguments, results and nodes of its functions; what
                       they exchange travels in each iteration, as does the predicate
    feeds, constants   in every process, as are iterators and what is computed from all these alone: every
                       process feeds the whole and has a whole iterator of its own, and takes its parts

The devices of the mesh are the ranks of a group that the processes have joined, and groups of some of them
are split of it. Collectives are in the order of the step, which is one in all processes; messages have tags,
and do not wait to be received. So ranks that wait for each other cannot deadlock. Before a step runs first,
the processes compare its text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.device.spec import DeviceSpec
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, devices_in, owned_subgraphs, with_functions
from flowrt.graph.op_def import Effect, OpDef
from flowrt.graph.ops.array.concat_and_split import concat_op
from flowrt.graph.ops.collective.collectives import (
    COALESCED,
    COLLECTIVES,
    all_gather_op,
    all_reduce_op,
    broadcast_op,
    reduce_scatter_op,
)
from flowrt.graph.ops.collective.group_transfer import (
    describes_itself,
    group_agree_op,
    tagged_recv_op,
    tagged_send_op,
)
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.passes.layouts.join_ends import join_ends
from flowrt.graph.passes.layouts.processes import Own
from flowrt.graph.passes.layouts.variable_shards import device_inside
from flowrt.graph.passes.prepare.fed_nodes import OF_ITERATORS, fed_nodes
from flowrt.graph.passes.prepare.prune import prune
from flowrt.graph.resources.groups import split_key

_END = TensorSpec(dtypes.int32, (0,))
"""The message that a node has ended."""


def check_state(subgraph: Subgraph) -> None:
    """Raise for the state in a global ``subgraph`` that processes cannot share: `InvalidArgumentError` for a
    variable without a layout, of which each process would have one of its own; `UnimplementedError` for a
    queue, a table or the like.
    """
    for node in subgraph:
        if node.op.effect is not Effect.HANDLE or MESH in node.attrs or node.op in OF_ITERATORS:
            continue
        if node.op is var_handle_op:
            what = (
                "expected one made in the scope of the strategy; got one of each process. Make the model "
                "inside strategy.scope()"
            )
            raise located(node, InvalidArgumentError(f"variable {node.name!r}: {what}"))
        what = f"expected no state but variables and iterators; got {node.op.name} {node.name!r}"
        raise located(node, UnimplementedError(f"a step of several processes: {what}"))


def own_part(step: Subgraph, own: Own, devices: Sequence[DeviceSpec], text: str) -> Subgraph:
    """The part of this process in ``step``, which has the fetches of all processes, one after the other.

    ``devices`` are those of the session, and ``text`` is that of the step, which all processes compare.
    Raises `InvalidArgumentError` for a missing device, and `UnimplementedError` for a handle or list that
    another process would need.
    """
    (part,) = own_parts(step, own, [own.ranks], devices, text)
    return part


def own_parts(
    step: Subgraph, own: Own, ranks: Iterable[tuple[int, ...]], devices: Sequence[DeviceSpec], text: str
) -> Iterator[Subgraph]:
    """The parts of several processes, each with other ``ranks``. Raises as `own_part`."""
    step = join_ends(step, own)
    whole = _Whole(step, own, frozenset(step.feeds))
    readers, fetches = own.readers(), step.fetches
    count = len(fetches) // len(readers)
    at = [own.mesh.place(*reader) for reader in readers for _ in range(count)]
    results = [*zip(fetches, at, strict=True)]
    whole.find_readers(results)
    for each in ranks:
        yield _Part(whole, own._replace(ranks=each), devices).of_step(results, text)


class _Owner(NamedTuple):
    """A loop or branch on devices, and the ranks that have its parts."""

    functions: Sequence[_Whole]
    arguments: Sequence[int]
    """The rank of each argument, behind the predicate or index."""
    outputs: Sequence[int]
    """The rank of each output."""
    results: Sequence[Sequence[tuple[Ref, int]]]
    """The results of all processes for each function, with the ranks that read them."""
    firsts: Mapping[int, int]
    """The first rank of each process, which reads the predicate or index."""

    @property
    def is_shared(self) -> bool:
        return len(self.firsts) > 1


@final
class _Whole:
    """A step or a function of all processes: what is where, and what each process has to do with. Every
    process has the ``feeds`` of a step.
    """

    def __init__(self, subgraph: Subgraph, own: Own, feeds: Collection[str] = ()) -> None:
        assert own.mesh.devices is not None
        self.subgraph, self._own = subgraph, own
        hosts = {own.mesh.host(*at): rank for rank, at in reversed(own.mesh.places().items())}
        self.hosts = hosts.keys() - own.mesh.devices
        self.ranks = hosts
        self.ranks |= {name: rank for rank, name in enumerate(own.mesh.devices)}
        self.task = cache(own.task)
        """The process of a rank."""
        self.everywhere = fed_nodes(subgraph, feeds)
        """The nodes that every process computes for itself."""
        self.owners = {node.name: self._owner(node) for node in subgraph if node.op.effect is Effect.NESTED}
        self.readers: dict[Ref, dict[int, None]] = defaultdict(dict)
        """The ranks in other processes that read a tensor; the output -1 of a node is its end."""
        self.is_alone = True
        """Whether nothing travels between processes."""
        self._of_all: list[int] = []
        self._of_task: dict[int, list[int]] = defaultdict(list)
        """The numbers of nodes that all processes, and that each one, have to do with."""
        self._nodes = list(subgraph)

    def nodes_of(self, task: int) -> list[Node]:
        """The nodes that the process has, in part or whole, or exchanges something for."""
        return [self._nodes[number] for number in sorted([*self._of_all, *self._of_task[task]])]

    # --- ranks

    def rank(self, node: Node) -> int:
        """The rank of a node; one that has a device of its own runs once, in the first process."""
        return self.ranks.get(node.device, 0)

    def rank_of(self, ref: Ref) -> int:
        node, index = self.subgraph.nodes[ref[0]], ref[1]
        if node.op in COLLECTIVES:
            return self.rank_of(node.inputs[index])
        owner = self.owners.get(node.name)
        return self.rank(node) if owner is None or index < 0 else owner.outputs[index]

    def _tasks_of(self, ref: Ref) -> Collection[int]:
        """The processes that have ``ref``. Of a shared loop, each knows the end of its own part."""
        owner = self.owners.get(ref[0])
        return (self.task(self.rank_of(ref)),) if owner is None or ref[1] >= 0 else owner.firsts

    def find_readers(self, results: Sequence[tuple[Ref, int]]) -> None:
        """Find what is read elsewhere. ``results``: the fetches of all processes, with the ranks that read
        them.
        """
        for node in self._nodes:
            if node.op in COLLECTIVES or node.name in self.everywhere:
                continue
            owner = self.owners.get(node.name)
            if owner is None or not owner.is_shared:
                firsts, ranks = [self.rank(node)], [self.rank(node)] * len(node.inputs)
            else:
                firsts, ranks = [*owner.firsts.values()], [-1, *owner.arguments]
                for first in firsts:
                    self._note(node.inputs[0], first)
                for function, read in zip(owner.functions, owner.results, strict=True):
                    function.find_readers(read)
            for ref, rank in zip(node.inputs, ranks, strict=True):
                if rank >= 0:
                    self._note(ref, rank)
            for name in node.controls:
                for first in firsts:
                    self._note((name, -1), first)
        for ref, rank in results:
            self._note(ref, rank)
        for number, node in enumerate(self._nodes):
            self._list(number, node)

    def _note(self, ref: Ref, reader: int) -> None:
        if ref[0] not in self.everywhere and self.task(reader) not in self._tasks_of(ref):
            self.readers[ref][reader] = None

    def _list(self, number: int, node: Node) -> None:
        """Note which processes have to do with ``node``."""
        if node.name in self.everywhere:
            self._of_all.append(number)
            return
        tasks, owner = set[int](), self.owners.get(node.name)
        if node.op in COLLECTIVES:
            if node.op not in (all_gather_op, all_reduce_op, reduce_scatter_op, *COALESCED):
                raise UnimplementedError(
                    f"expected a collective of layouts; got {node.op.name} {node.name!r}"
                )
            tasks |= {self.task(self.rank_of(ref)) for ref in node.inputs}
        else:
            tasks |= owner.firsts.keys() if owner and owner.is_shared else {self.task(self.rank(node))}
        self.is_alone &= len(tasks) == 1
        for index, spec in [(-1, _END), *enumerate(node.outputs)]:
            readers = self.readers.get((node.name, index))
            if readers:
                if spec.dtype in (dtypes.resource, dtypes.variant):
                    what = f"expected a tensor to be sent between processes; got {spec}"
                    raise located(node, UnimplementedError(what))
                self.is_alone = False
                tasks |= {self.task(rank) for rank in (self.rank_of((node.name, index)), *readers)}
        for task in tasks:
            self._of_task[task].append(number)

    # --- loops and branches

    def _owner(self, node: Node) -> _Owner:
        functions = owned_subgraphs(node.attrs)
        parts = [_Whole(function, self._own) for function in functions]
        arguments = [self.rank(functions[0].nodes[name]) for name in functions[0].feeds]
        count = len(node.outputs)
        is_loop = node.op.name == "_Loop"
        outputs = arguments[:count] if is_loop else [parts[0].rank_of(ref) for ref in functions[0].fetches]
        firsts: dict[int, int] = {}
        for rank in sorted({self.ranks[device] for device in devices_in(node) if device in self.ranks}):
            firsts.setdefault(self.task(rank), rank)
        ranks, results = [*(firsts.values() if is_loop else ()), *outputs], []
        for function in functions:
            fetches = function.fetches
            read = [fetches[0]] * len(firsts) + [*fetches[1:]] if is_loop else fetches
            results.append([*zip(read, ranks, strict=True)])
        return _Owner(parts, arguments, outputs, results, firsts)

    # --- feeds

    @cached_property
    def shared_feeds(self) -> tuple[str, ...]:
        """The feeds that other processes than the first read, in parts or whole: all must feed the same."""
        read_from: dict[str, set[str]] = {feed: {feed} for feed in self.subgraph.feeds}
        shared: set[str] = set()
        for node in self._nodes:
            if node.name in read_from:
                continue
            feeds = set[str]().union(*[read_from.get(name, ()) for name, _ in node.inputs])
            if node.name in self.everywhere:
                read_from[node.name] = feeds
            elif self._is_elsewhere(node):
                shared |= feeds
        return tuple(feed for feed in self.subgraph.feeds if feed in shared)

    def _is_elsewhere(self, node: Node) -> bool:
        """Whether another process than the first runs ``node``, or a part of it."""
        owner = self.owners.get(node.name)
        if node.op in COLLECTIVES or (owner is not None and owner.is_shared):
            return True
        return self.task(self.rank(node)) != self.task(0)


@final
class _Part:
    """The part of a process in a step or a function."""

    def __init__(self, whole: _Whole, own: Own, devices: Sequence[DeviceSpec]) -> None:
        assert own.mesh.devices is not None
        self._whole, self._own, self._all_devices = whole, own, devices
        self._task = whole.task(own.ranks[0])
        self._devices = {rank: device_inside(own.mesh.devices[rank], devices) for rank in own.ranks}
        self._indices = own.mesh.device_indices()
        self._nodes: dict[str, Node] = {}
        self._here: dict[tuple[Ref, int], Ref] = {}
        """Tensors from elsewhere, from a collective or a shared loop, as ranks of this process have them."""
        self._awaited: dict[str, Node] = {}
        """Receives that are not read yet."""
        self._travelling: list[str] = []
        """Nodes that exchange something between processes, with ranks here."""

    def of_step(self, results: Sequence[tuple[Ref, int]], text: str) -> Subgraph:
        """The part of a step, with the fetches of all processes and the ranks that read them."""
        self._add_all()
        self._agree(text)
        return self._part(self._whole.subgraph.feeds, results)

    def of_function(self, feeds: Sequence[str], results: Sequence[tuple[Ref, int]]) -> Subgraph:
        """The part of a function with the parameters ``feeds``."""
        self._add_all()
        return self._part(feeds, results)

    def _add_all(self) -> None:
        for node in self._whole.nodes_of(self._task):
            owner = self._whole.owners.get(node.name)
            if node.op in COLLECTIVES:
                self._add_collective(node)
            elif owner is not None and owner.is_shared:
                self._add_shared(node, owner)
            elif node.name in self._whole.everywhere or self._is_here(self._whole.rank(node)):
                self._add(self._local(node))
            for index in [-1, *range(len(node.outputs))]:
                if (node.name, index) in self._whole.readers:
                    self._add_message(node, index)

    def _part(self, feeds: Sequence[str], results: Sequence[tuple[Ref, int]]) -> Subgraph:
        fetches = tuple(self._ref(ref, rank) for ref, rank in results if self._is_here(rank))
        targets = [name for name in self._whole.subgraph.targets if name in self._nodes]
        travelling = [name for name in self._travelling if name not in self._awaited]
        return prune(Subgraph(self._nodes, tuple(feeds), fetches, (*targets, *travelling)))

    def _is_here(self, rank: int) -> bool:
        return rank in self._devices

    def _ref(self, ref: Ref, reader: int) -> Ref:
        """``ref`` as the rank ``reader``, which is here, has it."""
        here = self._here
        found = here.get((ref, reader)) or here.get((ref, self._whole.rank_of(ref)), ref)
        self._receive(found[0])
        return found

    def _receive(self, name: str) -> None:
        """Add the node ``name`` if it receives a message: where that is read first, as what comes before
        need not wait for it.
        """
        if name in self._awaited:
            self._add(self._awaited.pop(name))

    # --- loops and branches

    def _add_shared(self, node: Node, owner: _Owner) -> None:
        """Add the part of a loop or branch between processes."""
        if self._task not in owner.firsts:
            return
        first, is_loop = owner.firsts[self._task], node.op.name == "_Loop"
        arguments = [i for i, rank in enumerate(owner.arguments) if self._is_here(rank)]
        outputs = [k for k, rank in enumerate(owner.outputs) if self._is_here(rank)]
        functions = []
        for function, results in zip(owner.functions, owner.results, strict=True):
            part = _Part(function, self._own, self._all_devices)
            functions.append(part.of_function([function.subgraph.feeds[i] for i in arguments], results))
        count = len(node.outputs)
        changed: Mapping[str, Any] = {
            "body": functions[0],
            "T": tuple(node.attrs["T"][k] for k in outputs),
            "C": tuple(node.attrs["C"][i - count] for i in arguments if i >= count),
        } if is_loop else {
            "branches": tuple(functions),
            "Tin": tuple(node.attrs["Tin"][i] for i in arguments),
            "Tout": tuple(node.attrs["Tout"][k] for k in outputs),
        }  # fmt: skip
        given = [self._ref(node.inputs[1 + i], owner.arguments[i]) for i in arguments]
        self._add(
            node.replace(
                device=self._devices[first],
                inputs=(self._ref(node.inputs[0], first), *given),
                controls=self._controls(node, first),
                attrs={**node.attrs, **changed},
                outputs=tuple(node.outputs[k] for k in outputs),
            )
        )
        self._here |= {
            ((node.name, k), owner.outputs[k]): (node.name, place) for place, k in enumerate(outputs)
        }
        self._travelling.append(node.name)

    # --- nodes

    def _add(self, node: Node) -> None:
        assert node.name not in self._nodes, node.name
        self._nodes[node.name] = node

    def _local(self, node: Node) -> Node:
        """``node``, on its device in this session, with what it reads from elsewhere."""
        rank = self._whole.rank(node)
        rank = rank if self._is_here(rank) else self._own.ranks[0]
        device = self._here_of(node, rank)
        if node.name in self._whole.everywhere:
            return node.replace(device=device)
        node = with_functions(node, self._local_function)
        inputs = tuple(self._ref(ref, rank) for ref in node.inputs)
        return node.replace(inputs=inputs, controls=self._controls(node, rank), device=device)

    def _here_of(self, node: Node, rank: int) -> str:
        """The device of this session for ``node``: that of ``rank``, or the host."""
        if node.device in self._whole.hosts:
            return device_inside(node.device, self._all_devices)
        return self._devices[rank] if node.device in self._whole.ranks else node.device

    def _controls(self, node: Node, rank: int) -> tuple[str, ...]:
        ends = {name: self._here.get(((name, -1), rank)) for name in node.controls}
        found = tuple(name if end is None else end[0] for name, end in ends.items())
        for name in found:
            self._receive(name)
        return found

    def _local_function(self, function: Subgraph) -> Subgraph:
        """A function of a loop or branch, on the devices of this session."""

        def local(node: Node) -> Node:
            node = with_functions(node, self._local_function)
            rank = self._whole.ranks.get(node.device)
            return node if rank is None else node.replace(device=self._here_of(node, rank))

        return function.mapped(local)

    def _add_collective(self, node: Node) -> None:
        ranks = [self._whole.rank_of(ref) for ref in node.inputs]
        specs = [self._whole.subgraph.spec(ref) for ref in node.inputs]
        if len({self._whole.task(rank) for rank in ranks}) == 1:
            if self._is_here(ranks[0]):
                inputs = tuple(self._ref(ref, rank) for ref, rank in zip(node.inputs, ranks, strict=True))
                self._add(node.replace(inputs=inputs))
        elif node.op is all_gather_op and len({spec.shape for spec in specs}) > 1:
            self._gather_unevenly(node, ranks, specs)
        else:
            self._add_travelling(node, ranks)

    def _add_travelling(self, node: Node, ranks: Sequence[int]) -> None:
        here = [index for index, rank in enumerate(ranks) if self._is_here(rank)]
        if not here:
            return
        inputs = tuple(self._ref(node.inputs[i], ranks[i]) for i in here)
        once = [*dict.fromkeys(ranks)]  # a coalesced one has several tensors of each rank
        attrs = {**node.attrs, **self._membership(node.name, once), "N": len(here)}
        self._add(node.replace(inputs=inputs, attrs=attrs, outputs=tuple(node.outputs[i] for i in here)))
        self._here |= {((node.name, i), ranks[i]): (node.name, place) for place, i in enumerate(here)}
        self._travelling.append(node.name)

    def _membership(self, name: str, ranks: Sequence[int]) -> dict[str, Any]:
        """The attributes of a collective among ``ranks`` of the mesh."""
        is_all = tuple(ranks) == tuple(range(self._own.mesh.num_devices))
        key = self._own.key if is_all else split_key(self._own.key, self._label(ranks), ranks)
        here = tuple(index for index, rank in enumerate(ranks) if self._is_here(rank))
        return {"group_key": key, "group_size": len(ranks), "ranks": here, "instance_key": name}

    def _label(self, ranks: Sequence[int]) -> str:
        """The axes along which ``ranks`` differ."""
        columns = zip(*[self._indices[rank] for rank in ranks], strict=True)
        axes = [axis.name for axis in self._own.mesh.device_axes]
        return " x ".join(axis for axis, column in zip(axes, columns, strict=True) if len(set(column)) > 1)

    # --- messages

    def _add_message(self, node: Node, index: int) -> None:
        """Messages with an output of ``node``: one to each process in which it is read."""
        source = self._whole.rank_of((node.name, index))
        spec = _END if index < 0 else node.outputs[index]
        readers: dict[int, list[int]] = defaultdict(list)
        for rank in sorted(self._whole.readers[node.name, index]):
            readers[self._whole.task(rank)].append(rank)
        name = f"{node.name}/_sent/{'end' if index < 0 else index}"
        for task, ranks in readers.items():
            edge = f"{name}/{task}"
            if self._is_here(source):
                self._send(edge, node, index, spec, source, ranks[0])
            if task == self._task:
                attrs = {"dtype": spec.dtype, "shape": spec.shape, **self._edge(edge, ranks[0], source)}
                receive = Node(
                    f"{edge}/received", tagged_recv_op, (), (), attrs, self._devices[ranks[0]], node.source,
                    (spec,),
                )  # fmt: skip
                self._travelling.append(receive.name)
                self._awaited[receive.name] = receive
                self._here |= {((node.name, index), rank): (receive.name, 0) for rank in ranks}

    def _send(self, edge: str, node: Node, index: int, spec: TensorSpec, source: int, target: int) -> None:
        device = self._devices[source]
        value = self._ref((node.name, index), source)
        if index < 0:
            empty = np.zeros(0, np.int32)
            value = self._constant(f"{edge}/signal", empty, device, node, (node.name,))
        attrs = {"T": spec.dtype, "is_described": describes_itself(spec), **self._edge(edge, source, target)}
        self._travelling.append(self._put(edge, tagged_send_op, (value,), attrs, device, (), node)[0])

    def _edge(self, edge: str, rank: int, peer: int) -> dict[str, Any]:
        """The attributes of a message between ``rank``, which is here, and ``peer``."""
        return {"group_key": self._own.key, "rank": rank, "edge": edge, "peer": peer}

    def _broadcast(
        self, name: str, value: Ref | None, spec: TensorSpec, ranks: Sequence[int], origin: Node
    ) -> dict[int, Ref]:
        """The ``value`` of the first of ``ranks`` at those that are here."""
        here = [rank for rank in ranks if self._is_here(rank)]
        if not here:
            return {}
        empty = np.zeros(0, np.int32)
        places = [self._constant(f"{name}/place_{rank}", empty, self._devices[rank], origin) for rank in here]
        attrs = {
            "M": 0 if value is None else 1, "N": len(here), "T": spec.dtype, "root": 0, "shape": spec.shape,
            "lowering": "tree", "tasks": (), **self._membership(name, ranks),
        }  # fmt: skip
        given = () if value is None else (value,)
        self._put(name, broadcast_op, (*given, *places), attrs, "", [spec] * len(here), origin)
        self._travelling.append(name)
        return {rank: (name, index) for index, rank in enumerate(here)}

    def _gather_unevenly(self, node: Node, ranks: Sequence[int], specs: Sequence[TensorSpec]) -> None:
        """Parts of different sizes: each is broadcast by its rank, unless it is empty, and joined."""
        parts: dict[int, list[Ref]] = defaultdict(list)
        for number, (ref, rank, spec) in enumerate(zip(node.inputs, ranks, specs, strict=True)):
            if 0 in (spec.shape or ()):
                continue
            value = self._ref(ref, rank) if self._is_here(rank) else None
            order = [rank, *[other for other in ranks if other != rank]]
            name = f"{node.name}/_parts/{number}"
            for at, received in self._broadcast(name, value, spec, order, node).items():
                parts[at].append(received)
        for index, rank in enumerate(ranks):
            if self._is_here(rank):
                self._here[(node.name, index), rank] = self._joined(node, index, rank, parts[rank])

    def _joined(self, node: Node, index: int, rank: int, parts: Sequence[Ref]) -> Ref:
        """The output ``index`` of ``node``, which joins ``parts``."""
        name, device, spec = f"{node.name}/_parts/at_{rank}", self._devices[rank], node.outputs[index]
        if not parts:
            return self._constant(
                name, np.zeros([d or 0 for d in spec.shape or ()], spec.dtype.np), device, node
            )
        along = self._constant(f"{name}/axis", np.array(node.attrs["axis"], np.int32), device, node)
        attrs = {"N": len(parts), "T": spec.dtype, "Tidx": dtypes.int32}
        return self._put(name, concat_op, (*parts, along), attrs, device, [spec], node)

    def _agree(self, text: str) -> None:
        """Compare ``text`` with the other processes before anything travels."""
        if self._whole.is_alone:
            return
        first, name, fed = self._own.ranks[0], "_agree", self._whole.shared_feeds
        given = tuple((feed, 0) for feed in fed)
        attrs = {
            "group_key": self._own.key, "rank": first, "ranks": self._own.ranks, "plan": text, "fed": fed,
            "T": tuple(self._whole.subgraph.spec(ref).dtype for ref in given),
        }  # fmt: skip
        agree = Node(name, group_agree_op, given, (), attrs, self._devices[first], None, ())
        for awaited in list(self._awaited):  # by a fetch
            self._receive(awaited)
        for node in [self._nodes[travelling] for travelling in self._travelling]:
            self._nodes[node.name] = node.replace(controls=(*node.controls, name))
        feeds = {feed: self._nodes.pop(feed) for feed in fed if feed in self._nodes}
        self._nodes = {**feeds, name: agree, **self._nodes}
        self._travelling.append(name)

    # --- made here

    def _put(
        self,
        name: str,
        op: OpDef,
        inputs: tuple[Ref, ...],
        attrs: Mapping[str, Any],
        device: str,
        outputs: Sequence[TensorSpec],
        origin: Node,
        controls: tuple[str, ...] = (),
    ) -> Ref:
        self._add(Node(name, op, inputs, controls, attrs, device, origin.source, tuple(outputs)))
        return name, 0

    def _constant(
        self, name: str, value: Any, device: str, origin: Node, controls: tuple[str, ...] = ()
    ) -> Ref:
        dtype = dtypes.as_dtype(value.dtype)
        attrs = {"value": value, "dtype": dtype}
        return self._put(name, const, (), attrs, device, [TensorSpec(dtype, value.shape)], origin, controls)
