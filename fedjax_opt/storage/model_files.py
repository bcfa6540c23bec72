"""A model's weights in files that other programs read.

    model.safetensors   named arrays
    model.npz           named arrays as NumPy writes them, which needs no other package
    model.msgpack       as Flax writes them
    model               a folder, as orbax writes it

Beside the file lies `model.json`, which says in words what it holds. None of the forms can run code when
it is read, and none is packed: a small file cannot become a large array.
"""

import hashlib
import importlib
import io
import json
import os
import pathlib
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import chex
import jax
import numpy as np

from fedjax_opt.core import Variables
from fedjax_opt.storage import durable

_ENDINGS = (".safetensors", ".npz", ".msgpack")


def save_model(
    variables: Variables | chex.ArrayTree,
    path: str | os.PathLike[str],
    about: Mapping[str, Any] | None = None,
) -> pathlib.Path:
    """Writes a model's weights, and beside them a description that a person can read.

    Args:
      variables: the model's variables, such as `result.state.variables`, or any pytree of arrays.
      path: where; `.safetensors`, `.npz` (NumPy's form) and `.msgpack` (Flax's) are files, any other
        name is a folder of orbax's. What is there is replaced, but for a folder, which must be new.
      about: what else the description shall say: JSON values by name.

    Returns:
      The path.

    Example:
      >>> import pathlib, tempfile
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "linear.safetensors"
      >>> path = fo.save_model({"w": jnp.ones(3)}, path, about={"trained on": "digits"})
      >>> fo.load_model(path).params["w"].tolist()
      [1.0, 1.0, 1.0]
    """
    path = pathlib.Path(path)
    arrays = _named(_as_variables(variables))
    if not arrays:
        raise ValueError("variables must hold at least one array, got none.")
    with durable.named(path.parent, "cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        durable.replace(path, _module("safetensors.numpy", "models").save(arrays))
    elif path.suffix == ".npz":
        content = io.BytesIO()
        np.savez(content, **arrays)
        durable.replace(path, content.getvalue())
    elif path.suffix == ".msgpack":
        pack = _module("flax.serialization", "models").msgpack_serialize
        durable.replace(path, pack(_nested(arrays)))
    else:
        if path.exists():
            raise ValueError(f"path must be new for a folder, but {path} exists.")
        checkpoint = _module("orbax.checkpoint", "checkpoint")
        checkpoint.PyTreeCheckpointer().save(path.absolute(), _nested(arrays))
    description = {
        "fedjax_opt": version("fedjax_opt"),
        "parameters": sum(x.size for name, x in arrays.items() if name.startswith("params")),
        "bytes": sum(x.nbytes for x in arrays.values()),
        "arrays": {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()},
        "about": dict(about or {}),
    }
    if path.is_file():
        description["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        text = json.dumps(description, indent=2)
    except (TypeError, ValueError) as error:
        raise ValueError(f"about must hold JSON values, got {about!r}: {error}.") from error
    durable.replace(_description(path), f"{text}\n".encode())
    return path


def load_model(
    path: str | os.PathLike[str], like: Variables | chex.ArrayTree | None = None
) -> Variables:
    """Reads weights that `save_model` or another program wrote, for `Federation(initial=...)`.

    Args:
      path: the file or folder. Names of arrays are parted at '/'; where none begins with 'params/', all
        of them are parameters.
      like: variables of the same model, or what `jax.eval_shape` says of them; they give the structure,
        and any array that is missing, left over or of another shape or dtype is refused. Without them
        the arrays come in nested dicts.

    Returns:
      The variables, in the host's memory.

    Example:
      >>> import pathlib, tempfile
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "linear.safetensors"
      >>> weights = [jnp.zeros((3, 2)), jnp.ones(2)]
      >>> path = fo.save_model(weights, path)
      >>> fo.load_model(path, like=weights).params[1].tolist()
      [1.0, 1.0]
    """
    path = pathlib.Path(path)
    found = _read(path)
    if not any(name.startswith("params/") or name == "params" for name in found):
        found = {f"params/{name}": x for name, x in found.items()}
    if like is None:
        tree = _nested(found)
        return Variables(tree.get("params", {}), tree.get("state", ()))
    like = _as_variables(like)
    expected = _named(like)
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        what = f"lacks {missing[0]!r}" if missing else f"also holds {extra[0]!r}"
        raise ValueError(f"{path} {what}: it is of another model than `like`.")
    for name, leaf in expected.items():
        sides = [f"{x.dtype}{list(x.shape)}" for x in (found[name], leaf)]
        if sides[0] != sides[1]:
            raise ValueError(f"{path}: {name!r} must be {sides[1]}, as in `like`, got {sides[0]}.")
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in expected])


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Arrays by name; of a folder only if all in it are files of its own."""
    if path.is_dir():
        if linked := [inner for inner in path.rglob("*") if inner.is_symlink()]:
            raise ValueError(
                f"{path} must hold files and folders alone, but {linked[0]} is a link."
            )
        checkpoint = _module("orbax.checkpoint", "checkpoint")
        try:
            return _named(checkpoint.PyTreeCheckpointer().restore(path.absolute()))
        except Exception as error:  # orbax's own, of many kinds
            raise ValueError(f"{path} cannot be read by orbax: {error}") from error
    content = durable.read(path)
    _check_checksum(path, content)
    try:
        if path.suffix == ".safetensors":
            # Not `load` of the content, which knows no bfloat16.
            return _module("safetensors.numpy", "models").load_file(path)
        if path.suffix == ".npz":
            return _of_npz(path, content)
        if path.suffix == ".msgpack":
            return _named(_module("flax.serialization", "models").msgpack_restore(content))
    except ImportError:
        raise
    except Exception as error:  # of Rust's and msgpack's readers
        raise ValueError(f"{path} is damaged, or no {path.suffix} file: {error}") from error
    raise ValueError(
        f"path must end in .safetensors, .npz or .msgpack, or be a folder, got {path}."
    )


def _of_npz(path: pathlib.Path, content: bytes) -> dict[str, np.ndarray]:
    if any(part.compress_type for part in zipfile.ZipFile(io.BytesIO(content)).infolist()):
        raise ValueError("it is packed: write it by np.savez.")
    with np.load(io.BytesIO(content), allow_pickle=False) as held:
        found = {name: held[name] for name in held.files}
    unnamed = [name for name, array in found.items() if array.dtype.kind == "V"]
    if unnamed:  # bfloat16 and others that NumPy's files have no name for, but the description has
        kinds = json.loads(durable.read(_description(path)))["arrays"]
        for name in unnamed:
            found[name] = found[name].view(jax.numpy.dtype(kinds[name].partition("[")[0]))
    return found


def _check_checksum(path: pathlib.Path, content: bytes) -> None:
    """Compares a file with its description, where there is one; other programs write none."""
    description = _description(path)
    if not description.exists():
        return
    try:
        expected = json.loads(description.read_bytes())["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # of somebody else's
    if expected != hashlib.sha256(content).hexdigest():
        raise ValueError(f"{path} is damaged: its SHA-256 is not the one that {description} says.")


def _description(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.stem if path.suffix in _ENDINGS else path.name}.json")


def _as_variables(tree: Any) -> Variables:
    return tree if isinstance(tree, Variables) else Variables(tree)


def _named(tree: Any) -> dict[str, Any]:
    """The leaves as arrays, or as the shapes that they are, by the words of their paths."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in found:
            raise ValueError(f"Two arrays have the path {name!r}: rename a key that holds a '/'.")
        found[name] = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
    return found


def _nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = name.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = array
    return tree


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"This form of file needs {package}: pip install 'fedjax_opt[{extra}]'."
        ) from error
