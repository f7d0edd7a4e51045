"""Virtual CPU devices, and a session that has them."""

from __future__ import annotations

from typing import Any

import flowrt as tf

CPUS = tuple(f"/cpu:{i}" for i in range(5))


def mirrored(count: int, **options: Any) -> Any:
    return tf.distribute.MirroredStrategy(CPUS[:count], **options)


def central(count: int) -> Any:
    return tf.distribute.experimental.CentralStorageStrategy(CPUS[:count])


def session() -> tf.Session:
    return tf.Session(config=tf.ConfigProto(device_count={"CPU": len(CPUS)}))


def initialized() -> tf.Session:
    """A session in which all variables of the default graph have their initial values."""
    sess = session()
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    return sess


def numbered(strategy: Any, values: Any) -> Any:
    """``values[i]`` as a constant of replica i."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )
