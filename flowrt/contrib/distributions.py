"""``flowrt.contrib.distributions``: `flowrt.distributions`, and more of them."""

from flowrt.distributions import bijectors
from flowrt.distributions.compound import Independent, Mixture, MixtureSameFamily
from flowrt.distributions.counts import Binomial, Geometric, NegativeBinomial, Poisson
from flowrt.distributions.discrete import (
    Bernoulli,
    Categorical,
    Deterministic,
    DirichletMultinomial,
    Multinomial,
    OneHotCategorical,
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
    Chi2,
    Chi2WithAbsDf,
    Dirichlet,
    Exponential,
    ExponentialWithSoftplusRate,
    Gamma,
    GammaWithSoftplusConcentrationRate,
    InverseGamma,
    InverseGammaWithSoftplusConcentrationRate,
)
from flowrt.distributions.real_line import (
    Cauchy,
    HalfNormal,
    Laplace,
    LaplaceWithSoftplusScale,
    Logistic,
    Normal,
    NormalWithSoftplusScale,
    StudentT,
    StudentTWithAbsDfSoftplusScale,
    Uniform,
)
from flowrt.distributions.special import log_ndtr, ndtr, ndtri, softplus_inverse
from flowrt.distributions.transformed import (
    ExpRelaxedOneHotCategorical,
    QuantizedDistribution,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    TransformedDistribution,
)
from flowrt.distributions.vector import (
    MultivariateNormalDiag,
    MultivariateNormalDiagWithSoftplusScale,
    MultivariateNormalFullCovariance,
    MultivariateNormalTriL,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "FULLY_REPARAMETERIZED", "NOT_REPARAMETERIZED", "Bernoulli", "Beta", "BetaWithSoftplusConcentration",
    "Binomial", "Categorical", "Cauchy", "Chi2", "Chi2WithAbsDf", "Deterministic", "Dirichlet",
    "DirichletMultinomial", "Distribution", "ExpRelaxedOneHotCategorical", "Exponential",
    "ExponentialWithSoftplusRate", "Gamma", "GammaWithSoftplusConcentrationRate", "Geometric", "HalfNormal",
    "Independent", "InverseGamma", "InverseGammaWithSoftplusConcentrationRate", "Laplace",
    "LaplaceWithSoftplusScale", "Logistic", "Mixture", "MixtureSameFamily", "Multinomial",
    "MultivariateNormalDiag", "MultivariateNormalDiagWithSoftplusScale", "MultivariateNormalFullCovariance",
    "MultivariateNormalTriL", "NegativeBinomial", "Normal", "NormalWithSoftplusScale", "OneHotCategorical",
    "Poisson", "QuantizedDistribution", "RegisterKL", "RelaxedBernoulli", "RelaxedOneHotCategorical",
    "ReparameterizationType", "StudentT", "StudentTWithAbsDfSoftplusScale", "TransformedDistribution",
    "Uniform", "bijectors", "kl_divergence", "log_ndtr", "ndtr", "ndtri", "softplus_inverse",
]  # fmt: skip

__getattr__ = missing_from("contrib.distributions")
