"""``flowrt.contrib.factorization``: points put into groups.

k_means             steps of k-means as operations: KMeans
k_means_estimator   k-means as an estimator: KMeansClustering
"""

from flowrt.contrib.factorization.k_means import (
    COSINE_DISTANCE,
    KMEANS_PLUS_PLUS_INIT,
    RANDOM_INIT,
    SQUARED_EUCLIDEAN_DISTANCE,
    KMeans,
)
from flowrt.contrib.factorization.k_means_estimator import KMeansClustering
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "COSINE_DISTANCE", "KMEANS_PLUS_PLUS_INIT", "KMeans", "KMeansClustering", "RANDOM_INIT",
    "SQUARED_EUCLIDEAN_DISTANCE",
]  # fmt: skip

__getattr__ = missing_from("contrib.factorization")
