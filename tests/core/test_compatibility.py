"""Versions of JAX that compute wrong numbers are refused, and this one is not among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_opt.core.compatibility import check_jax_version


def test_a_wrong_version_is_refused_with_a_way_out():
    with pytest.raises(ImportError, match=r"jax 0\.10\.2 .*39103.*pip install 'jax!=0\.10\.2'"):
        check_jax_version("0.10.2")


@pytest.mark.parametrize("version", ["0.7.2", "0.10.1", "0.10.3", "0.10.20", jax.__version__])
def test_other_versions_are_accepted(version):
    check_jax_version(version)


@pytest.mark.parametrize(("dtype", "rows"), [("float32", 32_769), ("float64", 16_385)])
def test_this_version_computes_what_the_wrong_one_does_not(dtype, rows):
    """The pattern and the sizes of jax-ml/jax#39103, where the last row reads another row's numbers.

    Row i holds i mod 2039, i // 2039 and 1, so no row has the answer of one a few rows away. All
    entries are whole, and so are the sums: at most 2038^2 + 16^2 + 17^2 < 2^24. They are exact in
    float32 in whatever order they are added, and must equal NumPy's in float64 bit for bit.
    """
    matrix = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    i = np.arange(rows)
    data = np.stack([i % 2039, i // 2039, np.ones_like(i)], axis=1).astype(np.float64)
    m = jnp.asarray(matrix, dtype)
    found = jax.jit(jax.vmap(lambda r: jnp.sum((m @ r) ** 2)))(jnp.asarray(data, dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.sum((data @ matrix.T) ** 2, axis=1))
