"""Versions of JAX: one that computes wrong numbers is refused; a name that moved is found."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax

# jit(vmap(lambda r: sum((M @ r)**2))) over many float32 rows is wrong on CPU (jax-ml/jax#39103).
WRONG_VERSIONS = frozenset({"0.10.2"})


def check_jax_version(version: str = jax.__version__) -> None:
    """Raises if this version of JAX is known to be wrong."""
    if version in WRONG_VERSIONS:
        raise ImportError(
            f"jax {version} compiles wrong numbers on CPU (jax-ml/jax issue 39103), so fedjax_opt"
            " does not run on it. Install another one: pip install 'jax!=0.10.2'."
        )


def enable_x64(enabled: bool = True) -> AbstractContextManager:
    """Lets JAX compute in float64, or not, until it is left."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax.experimental import enable_x64  # pyright: ignore[reportAttributeAccessIssue]

    return enable_x64(enabled)


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Of a scan's inputs, how many are the same in all steps, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    fixed, carried, _ = params["ft_in"].unpack()
    return len(fixed), len(carried)
