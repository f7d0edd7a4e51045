"""``flowrt.random``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.random import get_seed, set_random_seed, truncated_normal
from flowrt.graph.ops.random import random_normal as normal
from flowrt.graph.ops.random import random_uniform as uniform
from flowrt.graph.ops.sampling import categorical, multinomial
from flowrt.graph.ops.sampling import random_gamma as gamma
from flowrt.graph.ops.sampling import random_poisson as poisson
from flowrt.graph.ops.sampling import random_shuffle as shuffle
from flowrt.nn.sampled import log_uniform_candidate_sampler, uniform_candidate_sampler
