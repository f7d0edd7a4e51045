"""Several processes and hosts run one graph: cluster specs, servers, masters and workers."""
