"""Clusters, described: devices, hosts, racks, and the links between them.

cluster_file   `Cluster`: devices, hosts, racks and links, described in ``cluster.toml``
toml_value     values of a TOML file with their lines, and numbers with units
probed_links   links between processes of this host, measured and kept
host_speed     what exchanges between processes of this host take, measured
cluster_links  seconds of collectives and messages between devices of a cluster
"""
