"""``flowrt.distributions``: probability distributions as tensors: samples, log probabilities, divergences.

distribution         `Distribution`: what all of them can do
kullback_leibler     `kl_divergence`, `RegisterKL`
special              functions of distributions
real_line            normal, Laplace, Student's t, uniform and others
positive             gamma, exponential, inverse gamma, beta, Dirichlet
discrete             Bernoulli, categorical, multinomial and others
counts               Poisson, geometric, binomial, negative binomial
vector               normal distributions of vectors
compound             mixtures, independent ones
bijectors            invertible functions and their determinants
transformed          values of other distributions, transformed; relaxed classes

TensorFlow 1 has some of them in its ``distributions`` and all in ``contrib.distributions``.
"""

from flowrt.distributions.discrete import Bernoulli, Categorical, DirichletMultinomial, Multinomial
from flowrt.distributions.distribution import (
    FULLY_REPARAMETERIZED,
    NOT_REPARAMETERIZED,
    Distribution,
    ReparameterizationType,
)
from flowrt.distributions.kullback_leibler import RegisterKL, kl_divergence
from flowrt.distributions.positive import Beta, Dirichlet, Exponential, Gamma
from flowrt.distributions.real_line import Laplace, Normal, StudentT, Uniform
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "FULLY_REPARAMETERIZED", "NOT_REPARAMETERIZED", "Bernoulli", "Beta", "Categorical", "Dirichlet",
    "DirichletMultinomial", "Distribution", "Exponential", "Gamma", "Laplace", "Multinomial", "Normal",
    "RegisterKL", "ReparameterizationType", "StudentT", "Uniform", "kl_divergence",
]  # fmt: skip

__getattr__ = missing_from("distributions")
