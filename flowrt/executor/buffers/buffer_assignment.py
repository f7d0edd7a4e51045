"""Buffer assignment: the storage of each tensor of a partition, decided before anything is bound.

    constant   a constant's array
    resource   the session's object of a handle
    view       another tensor's memory: of a buffer, a constant, or a variable that is read in place
    buffer     memory of the plan's arena, for a value of static shape with a kernel that can write into it
    register   a slot for new values in every step: large feeds, received tensors, results, values of unknown
    shape

Rules for correctness:

  1. A buffer that another partition may still be reading (it was sent) is not reused within the step. A
     function's memory is reused by what follows the function, so what it sends is copied.
  2. A variable that is written later in the program, while a reader of the old value is still to come, is
     copied at the read.
  3. A fetched value is fresh memory or a copy: it is the caller's and never changes afterwards.
  4. A kernel may overwrite an input only if its op is elementwise, or says so of this input; the input's
     buffer has exactly the output's shape and dtype, this is its last reader, and no other input is a view of
     it.
  5. A feed's buffer is not used earlier in the program: it is filled before the program starts.

A trial run on stand-ins (arrays with the buffers' shapes over pages that are never written) determines
whether an op's output can be a view: a transpose can, a reshape of it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.analysis.streams import StreamSchedule, one_stream
from flowrt.executor.buffers.lifetimes import Lifetimes
from flowrt.executor.buffers.memory_plan import ArenaPlanner, MemoryPlan
from flowrt.executor.program.arguments import Later, Operand, bound_kernel
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs, static_shape
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.shapes import is_static
from flowrt.graph.stand_in import stand_in

SMALL_BYTES = 65536
"""Bytes of what is copied, or kept until the step ends, since that costs little: a copy takes 3 us.

    feeds       on the host a smaller one, or message of another rank, is copied into a buffer, so that its
                readers are bound; a larger one is read where it is
    fetches     up to this size they are copied out of a buffer; above, all outputs of a kernel are new memory
                (rebinding a group's loop takes 25 us)
    sends       on the host a smaller tensor is sent out of a pinned buffer, to another task out of a copy; a
                larger one is new memory that its last reader frees
    registers   smaller values may stay until the step ends, larger ones until their last reader
"""


class Storage(Enum):
    """Storage class of a node's outputs. See the module."""

    CONSTANT = "constant"
    RESOURCE = "resource"
    VIEW = "view"
    BUFFER = "buffer"
    REGISTER = "register"


class BufferAssignment(NamedTuple):
    """The places of the tensors of ``subgraph``, a partition or a function, if its nodes run by ``schedule``:
    ``storage`` of each node's outputs by the node's name, and the arena of those in buffers.

    Of a node that owns functions, ``outputs`` has the storage of each output and ``functions`` their own
    assignments: a function's arena is in the node's ``(name, SCRATCH)``, and ``in_place`` are its results
    that its kernels write directly into the node's outputs. ``copied``: the reads of variables that are
    copies, by rule 2.
    """

    subgraph: Subgraph
    schedule: StreamSchedule
    lifetimes: Lifetimes
    storage: dict[str, Storage]
    memory: MemoryPlan
    outputs: dict[Ref, Storage]
    functions: dict[str, tuple[BufferAssignment, ...]]
    copied: frozenset[str]
    in_place: dict[Ref, int]

    def storage_of(self, ref: Ref) -> Storage:
        """Storage class of one output."""
        return self.outputs.get(ref) or self.storage[ref[0]]


SCRATCH = -1
"""Pseudo output index: the memory of a node's functions, reserved while the node runs."""


class Enclosing(NamedTuple):
    """Context of a function's buffer assignment: the storage of each parameter's argument, with a stand-in if
    it is already known; and for each result in a buffer, the output it becomes, with the parameter that
    occupies it.
    """

    parameters: dict[str, Storage]
    stand_ins: dict[Ref, Any]
    homes: dict[Ref, tuple[int, Ref | None]]


def assign_buffers(
    subgraph: Subgraph,
    schedule: StreamSchedule,
    resource: Callable[[Node], Any],
    device: Device,
    enclosing: Enclosing | None = None,
) -> BufferAssignment:
    """Buffer assignment of ``subgraph`` in the order of ``schedule``. On an asynchronous device, feeds and
    received tensors are copied into buffers, and fetches and sends are copied out. ``enclosing``, for a
    function: the storage of its parameters.

    Raises `InvalidArgumentError` for a value of unknown shape on a device that does not compute.
    """
    with np.errstate(all="ignore"):  # for the trial runs
        return _Assigner(subgraph, schedule, resource, device, enclosing).run()


@final
class _Assigner:
    def __init__(
        self,
        subgraph: Subgraph,
        schedule: StreamSchedule,
        resource: Callable[[Node], Any],
        device: Device,
        enclosing: Enclosing | None,
    ) -> None:
        self._subgraph, self._schedule = subgraph, schedule
        self._lifetimes = Lifetimes(subgraph, schedule)
        self._resource, self._device, self._is_asynchronous = resource, device, device.is_asynchronous
        self._computes = device.executor.computes
        self._storage: dict[str, Storage] = {}
        self._arena = ArenaPlanner(schedule.happens_before if schedule.count > 1 else None)
        self._live: dict[Ref, TensorSpec] = {}
        """The buffers in use."""
        self._exact: set[Ref] = set()
        """Tensors that are a whole buffer in its own shape: see rule 4."""
        self._stand_ins: dict[Ref, Any] = {}
        self._outputs: dict[Ref, Storage] = {}
        self._functions: dict[str, tuple[BufferAssignment, ...]] = {}
        self._copied: set[str] = set()
        self._of_lists: set[str] = set()
        """Nodes that depend on all elements of a list, on a device that does not compute."""
        self._surroundings = enclosing
        self._in_place: dict[Ref, int] = {}

    def run(self) -> BufferAssignment:
        if self._surroundings is not None:
            self._storage.update(self._surroundings.parameters)
            self._stand_ins.update(self._surroundings.stand_ins)
            self._exact.update(self._surroundings.stand_ins)
        for name in self._subgraph.feeds:  # rule 5
            if name in self._storage:
                continue
            node = self._subgraph.nodes[name]
            self._storage[name] = storage = self._storage_of_feed(node)
            if storage is Storage.BUFFER:
                self._new_buffer(node, 0)
        for position, node in enumerate(self._schedule.order):
            if node.name not in self._storage:
                self._storage[node.name] = self._assign(node, position)
            self._release(position)
        return BufferAssignment(
            self._subgraph, self._schedule, self._lifetimes, self._storage, self._arena.plan(),
            self._outputs, self._functions, frozenset(self._copied), self._in_place,
        )  # fmt: skip

    # --- one node

    def _assign(self, node: Node, position: int) -> Storage:
        if node.op.name == "Const":
            return Storage.CONSTANT
        if node.op.effect is Effect.HANDLE:
            return Storage.RESOURCE
        if node.op.name == "_Feed":
            return self._storage_of_feed(node)
        if node.op.effect is Effect.NESTED:
            return self._assign_functions(node, position)
        if node.op.reads_variable and self._lifetimes.is_overwritten(node, position):
            self._copied.add(node.name)
        elif node.op.alias and (found := self._storage_of_alias(node)) is not None:
            return found
        if not self._fits_buffers(node):
            return Storage.REGISTER
        inherited = self._inheritable(node, position)
        for index, spec in enumerate(node.outputs):
            if self._is_written_home(node, index, position):
                continue
            source = next((r for r in inherited if self._live[r] == spec), None)
            if source is None:
                self._new_buffer(node, index)
            else:
                inherited.remove(source)
                self._hold(node, index)
                del self._live[source]
                self._arena.inherit((node.name, index), source)
        return Storage.BUFFER

    def _storage_of_feed(self, node: Node) -> Storage:
        """Storage class of a feed. By rule 3 a fetched host feed is in a register: the value is copied."""
        spec = node.outputs[0]
        if not _is_plain(spec):
            return Storage.REGISTER
        small = nbytes_of(spec) <= SMALL_BYTES and not self._lifetimes.lasts((node.name, 0))
        return Storage.BUFFER if self._is_asynchronous or small else Storage.REGISTER

    def _fits_buffers(self, node: Node) -> bool:
        if not node.outputs:
            return False
        if not all(map(_is_plain, node.outputs)):
            if not self._computes:
                self._check_shapes(node)
            return False
        if not self._computes:
            return True
        if node.op.name == "_Recv":
            return self._is_asynchronous
        is_copied = node.name in self._copied
        if not is_copied and not node.op.takes_out:
            return False
        if node.op.waits and (self._is_asynchronous or nbytes_of(node.outputs[0]) > SMALL_BYTES):
            return False  # a message
        if self._is_asynchronous:
            return not is_on_host(node)
        outputs = [(node.name, i) for i in range(len(node.outputs))]
        if self._surroundings is None and self._fetched_bytes(outputs) > SMALL_BYTES:
            return False
        is_sent = not is_copied and self._lifetimes.is_sent(outputs)
        return not is_sent or all(nbytes_of(spec) <= SMALL_BYTES for spec in node.outputs)

    def _fetched_bytes(self, refs: list[Ref]) -> int:
        fetched = [ref for ref in refs if self._lifetimes.lasts(ref)]
        return sum(nbytes_of(self._subgraph.spec(ref)) for ref in fetched)

    def _check_shapes(self, node: Node) -> None:
        """Check that, on a device that does not compute, only lists and values derived from all their
        elements have unknown sizes.
        """
        if any(self._subgraph.spec(r).dtype is dtypes.variant or r[0] in self._of_lists for r in node.inputs):
            self._of_lists.add(node.name)
        elif not all(_is_plain(spec) or spec.dtype is dtypes.variant for spec in node.outputs):
            specs = ", ".join(map(str, node.outputs))
            message = f"computes nothing: expected a static shape; got {specs}"
            raise located(node, InvalidArgumentError(f"{self._device.name} {message}"))

    # --- views

    def _storage_of_alias(self, node: Node) -> Storage | None:
        """Storage class of what may be a view; None for a copy in a buffer: it lives on its own."""
        if self._try_view(node):
            return Storage.VIEW
        if self._operand(node.inputs[node.op.aliased]).slot is not None or not self._fits_buffers(node):
            return Storage.REGISTER  # where a view is free
        if node.op.effect is not Effect.READ:
            self._lifetimes.separate(node)
        return None

    def _try_view(self, node: Node) -> bool:
        """Whether the outputs can be views that are made when the program is bound."""
        viewed = node.inputs[node.op.aliased]
        source = self._operand(viewed)
        if node.op.effect not in (Effect.PURE, Effect.READ) or source.slot is not None:
            return False
        ref = (node.name, 0)
        if node.outputs[0].dtype is dtypes.resource:  # a handle passed on, or of a variable's rows
            function, arguments = bound_kernel(np, node, [source])
            self._stand_ins[ref] = function(*arguments)
            return True
        if node.op.effect is Effect.READ:
            if not source.value.is_pinned:
                return False
            self._stand_ins[ref] = stand_in(node.outputs[0])
            return True
        function, arguments = bound_kernel(np, node, [self._operand(r) for r in node.inputs])
        if any(isinstance(a, Later) for a in arguments):
            return False
        if node.op is reshape and not _is_reshaped_in_place(*arguments):
            return False
        try:
            array = function(*arguments)
        except Exception as error:
            raise located(node, error) from error
        views = array if isinstance(array, list) else [array]
        if not all(isinstance(v, np.ndarray) and np.may_share_memory(v, source.value) for v in views):
            return False
        self._stand_ins.update({(node.name, index): view for index, view in enumerate(views)})
        if array is source.value and viewed in self._exact:
            self._exact.add(ref)
        return True

    def _storage_of(self, ref: Ref) -> Storage:
        return self._outputs.get(ref) or self._storage[ref[0]]

    def _operand(self, ref: Ref) -> Operand:
        storage = self._storage_of(ref)
        if storage is Storage.CONSTANT:
            value = self._subgraph.nodes[ref[0]].attrs["value"]
            return Operand(value, None, "", host_value=value)
        if storage is Storage.RESOURCE:
            if ref not in self._stand_ins:
                self._stand_ins[ref] = self._resource(self._subgraph.nodes[ref[0]])
            return Operand(self._stand_ins[ref], None, "")
        if storage is Storage.REGISTER:
            return Operand(None, 0, "")
        if ref not in self._stand_ins:
            self._stand_ins[ref] = stand_in(self._subgraph.spec(ref))
        return Operand(self._stand_ins[ref], None, "")

    # --- functions

    def _assign_functions(self, node: Node, position: int) -> Storage:
        """The outputs of ``node`` and the places of its functions, which run one at a time."""
        for index, spec in enumerate(node.outputs):
            ref = (node.name, index)
            self._outputs[ref] = storage = self._storage_of_output(ref, spec)
            if storage is Storage.BUFFER and not self._is_written_home(node, index, position):
                self._new_buffer(node, index)
        functions = tuple([self._assign_function(node, f) for f in owned_subgraphs(node.attrs)])
        self._functions[node.name] = functions
        nbytes = max(function.memory.nbytes for function in functions)
        scratch = (node.name, SCRATCH)
        self._arena.allocate(scratch, nbytes, node.name)
        self._arena.release(scratch, (node.name,))
        return Storage.REGISTER

    def _storage_of_output(self, ref: Ref, spec: TensorSpec) -> Storage:
        if not _is_plain(spec):
            return Storage.REGISTER
        is_large = not self._is_asynchronous and nbytes_of(spec) > SMALL_BYTES
        return Storage.REGISTER if is_large and self._lifetimes.is_sent([ref]) else Storage.BUFFER

    def _assign_function(self, node: Node, function: Subgraph) -> BufferAssignment:
        enclosing = self._enclosing_of(node, function)
        return _Assigner(function, one_stream(function), self._resource, self._device, enclosing).run()

    def _enclosing_of(self, node: Node, function: Subgraph) -> Enclosing:
        is_loop = node.op.name == "_Loop"
        results = function.fetches[1:] if is_loop else function.fetches
        carried = len(results) if is_loop else 0
        arguments = node.inputs[len(node.inputs) - len(function.feeds) :]  # follow a predicate or an index
        arguments = (*[(node.name, i) for i in range(carried)], *arguments[carried:])
        parameters: dict[str, Storage] = {}
        stand_ins: dict[Ref, Any] = {}
        for name, ref in zip(function.feeds, arguments, strict=True):
            storage = self._storage_of(ref)
            if storage in (Storage.CONSTANT, Storage.BUFFER):
                storage = Storage.VIEW
            parameters[name] = storage
            if storage is not Storage.REGISTER:
                stand_ins[name, 0] = self._operand(ref).value
        homes: dict[Ref, tuple[int, Ref | None]] = {}
        for index, ref in enumerate(results):
            if self._outputs[node.name, index] is Storage.BUFFER and ref not in homes:
                occupant = index if is_loop else self._occupant(node, index, arguments)
                homes[ref] = index, None if occupant is None else (function.feeds[occupant], 0)
        return Enclosing(parameters, stand_ins, homes)

    def _occupant(self, node: Node, index: int, arguments: Sequence[Ref]) -> int | None:
        """The number of the argument that is where the output of a branch will be, if one is."""
        if (node.name, index) not in self._in_place:
            return None
        assert self._surroundings is not None
        _, parameter = self._surroundings.homes[node.name, index]
        roots = [self._lifetimes.root(ref) for ref in arguments]
        return roots.index(parameter) if parameter in roots else None

    def _is_written_home(self, node: Node, index: int, position: int) -> bool:
        """Whether the output, a result of this function, can be written directly to its owner's output: the
        old value there must be dead, and the kernel may read it only under rule 4. Branches may read it as
        one argument: for them it is a value at the place of their result in turn.
        """
        ref = (node.name, index)
        if self._surroundings is None or ref not in self._surroundings.homes:
            return False
        home, parameter = self._surroundings.homes[ref]
        if parameter is not None:
            lifetimes = self._lifetimes
            if self._subgraph.spec(parameter) != node.outputs[index]:
                return False
            if not lifetimes.is_read_before(parameter, position):
                reads = [ref for ref in node.inputs if lifetimes.root(ref) == parameter]
                is_one_argument = node.op.name == "_Case" and len(reads) == 1 and reads[0] != node.inputs[0]
                if not (node.op.elementwise or is_one_argument):
                    return False
                if not lifetimes.ends_at(parameter, position) or not self._exact.issuperset(reads):
                    return False
        self._in_place[ref] = home
        self._exact.add(ref)
        return True

    # --- buffers

    def _new_buffer(self, node: Node, index: int) -> None:
        spec = self._hold(node, index)
        self._arena.allocate((node.name, index), nbytes_of(spec), node.name)

    def _hold(self, node: Node, index: int) -> TensorSpec:
        spec = self._live[node.name, index] = node.outputs[index]
        self._exact.add((node.name, index))
        return spec

    def _inheritable(self, node: Node, position: int) -> list[Ref]:
        """The buffers that the kernel may overwrite by rule 4. Empty for a scalar: NumPy takes 0.3 us longer
        to add in place.
        """
        lifetimes = self._lifetimes
        overwritten = _overwritten(node)
        if not overwritten or (node.outputs[0].shape == () and not self._is_asynchronous):
            return []
        rearranged = {lifetimes.root(ref) for ref in node.inputs if ref not in self._exact}
        ending = lifetimes.ending_at(position)
        return [
            root
            for root in dict.fromkeys([lifetimes.root(ref) for ref in overwritten])
            if root in ending
            and root in self._live
            and root not in rearranged
            and lifetimes.are_done(root, node.name)
        ]

    def _release(self, position: int) -> None:
        """Release the buffers with their last reader at ``position``."""
        for root in self._lifetimes.ending_at(position):
            if self._live.pop(root, None) is not None:
                self._arena.release(root, self._lifetimes.users(root))


def _overwritten(node: Node) -> Sequence[Ref]:
    """The inputs that the kernel may find at the place of its output."""
    if node.op.overwrites is None:
        return node.inputs if node.op.elementwise else ()
    total = node.inputs[node.op.overwrites]
    return [total] if node.inputs.count(total) == 1 else []


def _is_reshaped_in_place(array: Any, shape: Any) -> bool:
    """Whether ``array`` in ``shape`` has the same memory. A copy of a large one would take long."""
    try:
        array.reshape(shape, copy=False)
    except ValueError:
        return array.size != math.prod(shape) and -1 not in shape  # of which the kernel tells
    return True


def is_on_host(node: Node) -> bool:
    """Whether some of the node's outputs are NumPy's on every device: shapes and the like."""
    return any(argument.on_host for argument in node.op.outputs)


def is_output_on_host(node: Node, index: int) -> bool:
    """Whether this one is."""
    outputs = node.op.outputs
    return outputs[min(index, len(outputs) - 1)].on_host  # a list of outputs comes last


@lru_cache(maxsize=1024)
def nbytes_of(spec: TensorSpec) -> int:
    """Size in bytes of a tensor of static shape."""
    return math.prod(static_shape(spec)) * spec.dtype.size


@lru_cache(maxsize=1024)
def _is_plain(spec: TensorSpec) -> bool:
    """Whether it can be stored in an arena."""
    return is_static(spec.shape) and spec.dtype.np.kind != "O"
