"""``flowrt.random``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.random.random_ops import get_seed, set_random_seed, truncated_normal
from flowrt.graph.ops.random.random_ops import random_normal as normal
from flowrt.graph.ops.random.random_ops import random_uniform as uniform
from flowrt.graph.ops.random.sampling import categorical, multinomial
from flowrt.graph.ops.random.sampling import random_gamma as gamma
from flowrt.graph.ops.random.sampling import random_poisson as poisson
from flowrt.graph.ops.random.sampling import random_shuffle as shuffle
from flowrt.graph.ops.random.stateless import (
    stateless_categorical,
    stateless_multinomial,
    stateless_truncated_normal,
)
from flowrt.graph.ops.random.stateless import stateless_random_normal as stateless_normal
from flowrt.graph.ops.random.stateless import stateless_random_uniform as stateless_uniform
from flowrt.nn.sampled import log_uniform_candidate_sampler, uniform_candidate_sampler
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("random")
