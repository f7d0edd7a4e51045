"""Logic of parameter servers: distribution of work and synchronization, pure, without graphs.

    consistency   a mode of training (`Sync`, `Async`, ...) -> `Policy` of the shards
    placement     variables' sizes -> servers, split if they are large
    homes         servers that answer -> the servers with the primary and the replica of each shard

The state on a server is `flowrt.graph.resources.parameter_shard`; the strategy that builds the graph is
`flowrt.distribute.strategies.parameter_server.parameter_server_strategy`.
"""
