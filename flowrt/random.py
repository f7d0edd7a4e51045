"""``flowrt.random``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.random.random_ops import get_seed, set_random_seed, truncated_normal
from flowrt.graph.ops.random.random_ops import random_normal as normal
from flowrt.graph.ops.random.random_ops import random_uniform as uniform
from flowrt.graph.ops.random.sampling import categorical, multinomial
from flowrt.graph.ops.random.sampling import random_gamma as gamma
from flowrt.graph.ops.random.sampling import random_poisson as poisson
from flowrt.graph.ops.random.sampling import random_shuffle as shuffle
from flowrt.nn.sampled import log_uniform_candidate_sampler, uniform_candidate_sampler
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("random")
