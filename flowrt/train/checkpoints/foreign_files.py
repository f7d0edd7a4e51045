"""`load_safetensors`: variables from safetensors files that other frameworks wrote.

    path       one file, or a directory with several and an index, as Hugging Face's transformers writes them
    mapping    which tensor each variable gets

Files are read in place, each device's part alone, as a checkpoint is restored. They have no checksums.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.dtypes import FLOATING, DType
from flowrt.errors import DataLossError, DTypeError, FailedPreconditionError, NotFoundError, nearest
from flowrt.graph.construction.graph import default_sessions
from flowrt.graph.source import misuse
from flowrt.profiler.text_table import first_few
from flowrt.storage.durable_files import PathLike, path_string, typed_os_errors
from flowrt.train.checkpoints.pieces import Slices, whole
from flowrt.train.checkpoints.shard_file import ShardFile
from flowrt.train.checkpoints.stored_arrays import DTYPE_OF_CODE, Array
from flowrt.train.checkpoints.stored_tensor import ShardPiece, ShardTensor, Source
from flowrt.train.checkpoints.together import processes_of
from flowrt.train.checkpoints.variable_pieces import filling
from flowrt.train.optimizers.slot_creator import OPTIMIZER_VARIABLES
from flowrt.variables.variable import GraphKeys, Variable

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Transposed(NamedTuple):
    """The tensor of this name with its dimensions in another order: dimension i of the variable is dimension
    ``perm[i]`` of the tensor; reversed without ``perm``.
    """

    tensor: str
    perm: tuple[int, ...] | None = None


Wanted: TypeAlias = str | Transposed | None
Mappings: TypeAlias = Mapping[Any, str | Transposed] | Callable[[str], Wanted] | Sequence[tuple[str, Wanted]]


def load_safetensors(
    path: PathLike, mapping: Mappings, session: Any = None, ignore: Iterable[str] = ()
) -> None:
    """Set variables of ``session`` (or the default session) to tensors of safetensors files.

    ``path`` is a file, or a directory with ``model.safetensors`` or ``model.safetensors.index.json``.
    ``mapping`` says which tensor a variable gets, by name:

    - a dict from a variable, or its name, to the tensor's name;
    - a function from the name of each global variable, but those of optimizers, to the tensor's, or to None
      if it keeps its value;
    - a list of pairs (regular expression, name): of those that match the variable's whole name the first
      counts; the name may have its groups, as in `re.sub`.

    A matrix is never transposed unless `Transposed` stands for the name. Floats are widened to the variable's
    dtype, never narrowed. Tensors that no variable gets are an error, unless one of the regular expressions
    ``ignore`` matches the whole name. No operation is added, and variables need not be initialized; with
    layouts each device reads its own part. If each worker runs its own session of a mesh, all call it.

    >>> names = [(r"layer(\\d+)/kernel", tf.train.Transposed(r"h.\\1.mlp.weight"))]
    >>> tf.train.load_safetensors("gpt2", names, session, ignore=[r".*\\.attn\\.bias"])

    Raises `InvalidArgumentError`, which names all variables and tensors that do not fit, `NotFoundError` if
    there is no file, `DataLossError` for a damaged one. No variable has changed then.
    """
    session = _session(session)
    graph_variables = {v.op.name: v for v in session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)}
    of_optimizers = {v.op.name for v in session.graph.get_collection(OPTIMIZER_VARIABLES)}
    processes = processes_of(graph_variables.values(), "load_safetensors")
    fill: Callable[[], None]

    def prepare() -> None:
        nonlocal fill
        tensors = _tensors_of(path_string(path, "load_safetensors"))
        wanted, wrong = _wanted(mapping, graph_variables, of_optimizers)
        sources, misfits = _sources(wanted, tensors)
        extra = _left_over(tensors, wanted.values(), ignore)
        if wrong := [*wrong, *misfits, *extra]:
            rest = _forgotten(mapping, wanted, graph_variables, of_optimizers) if extra else []
            first = f"load_safetensors: {path}: {len(wrong)} do not fit:"
            raise misuse("\n  ".join([first, *wrong, *rest]))
        fill = filling(session, sources)

    processes.all(prepare)
    processes.all(fill)


def _session(session: Any) -> Any:
    if session is None and not default_sessions():
        raise misuse(
            "load_safetensors: expected a session; got none. Pass session=, or use 'with Session():'",
            FailedPreconditionError,
        )
    found = default_sessions()[-1] if session is None else session
    if not hasattr(found, "variable_shards"):
        raise misuse(f"load_safetensors: expected a session; got {found!r}", DTypeError)
    return found


# --- the files


def _tensors_of(path: str) -> dict[str, ShardTensor | str]:
    """The tensors by name; the dtype alone, where flowrt has none such."""
    with typed_os_errors(f"load_safetensors: {path}"):
        if not os.path.isdir(path):
            file = ShardFile(path)
            return {key: _tensor(file, key) for key in file.names}
        index = os.path.join(path, INDEX)
        if not os.path.exists(index):
            if not os.path.exists(os.path.join(path, FILE)):
                raise NotFoundError(f"load_safetensors: {path}: expected {FILE} or {INDEX}; there is neither")
            return _tensors_of(os.path.join(path, FILE))
        files: dict[str, ShardFile] = {}
        found = {}
        for key, name in _weight_map(index).items():
            file = files.get(name) or files.setdefault(name, ShardFile(os.path.join(path, name)))
            found[key] = _tensor(file, key)
        return found


def _weight_map(index: str) -> dict[str, str]:
    """The name of the file of each tensor, in the directory of ``index``."""
    with open(index, "rb") as file:
        text = file.read()
    try:
        found = json.loads(text)["weight_map"]
        names = {**found}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataLossError(f"{index}: expected a weight_map in JSON; got {error!r}") from error
    for name in names.values():
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", ".."):
            raise DataLossError(f"{index}: expected names of files beside it; got {name!r:.200}")
    return names


def _tensor(file: ShardFile, key: str) -> ShardTensor | str:
    stored = file.find(key)
    if stored is None:
        raise DataLossError(f"{file.path}: expected the tensor {key!r}, which the index lists; it has none")
    if stored.code not in DTYPE_OF_CODE:
        return stored.code
    piece = ShardPiece(whole(stored.shape), key, file.path, lambda where: file)
    return ShardTensor(key, DTYPE_OF_CODE[stored.code], stored.shape, [piece])


# --- which variable gets which


def _wanted(
    mapping: Any, variables: Mapping[str, Variable], of_optimizers: Collection[str]
) -> tuple[dict[Variable, str | Transposed], list[str]]:
    """The choice for each variable, and what is wrong with the names."""
    if isinstance(mapping, Mapping):
        return _wanted_by_name(mapping, variables)
    if not callable(mapping):
        mapping = _by_patterns(mapping)
    found, wrong = {}, []
    for name, variable in variables.items():
        try:
            wanted = None if name in of_optimizers else mapping(name)
        except LookupError:
            wrong.append(f"variable {name!r}: the mapping has no name for it, nor None to leave it out")
            continue
        if wanted is not None:
            found[variable] = _checked(wanted)
    return found, wrong


def _wanted_by_name(
    mapping: Mapping[Any, Any], variables: Mapping[str, Variable]
) -> tuple[dict[Variable, str | Transposed], list[str]]:
    found, wrong = {}, []
    for key, wanted in mapping.items():
        variable = key if isinstance(key, Variable) else variables.get(str(key).removesuffix(":0"))
        if variable is None:
            wrong.append(f"variable {key!r}: there is none in the graph.{nearest(str(key), variables)}")
        elif variable in found:
            wrong.append(f"variable {variable.op.name!r}: the mapping names it twice")
        else:
            found[variable] = _checked(wanted)
    return found, wrong


def _by_patterns(pairs: Any) -> Callable[[str], Wanted]:
    """The function that pairs of a regular expression and a name stand for."""
    expected = "load_safetensors: expected a dict, a function or pairs of a regular expression and a name"
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise misuse(f"{expected}; got {pairs!r:.200}", DTypeError)
    try:
        compiled = [(re.compile(pattern), wanted) for pattern, wanted in pairs]
    except re.error as error:
        raise misuse(f"{expected}; got {pairs!r:.200}: {error}", DTypeError) from None
    except (TypeError, ValueError):
        raise misuse(f"{expected}; got {pairs!r:.200}", DTypeError) from None

    def name_of(name: str) -> Wanted:
        for pattern, wanted in compiled:
            if match := pattern.fullmatch(name):
                if wanted is None:
                    return None
                text = _expanded(match, _name(_checked(wanted)))
                return wanted._replace(tensor=text) if isinstance(wanted, Transposed) else text
        raise LookupError(name)

    return name_of


def _expanded(match: re.Match[str], template: str) -> str:
    """The name that ``template`` stands for, with groups of ``match``."""
    try:
        return match.expand(template)
    except (re.error, IndexError) as error:
        raise misuse(
            f"load_safetensors: expected a name with groups of {match.re.pattern!r}; got {template!r}: "
            f"{error}"
        ) from None


def _checked(wanted: Any) -> Any:
    if not isinstance(wanted, str | Transposed):
        raise misuse(f"load_safetensors: expected the name of a tensor; got {wanted!r}", DTypeError)
    return wanted


def _name(wanted: str | Transposed) -> str:
    return wanted.tensor if isinstance(wanted, Transposed) else wanted


def _sources(
    wanted: Mapping[Variable, str | Transposed], tensors: Mapping[str, ShardTensor | str]
) -> tuple[dict[Variable, Source], list[str]]:
    """The source of each variable, and which variables cannot get their tensors."""
    sources: dict[Variable, Source] = {}
    wrong = []
    for variable, choice in wanted.items():
        name, where = _name(choice), f"variable {variable.op.name!r}"
        tensor = tensors.get(name)
        if tensor is None:
            wrong.append(f"{where}: there is no tensor {name!r}.{nearest(name, tensors)}")
        elif isinstance(tensor, str) or not _widens(tensor.dtype, variable.dtype):
            got = tensor if isinstance(tensor, str) else tensor.dtype.name
            wrong.append(f"{where} is {variable.dtype.name}; tensor {name!r} is {got}")
        elif misfit := _misfit(variable, tensor, choice):
            wrong.append(f"{where} {misfit}")
        else:
            sources[variable] = _source(tensor, choice)
    return sources, wrong


def _widens(stored: DType, wanted: DType) -> bool:
    return stored == wanted or ({stored, wanted} <= FLOATING and np.can_cast(stored.np, wanted.np, "safe"))


def _misfit(variable: Variable, tensor: ShardTensor, choice: str | Transposed) -> str | None:
    """The reason why the shapes do not fit, None if they do."""
    shape, rank = variable.shape, len(tensor.shape)
    if isinstance(choice, Transposed) and choice.perm is not None and sorted(choice.perm) != [*range(rank)]:
        return f"gets {choice}; tensor {tensor.name!r} has shape {list(tensor.shape)}"
    if shape.is_compatible_with(list(_source(tensor, choice).shape)):
        return None
    found = f"has shape {shape}; {'transposed ' * isinstance(choice, Transposed)}tensor {tensor.name!r} has "
    found += f"{list(_source(tensor, choice).shape)}"
    other = tensor.name if isinstance(choice, Transposed) else Transposed(tensor.name)
    return (
        f"{found}. {other!r} fits" if shape.is_compatible_with(list(_source(tensor, other).shape)) else found
    )


def _source(tensor: ShardTensor, choice: str | Transposed) -> Source:
    if not isinstance(choice, Transposed):
        return tensor
    return _Permuted(tensor, choice.perm or tuple(reversed(range(len(tensor.shape)))))


def _left_over(
    tensors: Mapping[str, Any], wanted: Iterable[str | Transposed], ignore: Iterable[str]
) -> list[str]:
    used, patterns = {_name(choice) for choice in wanted}, _patterns(ignore)
    return [
        f"tensor {name!r}: no variable gets it"
        for name in tensors
        if name not in used and not any(pattern.fullmatch(name) for pattern in patterns)
    ]


def _forgotten(
    mapping: Any,
    wanted: Collection[Variable],
    variables: Mapping[str, Variable],
    of_optimizers: Collection[str],
) -> list[str]:
    """The variables that a dict does not name. They may keep their values, so it is no mistake alone."""
    if not isinstance(mapping, Mapping):
        return []
    names = [n for n, v in variables.items() if v not in wanted and n not in of_optimizers]
    return [f"variables that the mapping does not name: {first_few(names, 5)}"] if names else []


def _patterns(ignore: Any) -> list[re.Pattern[str]]:
    try:
        if isinstance(ignore, str):
            raise TypeError("a text alone is none")
        return [re.compile(pattern) for pattern in ignore]
    except (TypeError, re.error) as error:
        raise misuse(
            f"load_safetensors: ignore: expected a list of regular expressions; got {ignore!r:.200}: {error}"
        ) from None


@final
class _Permuted:
    """A tensor with its dimensions in another order."""

    def __init__(self, tensor: ShardTensor, perm: tuple[int, ...]) -> None:
        self._tensor, self._perm = tensor, perm
        self.shape = tuple(tensor.shape[dim] for dim in perm)

    def check(self, part: Slices) -> None:
        """See `Source`."""
        self._tensor.check(self._of_tensor(part))

    def read(self, part: Slices, out: Array) -> None:
        """See `Source`."""
        self._tensor.read(self._of_tensor(part), out.transpose(np.argsort(self._perm)))

    def _of_tensor(self, part: Slices) -> Slices:
        return tuple(part[i] for i in np.argsort(self._perm))
