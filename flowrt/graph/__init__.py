"""Dataflow graphs: their representation as data, and the passes that rewrite them.

The core, in this folder:

    op_def, op_facets        `define_op`, `OpDef`: all facts of an op in one place; the kinds of its rules
    op_help                  the signature and the doc of an op for `inspect.signature` and `help`
    shapes                   the shape lattice
    node, topology           `Node`, `Subgraph`: the immutable form; edges are names
    typing                   what converts to a tensor, for annotations
    source                   the user's line behind an operation
    tf1_signatures           functions with renamed arguments, and with arguments that a family shares
    effects, partial_value   effects of a node; small values that shapes are made of
    precision                `Precision`: the dtypes of products, sums and variables
    inference, evaluate      shape rules over a graph; the reference interpreter
    stand_in                 arrays without memory, by which views are known

Subpackages:

    construction   user calls -> `Graph`, `Operation`, `Tensor`
    ops            the ops, by family
    derivatives    reverse and forward mode
    functions      operations that own functions; vectorization
    passes         pure functions from Subgraph to Subgraph
    collectives    schedules and costs of collectives
    layouts        layouts of tensors over a mesh of devices
    pipeline       schedules of pipelines: orders of actions, as data
    resources      run-time state behind handles
    trees          decision trees as arrays
    messages       nodes and tensors as protobuf; text: the text form

Invariants: a `Node` never changes; a pass returns the same object when it changed nothing; passes query
properties of an op's definition, not its name. Nothing here depends on sessions, rendezvous, or devices
beyond their names.
"""
