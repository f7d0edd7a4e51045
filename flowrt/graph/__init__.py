"""graph knows meaning: what a program says, as data, and how it is rewritten.

The data path, from a user's call to what the executor gets:

    op_def        `define_op`, `OpDef`: all there is to know about an op, in one place; ops/ has them
    build         a call becomes an operation: inputs converted, type variables bound
    graph         `Graph`: names, scopes, collections, the default graph
    operation     `Operation`, `Tensor`: the user's handles on nodes; `source` finds the user's line
    scopes, defaults           what colours new operations; a thread's default graphs and sessions
    shapes, partial_value      the shape lattice, and small values that shapes are made of
    list_slices, list_writes   a list from step to step of a loop: its rows, and who writes them
    gradients, forward_mode, jvp, custom_gradient, indexed_slices    derivatives as more graph
    node          `Node`, `Subgraph`: the immutable form; edges are names; `topology` sorts them
    passes/       pure functions from Subgraph to Subgraph: prune, order, infer, optimise, place, partition
    evaluate      the reference interpreter, node by node
    text, graph_def, import_graph_def                   the same as text, as GraphDef, and back
    resources, random_stream   what a session keeps behind a handle

Invariants: a `Node` never changes; a pass returns the same object when it changed nothing; passes know an op
by the facts of its definition, not by its name. Nothing here knows sessions, rendezvous or devices beyond
their names.
"""
