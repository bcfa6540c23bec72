"""Refuses to start on a JAX that is known to compute wrong numbers."""

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
