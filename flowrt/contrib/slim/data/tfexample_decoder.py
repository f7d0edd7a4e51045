"""Decoders of `Example` messages: features as parsed, then items that handlers make of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowrt import image, sparse
from flowrt.control_flow.branches import case, cond
from flowrt.dtypes import DTypeLike, int64, uint8
from flowrt.errors import InvalidArgumentError
from flowrt.functions.functional_ops import map_fn
from flowrt.functions.parsing import FixedLenFeature, parse_single_example
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.comparison import equal, logical_or
from flowrt.graph.ops.text.strings import decode_raw
from flowrt.graph.source import misuse
from flowrt.math import reduce_prod


class ItemHandler(ABC):
    """Makes an item of the parsed features ``keys``, one or several."""

    def __init__(self, keys: str | Sequence[str]) -> None:
        self._keys = list(keys) if isinstance(keys, (list, tuple)) else [keys]

    @property
    def keys(self) -> list[Any]:
        return self._keys

    @abstractmethod
    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """The item, a tensor, of the features by name."""


class ItemHandlerCallback(ItemHandler):
    """The item is ``func`` of the features."""

    def __init__(self, keys: str | Sequence[str], func: Callable[[Mapping[str, Any]], Any]) -> None:
        super().__init__(keys)
        self._func = func

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        return self._func(keys_to_tensors)


class BoundingBox(ItemHandler):
    """Boxes, [boxes, 4], of the features of their sides: ymin, xmin, ymax and xmax, or ``keys``, after
    ``prefix``.
    """

    def __init__(self, keys: Sequence[str] | None = None, prefix: str = "") -> None:
        sides = ["ymin", "xmin", "ymax", "xmax"] if keys is None else list(keys)
        if len(sides) != 4:
            raise misuse(f"BoundingBox: expected 4 keys; got {len(sides)}", InvalidArgumentError)
        super().__init__([prefix + side for side in sides])

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        return stack([_values(keys_to_tensors[key]) for key in self.keys], axis=1)


def _values(feature: Any) -> Any:
    return feature.values if isinstance(feature, sparse.SparseTensor) else feature


class Tensor(ItemHandler):
    """The feature ``tensor_key``, reshaped to ``shape`` or to the features ``shape_keys``; what it lacks is
    ``default_value``. Raises `InvalidArgumentError` for both.
    """

    def __init__(
        self, tensor_key: str, shape_keys: Any = None, shape: Any = None, default_value: Any = 0
    ) -> None:
        if shape_keys and shape is not None:
            raise misuse("Tensor: expected shape_keys or shape; got both", InvalidArgumentError)
        named = [shape_keys] if isinstance(shape_keys, str) else list(shape_keys or ())
        super().__init__([tensor_key, *named])
        self._key, self._shape_keys, self._shape, self._default = tensor_key, named, shape, default_value

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        found, dims = keys_to_tensors[self._key], self._shape
        if self._shape_keys:
            sizes = [_dense(keys_to_tensors[key], 0) for key in self._shape_keys]
            dims = reshape(stack(sizes), [-1])
        if isinstance(found, sparse.SparseTensor):
            shaped = found if dims is None else sparse.reshape(found, cast(dims, int64))
            return _dense(shaped, self._default)
        return found if dims is None else reshape(found, dims)


def _dense(feature: Any, default_value: Any) -> Any:
    if isinstance(feature, sparse.SparseTensor):
        return sparse.to_dense(feature, default_value)
    return feature


class LookupTensor(Tensor):
    """A `Tensor` looked up in ``table``."""

    def __init__(
        self, tensor_key: str, table: Any, shape_keys: Any = None, shape: Any = None, default_value: Any = ""
    ) -> None:
        super().__init__(tensor_key, shape_keys, shape, default_value)
        self._table = table

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        return self._table.lookup(super().tensors_to_item(keys_to_tensors))


class BackupHandler(ItemHandler):
    """The item of ``handler``, or that of ``backup`` if the first has no elements."""

    def __init__(self, handler: ItemHandler, backup: ItemHandler) -> None:
        super().__init__([*handler.keys, *backup.keys])
        self._handler, self._backup = handler, backup

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        item = self._handler.tensors_to_item(keys_to_tensors)
        is_empty = equal(reduce_prod(shape(item)), 0)
        return cond(is_empty, lambda: self._backup.tensors_to_item(keys_to_tensors), lambda: item)


class SparseTensor(ItemHandler):
    """A sparse tensor of the features of its positions along the last axis, its values and its shape;
    ``shape`` is in the place of the feature, ``densify`` makes it dense with ``default_value``.
    """

    def __init__(
        self,
        indices_key: str | None = None,
        values_key: str | None = None,
        shape_key: str | None = None,
        shape: Any = None,
        densify: bool = False,
        default_value: Any = 0,
    ) -> None:
        self._indices, self._values_key = indices_key or "indices", values_key or "values"
        super().__init__([self._indices, self._values_key, *([shape_key] if shape_key else [])])
        self._shape_key, self._shape = shape_key, shape
        self._is_dense, self._default = densify, default_value

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        indices, values = keys_to_tensors[self._indices], keys_to_tensors[self._values_key]
        dims = indices.dense_shape if self._shape is None else self._shape
        if self._shape_key:
            dims = _dense(keys_to_tensors[self._shape_key], 0)
        last = reshape(cast(indices.values, int64), [-1, 1])
        places = concat([indices.indices[:, :-1], last], 1)
        found = sparse.SparseTensor(places, values.values, cast(dims, int64))
        return sparse.to_dense(found, self._default) if self._is_dense else found


class Image(ItemHandler):
    """The image that is encoded in the feature ``image_key``, [height, width, channels], as ``dtype``;
    ``shape`` is its shape if all have the same. The format "raw" in ``format_key`` means bytes of ``dtype``;
    any other the image's own header says. ``repeated`` means several, of one shape.
    """

    def __init__(
        self,
        image_key: str | None = None,
        format_key: str | None = None,
        shape: Any = None,
        channels: int = 3,
        dtype: DTypeLike = uint8,
        repeated: bool = False,
        dct_method: str = "",
    ) -> None:
        self._image_key, self._format_key = image_key or "image/encoded", format_key or "image/format"
        super().__init__([self._image_key, self._format_key])
        self._shape, self._channels, self._dtype = shape, channels, dtype
        self._is_repeated, self._dct_method = repeated, dct_method

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        encoded, kind = keys_to_tensors[self._image_key], keys_to_tensors[self._format_key]
        if self._is_repeated:
            return map_fn(lambda each: self._decoded(each, kind), encoded, dtype=self._dtype)
        return self._decoded(encoded, kind)

    def _decoded(self, encoded: Any, kind: Any) -> Any:
        def of_any() -> Any:
            return cast(image.decode_image(encoded, channels=self._channels), self._dtype)

        def of_jpeg() -> Any:
            made = image.decode_jpeg(encoded, channels=self._channels, dct_method=self._dct_method)
            return cast(made, self._dtype)

        is_raw = logical_or(equal(kind, "raw"), equal(kind, "RAW"))
        found = case(
            [(is_raw, lambda: decode_raw(encoded, self._dtype))],
            default=lambda: cond(image.is_jpeg(encoded), of_jpeg, of_any),
            exclusive=True,
        )
        if self._shape is not None:
            return reshape(found, self._shape)
        found.set_shape([None, None, self._channels])
        return found


class TFExampleDecoder:
    """Parses an `Example` by ``keys_to_features``, then makes items by ``items_to_handlers``.

    Example:
        >>> example = tf.train.Example()
        >>> example.features.feature["label"].int64_list.value.append(3)
        >>> decoder = tf.contrib.slim.tfexample_decoder.TFExampleDecoder(
        ...     {"label": tf.FixedLenFeature([], tf.int64)},
        ...     {"label": tf.contrib.slim.tfexample_decoder.Tensor("label")})
        >>> decoder.decode(tf.constant(example.SerializeToString()))[0].eval()
        3
    """

    def __init__(
        self, keys_to_features: Mapping[str, Any], items_to_handlers: Mapping[str, ItemHandler]
    ) -> None:
        self._features, self._handlers = keys_to_features, items_to_handlers

    def list_items(self) -> list[str]:
        """The names of the items."""
        return list(self._handlers)

    def decode(self, serialized_example: Any, items: Sequence[str] | None = None) -> list[Any]:
        """The ``items`` (None: all) of a message, a string scalar.

        Raises `InvalidArgumentError` for an item without handler, and a handler's key that is no feature.
        The step raises as `parse_single_example`.
        """
        chosen = list(items or self._handlers)
        if unknown := [item for item in chosen if item not in self._handlers]:
            raise misuse(
                f"TFExampleDecoder: expected items among {sorted(self._handlers)}; got {unknown}",
                InvalidArgumentError,
            )
        for item in chosen:
            if missing := [key for key in self._handlers[item].keys if key not in self._features]:
                raise misuse(
                    f"TFExampleDecoder: item {item!r}: expected keys among {sorted(self._features)}; "
                    f"got {missing}",
                    InvalidArgumentError,
                )
        parsed = parse_single_example(serialized_example, dict(self._features))
        for key in sorted(self._features):
            if isinstance(self._features[key], FixedLenFeature):
                parsed[key] = reshape(parsed[key], self._features[key].shape)
        return [
            handler.tensors_to_item({key: parsed[key] for key in handler.keys})
            for handler in (self._handlers[item] for item in chosen)
        ]
