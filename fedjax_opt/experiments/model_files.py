"""Final models in a run directory, as `.npz` files: arrays by the paths of their leaves."""

import io
import os
import pathlib
import urllib.parse
from typing import Any

import jax
import numpy as np

from fedjax_opt.core import Variables
from fedjax_opt.experiments import files

_MODELS = "models"


def write_model(path: pathlib.Path, label: str, variables: Variables) -> None:
    """Writes or replaces the model of a label."""
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in _named(variables).items()}
    content = io.BytesIO()
    np.savez(content, **arrays)
    files.write_whole(_model_file(path, label), content.getvalue())


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
    file = _model_file(pathlib.Path(path), label)
    content = files.read_bytes(file)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except Exception as error:  # zipfile and NumPy raise one of many kinds
        raise ValueError(f"{file} is damaged, or not a model: {error}") from error
    named = _named(like)
    if found.keys() != named.keys():
        name = min(found.keys() ^ named.keys())
        raise ValueError(
            f"{file} is of another model: {name} is missing {'here' if name in found else 'there'}."
        )
    for name, leaf in named.items():
        array, dtype = found[name], np.dtype(leaf.dtype)
        if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
            found[name] = array = array.view(dtype)  # bfloat16 and others that NumPy does not name
        if (array.shape, array.dtype) != (leaf.shape, dtype):
            raise ValueError(
                f"{file} is of another model: {name} is {array.dtype}{list(array.shape)} there and"
                f" {dtype}{list(leaf.shape)} here."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in named])


def _model_file(folder: pathlib.Path, label: str) -> pathlib.Path:
    return folder / _MODELS / f"{urllib.parse.quote(label, safe=' ()=,+@')}.npz"


def _named(variables: Variables) -> dict[str, Any]:
    """The leaves by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}
    if len(named) < len(leaves):
        raise ValueError("variables must have leaves with different paths, but two have the same.")
    return named
