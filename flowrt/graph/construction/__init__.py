"""How a script's calls become a graph.

names, defaults, scopes     unique names; default graphs and sessions; name, device and control scopes
operation                   `Operation`, `Tensor`: the user's handles on nodes
graph                       `Graph`: append-only, with collections
python_values, dlpack       Python's and other libraries' values as arrays
array_values                which dtype a value gets, and which it fits
build                       a call -> an operation: inputs converted, type variables bound
func_graph                  the graph of a function: a branch, a loop body, a callee
list_slices                 lists carried from step to step of a loop
conversions                 conversions that a script registers for its own types
constant                    constants and placeholders
batching_rules              how an op is applied to a batch: rules that several ops share
graph_extension, detached      what was added to a graph; a subgraph without its large constants
rollback                    a failed call leaves the graph as it was
"""
