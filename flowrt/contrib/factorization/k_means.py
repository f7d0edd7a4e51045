"""k-means. S. Lloyd, Least Squares Quantization in PCM (1982); its small steps: D. Sculley, Web-Scale K-Means
Clustering, WWW (2010); its start: D. Arthur and S. Vassilvitskii, k-means++, SODA (2007).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.control_flow.branches import cond
from flowrt.control_flow.loops import while_loop
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.reductions import reduce_min, reduce_sum
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.array.statistics import argmin
from flowrt.graph.ops.base.filling import ones, zeros, zeros_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, size
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import equal, less, less_equal
from flowrt.graph.ops.elementwise.math import log, square
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.moments import l2_normalize
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.random.sampling import multinomial
from flowrt.graph.ops.text.assertions import assert_equal, assert_greater_equal
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.variables.graph_scopes import control_dependencies
from flowrt.variables.variable import Variable

SQUARED_EUCLIDEAN_DISTANCE, COSINE_DISTANCE = "squared_euclidean", "cosine"
RANDOM_INIT, KMEANS_PLUS_PLUS_INIT = "random", "kmeans_plus_plus"
CLUSTERS_VAR_NAME = "clusters"
"""The name of the variable of centers, also in checkpoints."""

_EMPTY = 1e-6
"""Added to the number of points of a center: a center without points becomes 0."""


class KMeans:
    """The graph of k-means: points, [points, dimensions], and the nearest of ``num_clusters`` centers.

    Args:
        inputs: The points, or a list of parts of them.
        num_clusters: How many centers there are; ignored if ``initial_clusters`` are given as numbers.
        initial_clusters: The first centers: numbers, or a function of the inputs and of how many centers are
            missing that returns so many or fewer, or how to choose points, "random" or "kmeans_plus_plus".
        distance_metric: "squared_euclidean" or "cosine".
        use_mini_batch: Whether the inputs are another part of the points in each step. Each point moves the
            center by one over the number of all its points until then.
        mini_batch_steps_per_iteration: After how many of these steps points see the centers that have moved.
        random_seed: The seed of the choice.
        kmeans_plus_plus_num_retries: How many more points are tried for a center; negative: by their number.

    Raises:
        InvalidArgumentError: There is no such choice of centers or distance.

    Example:
        >>> points = np.array([[0, 0], [0, 1], [9, 9]], np.float32)
        >>> k_means = tf.contrib.factorization.KMeans(points, 2, initial_clusters=points[[0, 2]])
        >>> _, nearest, _, _, start, step = k_means.training_graph()
        >>> session.run(tf.global_variables_initializer())
        >>> _ = session.run(start)
        >>> session.run([step, nearest[0]])[1]
        array([0, 0, 1])
    """

    def __init__(
        self,
        inputs: Any,
        num_clusters: Any,
        initial_clusters: Any = RANDOM_INIT,
        distance_metric: str = SQUARED_EUCLIDEAN_DISTANCE,
        use_mini_batch: bool = False,
        mini_batch_steps_per_iteration: int = 1,
        random_seed: int = 0,
        kmeans_plus_plus_num_retries: int = 2,
    ) -> None:
        check_choices("KMeans", initial_clusters, distance_metric)
        parts = inputs if isinstance(inputs, list) else [inputs]
        self._parts = [convert_to_tensor(part) for part in parts]
        self._num_clusters, self._initial = num_clusters, initial_clusters
        self._is_cosine = distance_metric == COSINE_DISTANCE
        self._is_mini_batch, self._steps = use_mini_batch, int(mini_batch_steps_per_iteration)
        self._seed, self._retries = random_seed, kmeans_plus_plus_num_retries

    def training_graph(self) -> tuple[Any, Any, Any, Variable, Tensor, Operation]:
        """Tuples with a tensor for each part of the inputs: the distances to all centers, the index of the
        nearest one, the distance to it; then the variable that tells whether there are centers, an operation
        that chooses as many as the inputs have, and one that takes a step.
        """
        if not isinstance(self._initial, str) and not callable(self._initial):
            self._initial = convert_to_tensor(self._initial)
            self._num_clusters = shape(self._initial)[0]
        count = convert_to_tensor(self._num_clusters)
        nothing = zeros([0], self._parts[0].dtype)
        seen = Variable(nothing, name=CLUSTERS_VAR_NAME, validate_shape=False)
        initialized = Variable(False, name="initialized")  # TensorFlow's order of variables
        moved, is_late = seen, self._is_mini_batch and self._steps > 1
        if is_late:
            moved = Variable(nothing, name="clusters_updated", validate_shape=False)
        start = self._start(count, seen, moved, initialized)

        parts, centers = self._parts, reshape(seen, self._dense(shape(seen)[0]))
        if self._is_cosine:
            parts = [l2_normalize(part, axis=1) for part in parts]
            centers = l2_normalize(centers, axis=1)
        found = [_nearest(part, centers) for part in parts]
        indices = [index for index, _ in found]
        if self._is_cosine:
            distances = [1 - matmul(part, centers, transpose_b=True) for part in parts]
            nearest = [distance * 0.5 for _, distance in found]
        else:
            distances = [_squared_distances(part, centers) for part in parts]
            nearest = [distance for _, distance in found]

        points, index = concat(parts, 0), concat(indices, 0)
        if not self._is_mini_batch:
            step = self._whole_step(points, index, count, seen)
        elif is_late:
            step = self._late_step(points, index, count, seen, moved)
        else:
            step = _small_step(points, index, moved, Variable(ones([count], "int64"), validate_shape=False))
        return tuple(distances), tuple(indices), tuple(nearest), initialized, start, step

    def _dense(self, rows: Tensor) -> Tensor:
        """The shape of ``rows`` centers: that of a variable without any tells no dimensions."""
        return concat([reshape(rows, [1]), shape(self._parts[0])[1:]], 0)

    # --- the first centers

    def _start(self, count: Tensor, seen: Variable, moved: Variable, initialized: Variable) -> Tensor:
        """Choose centers that are missing from the inputs; returns whether there are all of them now."""
        before = shape(seen)[0]
        missing = count - before

        def choose() -> Tensor:
            new = convert_to_tensor(self._choice(missing))
            if self._is_cosine:
                new = l2_normalize(new, axis=1)
            centers = concat([reshape(seen, self._dense(before)), new], 0)
            writes = [variable.assign(centers, read_value=False) for variable in {seen: 0, moved: 0}]
            with control_dependencies(writes):
                return identity(initialized.assign(equal(shape(centers)[0], count)))

        return cond(equal(missing, 0), lambda: identity(initialized), choose)

    def _choice(self, missing: Tensor) -> Any:
        points = concat(self._parts, 0)
        number = shape(points)[0]
        if callable(self._initial):
            return self._initial(self._parts, missing)
        if not isinstance(self._initial, str):
            with control_dependencies([assert_equal(missing, shape(self._initial)[0])]):
                return identity(self._initial)
        if self._initial == RANDOM_INIT:
            draw: Callable[[], Tensor] = lambda: gather(points, self._draw(missing, number))  # noqa: E731
            return cond(less_equal(number, missing), lambda: points, draw)
        with control_dependencies([assert_greater_equal(number, missing)]):
            points = l2_normalize(points, axis=1) if self._is_cosine else identity(points)
            return self._plus_plus(points, missing)

    def _draw(self, count: Any, number: Tensor) -> Tensor:
        """``count`` of the positions of ``number`` points."""
        last = cast(number, "int64")
        return random_uniform(reshape(count, [1]), 0, last, dtype="int64", seed=self._seed)

    def _plus_plus(self, points: Tensor, count: Tensor) -> Tensor:
        """Points far from those chosen before: of some that are drawn by their squared distances, each time
        the one that leaves the smallest sum of them.
        """
        tries = self._retries + 1 if self._retries >= 0 else 3 + cast(log(cast(count, "float32")), "int32")

        def distances(indices: Tensor) -> Tensor:
            return maximum(_squared_distances(points, gather(points, indices)), 0.0)

        def choose(chosen: Tensor, nearest: Tensor) -> tuple[Tensor, Tensor]:
            logits = log(nearest + 1e-30)  # where all distances are 0, any point will do
            drawn = multinomial(expand_dims(logits, 0), tries, seed=self._seed)[0]
            after = minimum(distances(drawn), expand_dims(nearest, 1))
            best = argmin(reduce_sum(after, 0), 0)
            return concat([chosen, drawn[best : best + 1]], 0), after[:, best]

        first = self._draw(1, shape(points)[0])
        chosen, _ = while_loop(
            lambda chosen, _: less(size(chosen), count),
            choose,
            (first, distances(first)[:, 0]),
            shape_invariants=((None,), (None,)),
            back_prop=False,
        )
        return gather(points, chosen)

    # --- steps

    def _whole_step(self, points: Tensor, index: Tensor, count: Tensor, centers: Variable) -> Operation:
        """Each center becomes the mean of the points nearest to it."""
        numbers = unsorted_segment_sum(ones([size(index), 1], points.dtype), index, count)
        new = unsorted_segment_sum(points, index, count) / (numbers + _EMPTY)
        if self._is_cosine:
            new = l2_normalize(new, axis=1)
        return group(centers.assign(new, read_value=False))

    def _late_step(
        self, points: Tensor, index: Tensor, count: Tensor, seen: Variable, moved: Variable
    ) -> Operation:
        """A step of the centers that move; after some steps they become those that points see."""
        left = Variable(self._steps, name="update_in_steps", dtype="int64")
        totals = Variable(zeros([count], "int64"), validate_shape=False)

        def show() -> Tensor:
            centers = l2_normalize(moved, axis=1) if self._is_cosine else identity(moved)
            writes = [seen.assign(centers, read_value=False)]
            writes += [totals.assign(zeros_like(totals), read_value=False)]
            with control_dependencies(writes):
                return identity(left.assign(self._steps - 1))

        shown = cond(less_equal(left, 0), show, lambda: identity(left.assign_sub(1)))
        with control_dependencies([shown]):
            return _small_step(points, index, moved, totals)


def _small_step(points: Tensor, index: Tensor, centers: Variable, totals: Variable) -> Operation:
    """Each center becomes the mean of all its points until now, of which there were ``totals`` before."""
    before, old = identity(totals), identity(centers)
    added = unsorted_segment_sum(ones([size(index)], before.dtype), index, size(before))
    new, after = cast(added, points.dtype), cast(maximum(before + added, 1), points.dtype)
    sums = unsorted_segment_sum(points, index, size(before))
    change = (sums - expand_dims(new, 1) * old) / expand_dims(after, 1)
    return group(totals.assign_add(added, read_value=False), centers.assign_add(change, read_value=False))


def _squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """The squared distances of points to centers, [points, centers]."""
    lengths = reduce_sum(square(points), 1, keepdims=True)
    products = matmul(points, centers, transpose_b=True)
    return lengths - 2 * products + reduce_sum(square(centers), 1)


def _nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the center nearest to each point, and their squared distance, which is never below 0."""
    distances = _squared_distances(points, centers)
    return argmin(distances, 1), maximum(reduce_min(distances, 1), 0)


def check_choices(what: str, initial_clusters: Any, distance_metric: str) -> None:
    """Raise `InvalidArgumentError` for a choice of centers, or a distance, that there is not."""
    for name, given, known in (
        ("initial_clusters", initial_clusters, (RANDOM_INIT, KMEANS_PLUS_PLUS_INIT)),
        ("distance_metric", distance_metric, (SQUARED_EUCLIDEAN_DISTANCE, COSINE_DISTANCE)),
    ):
        if isinstance(given, str) and given not in known:
            raise misuse(
                f"{what}: {name}: expected one of {', '.join(known)}; got {given!r}", InvalidArgumentError
            )
