"""How parameter servers share the work and keep in step: pure decisions, no graph.

    consistency   a mode of training (`Sync`, `Async`, ...) -> `Policy` of the shards
    placement     variables' sizes -> servers, split where they are large
    homes         servers that answer -> which server has the primary of each shard, and which its replica

What happens on a server is `flowrt.graph.resources.parameter_shard`; the strategy that builds the graph is
`flowrt.distribute.strategies.parameter_server.parameter_server_strategy`.
"""
