"""The machine's float32 matrix-multiplication rate: 1536 x 1536 in NumPy and in JAX, all cores."""

import platform
import time
from importlib.metadata import version

import common
import jax
import jax.numpy as jnp
import numpy as np

SIZE = 1536
PRODUCTS = 10  # in a timed unit, of each kind

common.worker_parser(__doc__).parse_args()


def setup():
    a = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    b = jnp.asarray(a)
    product = jax.jit(jnp.matmul)

    def seconds_per_product(multiply):
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            multiply()
        return (time.perf_counter() - start) / PRODUCTS

    def run():
        seconds = {
            "numpy": seconds_per_product(lambda: a @ a),
            "jax": seconds_per_product(lambda: product(b, b).block_until_ready()),
        }
        best = min(seconds, key=seconds.get)
        return {
            "seconds": seconds[best],
            "best": best,
            "gflops": {name: 2 * SIZE**3 / s / 1e9 for name, s in seconds.items()},
        }

    start = time.perf_counter()
    product(b, b).block_until_ready()
    compile_seconds = time.perf_counter() - start
    run()
    versions = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return {
        "compile_seconds": compile_seconds,
        "versions": {"python": platform.python_version()} | versions,
    }, run


common.serve(setup)
