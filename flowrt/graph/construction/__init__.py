"""Graph construction from user calls.

names, defaults, scopes     unique names; default graphs and sessions; name, device and control scopes
operation                   `Operation`, `Tensor`: the user's handles to nodes
graph                       `Graph`: append-only, with collections
python_values, dlpack       Python's and other libraries' values as arrays
array_values                the dtype a value gets, and the dtypes it converts to
build                       a call -> an operation: inputs converted, type variables bound
func_graph                  the graph of a function: a branch, a loop body, a callee
list_slices                 lists carried from step to step of a loop
conversions                 conversions that a script registers for its own types
composites                  calls with composite tensors, such as ragged ones
constant                    constants and placeholders
batching_rules              how an op is applied to a batch: rules shared by several ops
graph_extension, detached   the difference of two subgraphs; a subgraph without large constants
rollback                    a failed call leaves the graph unchanged
"""
