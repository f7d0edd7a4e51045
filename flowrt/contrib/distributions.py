"""``flowrt.contrib.distributions``: `flowrt.distributions`, and more of them."""

from flowrt.distributions.compound import Independent, Mixture, MixtureSameFamily, RelaxedOneHotCategorical
from flowrt.distributions.discrete import (
    Bernoulli,
    Categorical,
    Deterministic,
    DirichletMultinomial,
    Geometric,
    Multinomial,
    OneHotCategorical,
    Poisson,
)
from flowrt.distributions.distribution import (
    FULLY_REPARAMETERIZED,
    NOT_REPARAMETERIZED,
    Distribution,
    ReparameterizationType,
)
from flowrt.distributions.kullback_leibler import RegisterKL, kl_divergence
from flowrt.distributions.positive import (
    Beta,
    BetaWithSoftplusConcentration,
    Dirichlet,
    Exponential,
    ExponentialWithSoftplusRate,
    Gamma,
    GammaWithSoftplusConcentrationRate,
)
from flowrt.distributions.real_line import (
    Cauchy,
    Laplace,
    LaplaceWithSoftplusScale,
    Logistic,
    Normal,
    NormalWithSoftplusScale,
    StudentT,
    Uniform,
)
from flowrt.distributions.special import log_ndtr, ndtr, ndtri
from flowrt.distributions.vector import (
    MultivariateNormalDiag,
    MultivariateNormalDiagWithSoftplusScale,
    MultivariateNormalFullCovariance,
    MultivariateNormalTriL,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "FULLY_REPARAMETERIZED", "NOT_REPARAMETERIZED", "Bernoulli", "Beta", "BetaWithSoftplusConcentration",
    "Categorical", "Cauchy", "Deterministic", "Dirichlet", "DirichletMultinomial", "Distribution",
    "Exponential", "ExponentialWithSoftplusRate", "Gamma", "GammaWithSoftplusConcentrationRate", "Geometric",
    "Independent", "Laplace", "LaplaceWithSoftplusScale", "Logistic", "Mixture", "MixtureSameFamily",
    "Multinomial", "MultivariateNormalDiag", "MultivariateNormalDiagWithSoftplusScale",
    "MultivariateNormalFullCovariance", "MultivariateNormalTriL", "Normal", "NormalWithSoftplusScale",
    "OneHotCategorical", "Poisson", "RegisterKL", "RelaxedOneHotCategorical", "ReparameterizationType",
    "StudentT", "Uniform", "kl_divergence", "log_ndtr", "ndtr", "ndtri",
]  # fmt: skip

__getattr__ = missing_from("contrib.distributions")
