"""Arrays in files: a pytree as `.npz`, by the paths of its leaves, with a word about it beside them."""

import io
import json
import os
import pathlib
import urllib.parse
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Variables
from fedjax_opt.experiments import files

_MODELS = "models"
_ABOUT = "about.json"


def write(path: pathlib.Path, tree: chex.ArrayTree, about: dict[str, Any] | None = None) -> None:
    """Writes or replaces a file: all of it is there, or what was there before."""
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in _named(tree).items()}
    if about is not None:
        arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    content = io.BytesIO()
    np.savez(content, **arrays)
    files.write_whole(path, content.getvalue())


def read_about(path: pathlib.Path) -> dict[str, Any]:
    """What was written beside the arrays."""
    try:
        with np.load(io.BytesIO(files.read_bytes(path)), allow_pickle=False) as arrays:
            return json.loads(arrays[_ABOUT].tobytes())
    except Exception as error:  # zipfile and NumPy raise one of many kinds
        raise ValueError(f"{path} is damaged, or not of this library: {error}") from error


def read(path: pathlib.Path, like: chex.ArrayTree) -> Any:
    """The arrays of a file in the structure of others; of other shapes they are refused."""
    content = files.read_bytes(path)
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


def write_model(path: pathlib.Path, label: str, variables: Variables) -> None:
    """Writes or replaces the model of a label."""
    write(_model_file(path, label), variables)


def labels(path: pathlib.Path) -> list[str]:
    """Whose models there are."""
    names = sorted(file.stem for file in (path / _MODELS).glob("*.npz"))
    return [urllib.parse.unquote(name) for name in names]


def read_model(path: str | os.PathLike[str], label: str, like: Variables) -> Variables:
    """Reads the final model of a label.

    Args:
      path: the run directory.
      label: whose model.
      like: variables of the same model, which say what must be there.

    Returns:
      The variables.

    Raises:
      ValueError: if there is none, if it is damaged, or if it is of another model.

    Example:
      >>> import pathlib, tempfile
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments.rundir import RunDirectory, read_model
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "run"
      >>> variables = fo.Variables({"w": jnp.ones(3)})
      >>> with RunDirectory(home, config="rounds = 10") as run:
      ...     run.save_model("fedavg", variables)
      >>> read_model(home, "fedavg", like=variables).params["w"].tolist()
      [1.0, 1.0, 1.0]
    """
    return read(_model_file(pathlib.Path(path), label), like)


def _model_file(folder: pathlib.Path, label: str) -> pathlib.Path:
    name = urllib.parse.quote(label, safe=" ()=,+@")
    return folder / _MODELS / f"{name}.npz"


def _named(tree: chex.ArrayTree) -> dict[str, Any]:
    """The leaves by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}
    if len(named) < len(leaves):
        raise ValueError("variables must have leaves with different paths, but two have the same.")
    return {name: x if hasattr(x, "dtype") else jnp.asarray(x) for name, x in named.items()}
