"""Interprocedural optimisation between operations and the functions that they own.

branches   a constant index selects one branch, which replaces the operation
results    an unused branch result or loop variable is removed, with its computation; this includes
           lists that loops keep for gradients that are not requested
arguments  constants are copied in, equal arguments merged, and unused ones removed, but not the effects that
           produced them; a loop variable that its body returns unchanged becomes invariant
elements   what a loop takes from a list on which an earlier one put only the same constant is that constant
hoisting   computations on invariant arguments alone move in front of the loop, if they cannot fail: the
           body may never run
inside     each function is optimised like any subgraph
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowrt.graph.construction.constant import feed_beside
from flowrt.graph.effects import is_stateful
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.base.identities import identity as identity_op
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.lower import inline
from flowrt.graph.passes.prepare.order_effects import Replaced, behind, replace_owners
from flowrt.graph.passes.prepare.prune import prune, redirect
from flowrt.graph.shapes import compatible, is_static

Optimise = Callable[[Subgraph], Subgraph]


def optimise_functions(subgraph: Subgraph, optimise: Optimise) -> Subgraph:
    """Apply the rules above to all functions in ``subgraph``; ``optimise`` is applied to their bodies."""
    if not any(node.op.effect is Effect.NESTED for node in subgraph):
        return subgraph
    read = {ref for node in subgraph for ref in node.inputs} | set(subgraph.fetches)

    def optimised(node: Node, outer: dict[str, Node]) -> Replaced:
        rule = _optimise_loop if node.op.name == "_Loop" else _optimise_case
        wanted = [i for i in range(len(node.outputs)) if (node.name, i) in read]
        added, outputs = rule(node, wanted, outer, optimise)
        return added, dict(zip(wanted, outputs, strict=True)), ()

    after = replace_owners(subgraph, optimised)
    return subgraph if after is subgraph else prune(after)


Optimised = tuple[list[Node], Sequence[Ref]]
"""The nodes that replace one, and the replacements of its outputs that are read."""


# --- branches


def _optimise_case(
    node: Node, wanted: Sequence[int], outer: dict[str, Node], optimise: Optimise
) -> Optimised:
    branches: tuple[Subgraph, ...] = node.attrs["branches"]
    index, arguments = node.inputs[0], node.inputs[1:]
    chooser = outer[index[0]]
    if chooser.op.name == "Const":
        number = int(chooser.attrs["value"])
        branch = branches[number if 0 <= number < len(branches) else -1]
        return _taken(behind(node, chooser.controls), branch, wanted)
    if len(wanted) < len(node.outputs):
        branches = tuple([prune(_with_fetches(b, [b.fetches[i] for i in wanted])) for b in branches])
    branches = tuple([optimise(_with_constants(b, arguments, outer)) for b in branches])
    # by position: branches name their parameters for the same arguments differently
    used = [i for i in range(len(arguments)) if any(_is_read(branch, branch.feeds[i]) for branch in branches)]
    if len(used) < len(arguments):
        branches = tuple([_with_parameters(b, [b.feeds[i] for i in used]) for b in branches])
    changed = _changed(
        node,
        (index, *[arguments[i] for i in used]),
        [node.outputs[i] for i in wanted],
        {
            "branches": branches,
            "Tin": tuple(node.attrs["Tin"][i] for i in used),
            "Tout": tuple(node.attrs["Tout"][i] for i in wanted),
        },
    )
    return [changed], [(node.name, i) for i in range(len(wanted))]


def _taken(node: Node, branch: Subgraph, wanted: Sequence[int]) -> Optimised:
    """The operations of the selected branch; they inherit the control edges of the node."""
    nodes, results = inline(branch, node.inputs[1:], f"{node.name}/", ())
    results = [results[i] for i in wanted]
    if node.controls:
        nodes = [n if n.op.is_pure else behind(n, node.controls) for n in nodes]
    passed, results = _passed_on(node, results, wanted)
    nodes += passed
    return [*nodes, _after(node, nodes, results)], results


def _passed_on(node: Node, results: list[Ref], outputs: Sequence[int]) -> tuple[list[Node], list[Ref]]:
    """``results``, the values of these ``outputs`` of ``node``, delayed by the node's control inputs."""
    if not node.controls:
        return [], results
    identities = []
    for number, (ref, output) in enumerate(zip(results, outputs, strict=True)):
        spec, name = node.outputs[output], f"{node.name}/result_{number}"
        identities.append(node.beside(name, identity_op, (ref,), node.controls, {"T": spec.dtype}, (spec,)))
    return identities, [(identity.name, 0) for identity in identities]


def _after(node: Node, nodes: Iterable[Node], results: Iterable[Ref]) -> Node:
    """A NoOp with the node's name, after those of ``nodes`` that produce ``results`` or have effects."""
    inside = {n.name: n for n in nodes}
    ends = [ref[0] for ref in results if ref[0] in inside] + [
        n.name for n in inside.values() if is_stateful(n)
    ]
    waits = tuple(dict.fromkeys([*node.controls, *ends]))
    return node.beside(node.name, no_op, controls=waits)


# --- loops


def _optimise_loop(
    node: Node, wanted: Sequence[int], outer: dict[str, Node], optimise: Optimise
) -> Optimised:
    first = outer[node.inputs[0][0]]
    carried = len(node.attrs["T"])
    if first.op.name == "Const" and not first.attrs["value"].item():
        node = behind(node, first.controls)
        added, results = _passed_on(node, [node.inputs[1 + i] for i in wanted], wanted)
        return [*added, node.beside(node.name, no_op, controls=node.controls)], results
    arguments = node.inputs[1:]
    body = _with_known_elements(node.attrs["body"], arguments[:carried], outer)
    live = _live_variables(body, carried, wanted)
    stays = [k for k in live if body.fetches[1 + k] != (body.feeds[k], 0)]
    handed_on = [k for k in live if k not in set(stays)]
    order = [*stays, *handed_on, *range(carried, len(arguments))]
    if order != list(range(len(arguments))) or len(stays) < carried:
        body = _with_fetches(body, [body.fetches[0], *[body.fetches[1 + k] for k in stays]])
        body = prune(body.replace(feeds=tuple(body.feeds[k] for k in order)))
        arguments = tuple([arguments[k] for k in order])
    count = len(stays)
    body = optimise(_with_constants(body, arguments, outer, count))
    body, hoisted = _hoist(body, count, dict(zip(body.feeds, arguments, strict=True)))
    used = [i for i, name in enumerate(body.feeds) if i < count or _is_read(body, name)]
    refs = [*arguments, *[(name, 0) for name in body.feeds[len(arguments) :]]]
    if len(used) < len(body.feeds):
        body = _with_parameters(body, [body.feeds[i] for i in used])
    kinds = [body.nodes[name].outputs[0].dtype for name in body.feeds]
    changed = _changed(
        node,
        (node.inputs[0], *[refs[i] for i in used]),
        [node.outputs[k] for k in stays],
        {"body": body, "T": tuple(kinds[:count]), "C": tuple(kinds[count:])},
    )
    place = {k: (node.name, i) for i, k in enumerate(stays)}
    return [*hoisted, changed], [place.get(k, node.inputs[1 + k]) for k in wanted]


def _with_known_elements(body: Subgraph, arguments: Sequence[Ref], outer: dict[str, Node]) -> Subgraph:
    """``body`` with constants in place of what it takes from lists that an earlier loop made of nothing else,
    one an iteration: shapes, which TensorFlow 1 keeps for gradients as if they could vary.
    """
    known: dict[Ref, Node] = {}
    for k, ref in enumerate(arguments):
        popped = body.nodes[body.fetches[1 + k][0]]
        is_taken = _uses(popped, ListUse.POPPED) and popped.inputs[0] == (body.feeds[k], 0)
        constant = _all_elements(ref, outer) if is_taken else None
        if constant is not None and compatible(constant.outputs[0].shape, popped.outputs[1].shape):
            known[popped.name, 1] = constant.replace(name=f"{popped.name}/constant")
    if not any(ref in known for node in body for ref in node.inputs):
        return body
    feeds = [body.nodes[name] for name in body.feeds]
    rest = [node for node in body if node.name not in set(body.feeds)]
    added = {ref: (constant.name, 0) for ref, constant in known.items()}
    return infer_shapes(redirect(body, added, [*feeds, *known.values(), *rest]))


def _all_elements(ref: Ref, outer: dict[str, Node]) -> Node | None:
    """The constant that each element of a list is; None if they differ or are not known."""
    loop, place = outer[ref[0]], ref[1]
    if loop.op.name != "_Loop":
        return None
    body: Subgraph = loop.attrs["body"]
    pushed, first = body.nodes[body.fetches[1 + place][0]], outer[loop.inputs[1 + place][0]]
    if not _uses(pushed, ListUse.PUSHED) or pushed.inputs[0] != (body.feeds[place], 0):
        return None
    value = body.nodes[pushed.inputs[1][0]]
    is_constant = value.op.name == "Const" and not value.controls
    return value if is_constant and _uses(first, ListUse.EMPTY) else None


def _uses(node: Node, use: ListUse) -> bool:
    return node.op.lists is not None and node.op.lists.use is use


def _live_variables(body: Subgraph, carried: int, wanted: Sequence[int]) -> list[int]:
    """The loop variables that are read afterwards, or that those or the condition depend on."""
    position = {name: i for i, name in enumerate(body.feeds[:carried])}
    live: set[int] = set()
    stack = [body.fetches[0][0], *body.targets, *_effects(body)]
    seen: set[str] = set()
    pending = list(wanted)
    while stack or pending:
        if not stack:
            k = pending.pop()
            if k not in live:
                live.add(k)
                stack.append(body.fetches[1 + k][0])
            continue
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in position:
            pending.append(position[name])
        stack += body.nodes[name].predecessors
    return sorted(live)


def _hoist(body: Subgraph, carried: int, arguments: dict[str, Ref]) -> tuple[Subgraph, list[Node]]:
    """The body without its loop-invariant nodes, and these; each shares its name with its parameter."""
    invariant = {name: arguments[name] for name in body.feeds[carried:]}
    hoisted: dict[str, Node] = {}
    for node in body:
        if not node.inputs or node.controls or not _is_harmless(body, node):
            continue
        if all(
            name in invariant or name in hoisted or body.nodes[name].op.name == "Const"
            for name, _ in node.inputs
        ):
            hoisted[node.name] = node
    read = {ref[0] for n in body if n.name not in hoisted for ref in n.inputs} | {f[0] for f in body.fetches}
    needed = [name for name in hoisted if name in read]
    if not needed:
        return body, []
    moved: dict[str, Node] = {}
    for name in _ancestors(body, needed, hoisted):
        node = body.nodes[name]
        moved[name] = node.replace(
            inputs=tuple([invariant.get(r[0], r) if r[0] in invariant else r for r in node.inputs])
        )
    nodes = [
        feed_beside(node, node.name, node.outputs[0]) if node.name in needed else node
        for node in body
        if node.name not in hoisted or node.name in needed
    ]
    return prune(body.with_nodes(nodes).replace(feeds=(*body.feeds, *needed))), list(moved.values())


def _ancestors(body: Subgraph, needed: Sequence[str], hoisted: dict[str, Node]) -> list[str]:
    """``needed`` and their ancestors among hoisted nodes and constants, in the order of the body."""
    found: set[str] = set()
    stack = list(needed)
    while stack:
        name = stack.pop()
        if name not in found and (name in hoisted or body.nodes[name].op.name == "Const"):
            found.add(name)
            stack += [ref[0] for ref in body.nodes[name].inputs]
    return [name for name in body.nodes if name in found]


def _is_harmless(body: Subgraph, node: Node) -> bool:
    """Whether the node can run speculatively: it has no effects and never fails, whatever the values."""
    if not node.op.is_pure or len(node.outputs) != 1:
        return False
    is_float = node.outputs[0].dtype.is_floating
    is_sized = all(is_static(body.spec(ref).shape) for ref in node.inputs)
    return (
        (node.op.total and is_sized)
        or (node.op.elementwise and is_float)
        or (node.op.alias and not any(argument.on_host for argument in node.op.inputs))
    )


# --- what both need


def _changed(node: Node, inputs: tuple[Ref, ...], outputs: Sequence[Any], attrs: dict[str, Any]) -> Node:
    """``node`` with these fields; the same object if they are equal."""
    same = all(node.attrs.get(k) is v or _same(node.attrs.get(k), v) for k, v in attrs.items())
    if same and inputs == node.inputs and tuple(outputs) == node.outputs:
        return node
    return node.replace(inputs=inputs, outputs=tuple(outputs), attrs={**node.attrs, **attrs})


def _same(a: Any, b: Any) -> bool:
    if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)):
        return False
    return all(x is y for x, y in zip(a, b, strict=True))


def _with_fetches(function: Subgraph, fetches: Sequence[Ref]) -> Subgraph:
    """``function`` with fewer results. Its side effects are kept."""
    if tuple(fetches) == function.fetches:
        return function
    targets = tuple(dict.fromkeys([*function.targets, *_effects(function)]))
    return function.replace(fetches=tuple(fetches), targets=targets)


def _effects(function: Subgraph) -> list[str]:
    return [node.name for node in function if is_stateful(node)]


def _with_parameters(function: Subgraph, names: Sequence[str]) -> Subgraph:
    """``function`` with only the parameters ``names``; the others are unused."""
    kept = set(names)
    gone = {name for name in function.feeds if name not in kept}
    nodes = {name: node for name, node in function.nodes.items() if name not in gone}
    return function.replace(nodes=nodes, feeds=tuple(names))


def _is_read(function: Subgraph, parameter: str) -> bool:
    return any(parameter == ref[0] for node in function for ref in node.inputs) or any(
        parameter == ref[0] for ref in function.fetches
    )


def _with_constants(
    function: Subgraph, arguments: Sequence[Ref], outer: dict[str, Node], first: int = 0
) -> Subgraph:
    """``function`` with constants in place of parameters from ``first`` on that have constant arguments, and
    one parameter for equal arguments; the others remain, unused.
    """
    nodes: dict[str, Node] = {}
    same: dict[Ref, Ref] = {}
    seen: dict[Ref, str] = {}
    for position, (name, ref) in enumerate(zip(function.feeds, arguments, strict=True)):
        if position < first:
            continue
        producer = outer[ref[0]]
        if producer.op.name == "Const" and not producer.controls:
            constant = producer.replace(name=f"{name}/constant")
            nodes[constant.name] = constant
            same[name, 0] = (constant.name, 0)
        elif ref in seen:
            same[name, 0] = (seen[ref], 0)
        else:
            seen[ref] = name
    read = [ref for ref in same if _is_read(function, ref[0])]
    if not read:
        return function
    added = [node for name, node in nodes.items() if name not in function.nodes]
    feeds = {name: function.nodes[name] for name in function.feeds}
    rest = [node for node in function if node.name not in feeds]
    return redirect(function, {ref: same[ref] for ref in read}, [*feeds.values(), *added, *rest])
