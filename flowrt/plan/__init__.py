"""Plans of strategies: a search for what runs where, and how long it takes, without the machines.

    cluster_file     `Cluster`: devices, hosts, racks and links, described in ``cluster.toml``
    toml_value       values of a TOML file with their lines, and numbers with units
    cluster_links    seconds of collectives and messages between devices of a cluster
    played           the played form of a step: `ClassProgram`, a list of `Work` per class of devices
    laws             Amdahl's and Gustafson's laws, and their fits to a scaling curve

The step that the passes emit is played, not a model of it: layouts, collectives, messages, gathers and the
order of actions come from `flowrt.graph.passes.layouts`. Only durations are estimated.

A *class* is all devices with the same program: the coordinates of one position of a pipeline. A *lane* is one
device of a class. All times are seconds, all sizes bytes.
"""
