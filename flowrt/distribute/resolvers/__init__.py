"""Where the description of a cluster comes from: one module a source, and `order`, which asks them all."""

from flowrt.distribute.resolvers.order import ALONE, VARIABLES, resolve
from flowrt.distribute.resolvers.source import ResolvedCluster

__all__ = ["ALONE", "VARIABLES", "ResolvedCluster", "resolve"]
