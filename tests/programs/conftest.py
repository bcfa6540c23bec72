"""Other people's programs are not written for strict promotion."""

import jax
import pytest


@pytest.fixture(autouse=True)
def as_users_have_it():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
