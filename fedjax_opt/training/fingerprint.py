"""What makes a run the one that it is, and how a run finds out that a checkpoint is of another one.

Four things are compared: the names of functions, the program that the rounds are compiled from,
numbers, and data. The program is the jaxpr of a round. So a constant inside of a function, a global that
it reads and a helper that it calls belong to it. It is traced for shapes: hyperparameters, the devices
and the way in which clients are spread over them are not in it.
"""

import dataclasses
import datetime
import functools
import hashlib
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.calls import Call
from fedjax_opt.core.client_data import ClientData, StoredClients
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.run import Prepared, one_round
from fedjax_opt.execution.strategies import Strategy

Texts = dict[str, dict[str, str]]

# What a run may differ in from the checkpoint that it resumes from, if it is asked for.
CHANGES = ("hyperparameters", "program", "data", "versions")
# What a run may never differ in, by the part of a checkpoint that says so.
_STRICT = {
    "leaves": "another model, algorithm or population",
    "seed": "a run with another seed",
    "functions": "another model, algorithm or run",
    "recorded": "a run whose history holds other things",
}
_COMPARED = ("fedjax_opt", "jax", "jaxlib", "numpy", "optax")
_LISTED = 5
# Arrays up to this size are written out, larger ones as a checksum.
_SHOWN = 8
_DIGITS = 16
# Of an array with more bytes, so many evenly spaced blocks that are as large together are hashed.
_WHOLE_BYTES, _BLOCKS = 2**28, 64
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def circumstances() -> dict[str, object]:
    """When, where and with what a checkpoint is written. Of it, only `versions` are compared."""
    return {
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "backend": jax.default_backend(),
            "devices": jax.device_count(),
            "device": jax.devices()[0].device_kind,
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of everything that the numbers of a run, or its files, may depend on."""
    modules = {name: sys.modules.get(name) for name in (*_COMPARED, "orbax.checkpoint")}
    found = {name: getattr(module, "__version__", "unknown") for name, module in modules.items()}
    return {"python": platform.python_version()} | found


def of_run(
    prepared: Prepared, state: FederatedState, algorithm: Algorithm, **recorded: object
) -> Texts:
    """What makes a run the one that it is, apart from its state: texts by path, by part."""
    # Rounds, chunks and devices change no number, and are left out.
    federation = prepared.federation
    names = "model", "cohort", "local_steps", "batch_size", "batching", "weighting", "guard"
    functions, numbers = describe(
        algorithm=algorithm,
        algorithm_by_rate=getattr(prepared.algorithm, "make", None),  # of one that is scheduled
        learning_rate=prepared.controls.learning_rate,
        **{name: getattr(federation, name) for name in names},
    )
    columns = {"diagnostics": str(sorted(prepared.diagnostics))}
    return {
        "functions": functions,
        "program": _program(prepared, state, algorithm),
        "hyperparameters": numbers,
        "data": of_data(data=federation.clients, validation=federation.validation),
        "recorded": columns | {name: str(value) for name, value in recorded.items()},
        "seed": {"key": of_array(state.key)},
    }


def _program(prepared: Prepared, state: FederatedState, algorithm: Algorithm) -> dict[str, str]:
    """Checksums of what is compiled: of a round, its clients one after the other."""
    clients: Any = prepared.federation.clients
    # Wherever examples and clients' states are kept: all of them are arrays here, of which only the
    # shapes are looked at.
    data = ClientData(clients.examples, clients.offsets, clients.sizes)
    prepared = changed(prepared.with_clients(data), strategy=Strategy("scan"))
    stacked = jax.vmap(algorithm.init_client, in_axes=None, axis_size=clients.num_clients)  # type: ignore[call-arg]
    state = state._replace(clients=jax.eval_shape(stacked, state.variables))
    shapes = trees.shapes_of((prepared, state))
    # A new function: JAX remembers the jaxprs of those that it has seen, whatever globals they read.
    return {"round": of_jaxpr(jax.make_jaxpr(lambda *given: one_round(*given))(*shapes))}


def of_jaxpr(jaxpr: ClosedJaxpr) -> str:
    """A checksum of a program and all constants in it; the same in every process."""
    text = str(jaxpr.jaxpr.pretty_print(use_color=False))
    found = [_ADDRESS.sub("", text), *map(of_array, _constants(jaxpr))]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:_DIGITS]


def _constants(jaxpr: object) -> Iterator[chex.Array]:
    """All numbers in a program, however deep: as text, arrays are abbreviated or left out."""
    if isinstance(jaxpr, ClosedJaxpr):
        yield from jaxpr.consts
        jaxpr = jaxpr.jaxpr
    if isinstance(jaxpr, Jaxpr):
        for equation in jaxpr.eqns:
            yield from (x.val for x in equation.invars if isinstance(x, Literal))
            for inner in jax.tree.leaves(equation.params):
                yield from _constants(inner)


def describe(**parts: object) -> tuple[dict[str, str], dict[str, str]]:
    """The functions and the numbers that some values consist of, as texts by path."""
    functions: dict[str, str] = {}
    numbers: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        inner: Mapping[str, object] = {}
        if isinstance(value, Call):
            return  # what it was made by says nothing that its functions do not
        if isinstance(value, str):
            numbers[path] = repr(str(value))
        elif isinstance(value, (bool, int, float, complex, np.ndarray, np.generic, jax.Array)):
            numbers[path] = of_array(value)
        elif isinstance(value, functools.partial):
            given = [*enumerate(value.args), *value.keywords.items()]
            inner = {"": value.func} | {f"[{name}]": x for name, x in given}
        elif names := _fields(value):
            functions[path] = _name(type(value))
            inner = {f".{name}": getattr(value, name) for name in names}
        elif callable(value):
            functions[path] = _name(value if hasattr(value, "__name__") else type(value))
        else:
            leaves = jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda x: x is not value)
            inner = {jax.tree_util.keystr(keys): x for keys, x in leaves if x is not value}
        for key, part in inner.items():
            walk(part, path + key)

    for name, value in parts.items():
        walk(value, name)
    return functions, numbers


def _fields(value: Any) -> Sequence[str]:
    """Of a dataclass or a named tuple, the names of what it holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value)]
    return () if isinstance(value, type) else getattr(value, "_fields", ())


def _name(value: Any) -> str:
    """Where a function or a type is defined."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return f"{module}.{getattr(value, '__qualname__', value.__name__)}"


def of_array(value: Any) -> str:
    """An array as text: its type, and its content or a checksum of it."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"{value.dtype} {of_array(jax.random.key_data(value))}"
    if not isinstance(value, jax.Array):
        # A number is the same number whether it is kept as an array or not.
        value = np.asarray(value)
    shape = value.shape
    if value.size <= _SHOWN:
        array = np.asarray(value)
        return repr(array.item()) if not shape else f"{array.dtype}{[*shape]} {array.tolist()}"
    # All rows in order, or where these would be too many, those of evenly spaced places.
    found, rows, starts, length = hashlib.sha256(), shape[0], [0], shape[0]
    if value.nbytes > _WHOLE_BYTES:
        length = max(_WHOLE_BYTES // _BLOCKS // (value.nbytes // rows), 1)
        starts = np.unique(np.linspace(0, rows - length, _BLOCKS).astype(np.int64))
    for start in map(int, starts):
        part = np.ascontiguousarray(value[start : start + length])
        found.update(part.reshape(-1).view(np.uint8).data)
    return f"{value.dtype}{[*shape]} with checksum {found.hexdigest()[:_DIGITS]}"


def of_data(**parts: object) -> dict[str, str]:
    """Examples as texts by path: their shapes and checksums."""
    found = {}
    for name, part in parts.items():
        if isinstance(part, StoredClients):  # the checksums of all of its files are known already
            found[f"{name}.files"] = f"files with checksum {part.files.checksum:08x}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(part):
            found[name + jax.tree_util.keystr(path)] = of_array(leaf)
    return found


class OtherRun(Exception):
    """Something was read well, and is not of this run."""


def check_same_run(there: Mapping[str, Any], here: Texts, allow: Sequence[str], where: str) -> None:
    """Refuses to resume a run that differs, and warns of what it is allowed to differ in."""
    then, now = there.get("versions", {}), versions()
    there = {**there, "versions": {name: then.get(name, "unknown") for name in _COMPARED}}
    here = {**here, "versions": {name: now[name] for name in _COMPARED}}
    differs = {part: checks.differences(there.get(part, {}), x) for part, x in here.items()}
    for part, what in _STRICT.items():
        if differs.get(part):
            raise OtherRun(f"is of {what}: {_listed(differs[part])}.")
    if differs["versions"] and "program" in here:  # another JAX writes the same one differently
        differs["versions"].append("so the programs were not compared")
        del differs["program"]
    elif differs.get("program"):
        why = "a function that it calls, a constant or a shape was changed"
        differs["program"] = [f"the round computes something else: {why}"]
    found = {part: _listed(differs[part]) for part in CHANGES if differs.get(part)}
    if refused := found.keys() - set(allow):
        told = ". ".join(f"Other {part}: {why}" for part, why in found.items() if part in refused)
        raise OtherRun(
            f"is of a run that differs from this one. {told}. To resume with these changes, use"
            f" Checkpoints(..., allow={tuple(sorted({*allow, *refused}))!r})."
        )
    for part, why in found.items():
        warnings.warn(f"{where} is resumed with other {part}: {why}.", stacklevel=3)


def _listed(found: Sequence[str]) -> str:
    """The first of some differences, and whether there are more."""
    more = f"; and {len(found) - _LISTED} more" if found[_LISTED:] else ""
    return "; ".join(found[:_LISTED]) + more
