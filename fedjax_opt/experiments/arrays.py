"""A state in a file: a pytree as `.npz`, by the paths of its leaves, with a word about it inside."""

import io
import json
import pathlib
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.storage import durable

_ABOUT = "about.json"


def write(path: pathlib.Path, tree: chex.ArrayTree, about: dict[str, Any] | None = None) -> None:
    """Writes or replaces a file: all of it is there, or what was there before."""
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in _named(tree).items()}
    if about is not None:
        arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    content = io.BytesIO()
    np.savez(content, **arrays)
    with durable.named(path.parent, "cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace(path, content.getvalue())


def read_about(path: pathlib.Path) -> dict[str, Any]:
    """What was written beside the arrays."""
    try:
        with np.load(io.BytesIO(durable.read(path)), allow_pickle=False) as arrays:
            return json.loads(arrays[_ABOUT].tobytes())
    except Exception as error:  # zipfile and NumPy raise one of many kinds
        raise ValueError(f"{path} is damaged, or not of this library: {error}") from error


def read(path: pathlib.Path, like: chex.ArrayTree) -> Any:
    """The arrays of a file in the structure of others; of other shapes they are refused."""
    content = durable.read(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files if name != _ABOUT}
    except Exception as error:
        raise ValueError(f"{path} is damaged, or holds no arrays: {error}") from error
    named = _named(like)
    if found.keys() != named.keys():
        name = min(found.keys() ^ named.keys())
        raise ValueError(
            f"{path} is of another model: {name} is missing {'here' if name in found else 'there'}."
        )
    for name, leaf in named.items():
        array, dtype = found[name], np.dtype(leaf.dtype)
        if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
            found[name] = array = array.view(dtype)  # bfloat16 and others that NumPy does not name
        if (array.shape, array.dtype) != (leaf.shape, dtype):
            raise ValueError(
                f"{path} is of another model: {name} is {array.dtype}{list(array.shape)} there and"
                f" {dtype}{list(leaf.shape)} here."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in named])


def _named(tree: chex.ArrayTree) -> dict[str, Any]:
    """The leaves by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}
    if len(named) < len(leaves):
        raise ValueError("variables must have leaves with different paths, but two have the same.")
    return {name: x if hasattr(x, "dtype") else jnp.asarray(x) for name, x in named.items()}
