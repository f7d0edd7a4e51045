"""Preparation: from the user's graph to the subgraph that one run needs.

prune             the subgraph the fetches need, with feeds substituted
check_set_shapes  a check behind each tensor with a shape that a user has set
lower             inlines calls; converts branches and loops to the two compiled forms
order_effects     reads and writes of a resource, in order of creation
infer             shape inference with the shapes of the feeds
verify            invariants of a subgraph, checked between passes in tests
fed_nodes         what is computed from feeds alone, without variables or other devices
extend            the passes applied to the new part of a larger request only
"""
