"""`LayoutStrategy`: parallelism by layouts of tensors over a mesh of devices.

layout_strategy        the strategy, and `relayout`
fully_sharded          the same with variables, gradients and states in parts, or in host memory
unit_places            places in one memory for the variables that are used together
tensor_parallel        layers with weights that several devices share, by name
argument_names         arguments that the strategies do not have, by the names of other frameworks
pipeline               stages on devices of their own, through which micro-batches pass
copy_variables         values of variables, to variables over another mesh
shard_map              a function of one coordinate, and its collectives
local_shards           the parts of a tensor, each read where it is
multi_worker_layouts   the same over the devices of several processes, each with a session of its own

The script is called once and builds one global graph; the strategy only gives attributes to variables and
inputs (`flowrt.graph.layouts.attributes`). The passes of `flowrt.graph.passes.layouts` do the rest.
"""
