"""A client's inputs in a file, and its work done again from there.

The file is a plain `.npz`: arrays by name (`batches['x']`, `message.variables.params['w']`, `key`, ...)
that `numpy.load` reads without pickle, and one text, `about`, in JSON: what failed, where, and with
which versions.
"""

import json
import pathlib
import platform
import zipfile
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial, keystr, tree_leaves_with_path

from fedjax_opt.core.algorithm import (
    Algorithm,
    Kept,
    ProbeData,
    Scheduled,
    check_algorithm,
)
from fedjax_opt.core.controller import at_rate
from fedjax_opt.core.messages import any_gradient
from fedjax_opt.core.model import Model, Variables
from fedjax_opt.engine.client import Invitation, client_update, probe_data
from fedjax_opt.engine.minibatches import Feed

_FORMAT = 1


class Replay(NamedTuple):
    """What a client's work gave when it was done again.

    Attributes:
      about: what was noted when it failed: 'round', 'client', 'stage', 'failed', 'traceback',
        'versions'.
      losses: the loss of each local step `[K]`; empty if its probe failed.
      upload: what it would send; its report, if its probe failed.
      client_state: what it would keep.
    """

    about: dict[str, Any]
    losses: np.ndarray
    upload: Any
    client_state: Any


def save(path: pathlib.Path, inputs: dict[str, Any], about: dict[str, Any]) -> None:
    """Writes trees of arrays by name, and what is to be known about them."""
    arrays, names, kinds = {}, {}, {}
    for name, tree in inputs.items():
        names[name] = []
        for where, leaf in tree_leaves_with_path(tree):
            array, full = np.asarray(leaf), name + keystr(where)
            if array.dtype.kind == "V":  # bfloat16 and its like, which the format does not know
                kinds[full] = array.dtype.name
                array = array.view(f"uint{8 * array.dtype.itemsize}")
            arrays[full] = array
            names[name].append(full)
    versions = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    versions["python"] = platform.python_version()
    known = {"format": _FORMAT, "versions": versions, "arrays": names, "dtypes": kinds}
    np.savez(path, allow_pickle=False, about=np.array(json.dumps(about | known)), **arrays)


def skeleton(tree: Any) -> Any:
    """The structure of nested dicts, lists and tuples, as JSON holds it; None for a leaf."""
    if isinstance(tree, dict):
        return {"dict": [[key, skeleton(tree[key])] for key in sorted(tree)]}
    if isinstance(tree, (list, tuple)):
        return {type(tree).__name__: [skeleton(part) for part in tree]}
    return None if hasattr(tree, "dtype") else {type(tree).__name__: []}


def replay(
    path: str | pathlib.Path,
    algorithm: Any,
    model: Model,
    variables: Variables | None = None,
    stop_at_nan: bool = False,
) -> Replay:
    """Does the work of a client again that failed in `simulate(..., debug=folder)`.

    Nothing is compiled: a breakpoint or a print in the model's loss sees numbers. Whatever error the
    client raised is raised again, from the same line.

    Args:
      path: the file; `DebugError.path` is its name.
      algorithm: the algorithm of the run.
      model: the model of the run, with or without changes that should help.
      variables: any variables of the model, for their structure; None to ask `model.init`.
      stop_at_nan: whether to raise a FloatingPointError where the first NaN arises.

    Returns:
      A `Replay`.

    Raises:
      ValueError: if the file is no such file, or of another model or algorithm.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> algorithm = fo.attacks.nan_upload(fo.fedavg(fo.optimizers.sgd(0.1)), clients=[2])
      >>> federation = fo.Federation(model, data, cohort=4, local_steps=2, batch_size=1)
      >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
      ...     try:
      ...         fo.simulate(algorithm, federation, 3, debug=folder, progress=False)
      ...     except fo.DebugError as error:
      ...         again = fo.replay(error.path, algorithm, model)
      >>> again.about["client"], bool(  # doctest: +SKIP
      ...     np.isnan(again.upload.params["x"]).all())
      (2, True)
    """
    arrays, about = _load(pathlib.Path(path))
    if isinstance(algorithm, Scheduled):
        algorithm = at_rate(algorithm, jnp.asarray(about["learning_rate"]))
    check_algorithm(algorithm)
    leaves = {
        name: [arrays[full] for full in full_names] for name, full_names in about["arrays"].items()
    }
    batches = _rebuilt(about["batches"], iter(leaves["batches"]))
    if variables is None:
        first = jax.tree.map(lambda x: x[0], batches)
        variables = jax.eval_shape(model.init, jax.random.key(0), first)
    key = jax.random.wrap_key_data(leaves["key"][0], impl=about["key_impl"])
    shapes = jax.eval_shape(lambda v: _shapes(algorithm, v), variables)
    parts = {
        name: _in_shape(name, shape, leaves[name], about["stage"])
        for name, shape in zip(
            ("message", "client_state", "report", "own_report"), shapes, strict=True
        )
    }
    with jax.disable_jit(), jax.debug_nans(stop_at_nan):
        if about["stage"] == "probe":
            return _probe(about, algorithm, model, parts, leaves, key)
        return _work(about, algorithm, model, parts, leaves, batches, key)


def _work(about, algorithm, model, parts, leaves, batches, key):
    mask = leaves["mask"][0] if leaves["mask"] else None
    losses = []

    def step(inner, state, objective, batch, context):
        state, evaluation = inner(state, objective, batch, context)
        if not isinstance(
            evaluation.loss, Tracer
        ):  # its shape is asked for once before the first step
            losses.append(np.asarray(evaluation.loss))
        return state, evaluation

    def draw(key, k):
        del key
        return jax.tree.map(lambda x: x[k], (batches, mask))

    invitation = Invitation(
        message=parts["message"], round=jnp.int32(about["round"]), id=jnp.int32(about["client"]),
        num_steps=leaves["num_steps"][0], invited=leaves["invited"][0],
        num_clients=leaves["num_clients"][0], key=key, report=parts["report"],
    )  # fmt: skip
    noting = algorithm._replace(step=Partial(step, algorithm.step))
    feed = Feed(draw, _not_asked, 0, _not_asked, 0)
    result = client_update(
        noting, model, feed, invitation, parts["client_state"], parts["own_report"]
    )
    return Replay(about, np.array(losses), result.upload, result.state)


def _not_asked(*args):
    raise AssertionError("not asked for where the work is done again")


def _probe(about, algorithm, model, parts, leaves, key):
    def tree(name):
        return _rebuilt(about["batches"], iter(leaves[name]))

    batches, masks = tree("probe_batches"), leaves["probe_mask"]
    extra_mask = leaves["extra_mask"][0] if leaves["extra_mask"] else None

    def chunk(index):
        return jax.tree.map(lambda x: x[index], (batches, masks[0] if masks else None))

    def extra(key):
        del key
        return tree("extra_batch"), extra_mask

    feed = Feed(_not_asked, chunk, jax.tree.leaves(batches)[0].shape[0], extra, 0)
    data = probe_data(model, feed, key, jnp.int32(about["client"]))
    report = algorithm.probe(parts["message"], parts["client_state"], data)
    return Replay(about, np.zeros(0), report, parts["client_state"])


def _load(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        # Opened here: of a damaged file, NumPy would leave it open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            arrays = {name: file[name] for name in file.files if name != "about"}
    except FileNotFoundError:
        raise ValueError(f"path must be a file of a debug run, but there is no {path}.") from None
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a file of a debug run, or is damaged: {error}") from error
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise ValueError(f"{path} is not a file of a debug run of format {_FORMAT}.")
    for name, kind in about["dtypes"].items():
        arrays[name] = arrays[name].view(jnp.dtype(kind))
    return {name: jnp.asarray(array) for name, array in arrays.items()}, about


def _rebuilt(structure: Any, leaves: Any) -> Any:
    if structure is None:
        return next(leaves)
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {key: _rebuilt(part, leaves) for key, part in parts}
    if kind not in ("list", "tuple"):
        raise ValueError(f"Batches must be dicts, lists and tuples to be replayed, got a {kind}.")
    return (list if kind == "list" else tuple)(_rebuilt(part, leaves) for part in parts)


def _shapes(algorithm: Algorithm, variables: Any) -> tuple[Any, Any, Any, Any]:
    """Message, client state, the cohort's report and the client's own, of these structures."""
    message, client = (
        algorithm.broadcast(algorithm.init(variables)),
        algorithm.init_client(variables),
    )
    own: Any = ()
    if algorithm.probe is not None:
        own = algorithm.probe(message, client, ProbeData(any_gradient, any_gradient))
    return message, client, own.shared if isinstance(own, Kept) else own, own


def _in_shape(name: str, shape: Any, leaves: list[Any], stage: str) -> Any:
    if stage == "probe" and name in ("report", "own_report"):
        return ()
    wanted = [tuple(x.shape) for x in jax.tree.leaves(shape)]
    found = [tuple(x.shape) for x in leaves]
    if wanted != found:
        raise ValueError(
            f"The file's {name} has the shapes {found}, but this algorithm and model have {wanted}: they"
            " are not those of the run that failed."
        )
    return jax.tree.unflatten(jax.tree.structure(shape), leaves)
