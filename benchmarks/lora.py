"""LoRA on a transformer of 10 million parameters, 20 clients: what is sent, summed, held and merged.

    python benchmarks/lora.py                        # a round on 8 virtual devices, a minute on 2 cores
    python benchmarks/lora.py --layers 1 --width 64

Read from the compiled program of one round over the devices, and asserted:
  uploads      the adapters' bytes, by `costs.of` and by the measured `upload_bytes`
  collectives  sum the adapters and a few numbers; and hand a client's adapters over to the next device,
               since 20 clients do not divide by 8
  memory       the arguments of a device hold the base once, and what is temporary no further one
  merged       the logits of merged weights are those of base and adapters
"""

import argparse
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

DEVICES, CLIENTS, LENGTH, SYMBOLS, RANK = 8, 20, 32, 96, 4
WHERE = "params/**/{query,value}/kernel"
_BYTES = {"f32": 4, "f64": 8, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "pred": 1, "s8": 1, "u8": 1}
_REDUCE = r"all-reduce|reduce-scatter"
_MOVE = r"collective-permute|all-gather|all-to-all"


class Block(nn.Module):
    """Causal attention, and a network of two layers."""

    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=mask)
        hidden = nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(hidden)


class Transformer(nn.Module):
    """Predicts the next symbol."""

    width: int
    layers: int

    @nn.compact
    def __call__(self, x):
        places = nn.Embed(LENGTH, self.width, name="places")(jnp.arange(x.shape[1]))
        x = nn.Embed(SYMBOLS, self.width)(x) + places[None]
        for _ in range(self.layers):
            x = Block()(x)
        return nn.Dense(SYMBOLS, name="head")(nn.LayerNorm()(x))


def size_of(tree):
    """The bytes of a tree's arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def carried(text, kinds):
    """What the collectives of some kinds carry in a compiled program, in bytes, as its HLO says."""
    total = 0
    for shapes in re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", text):
        for kind, axes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            total += _BYTES[kind] * int(np.prod([int(n) for n in axes.split(",") if n]))
    return total


def measure(width, layers):
    """{what: number} of one round that is compiled for all devices."""
    symbols = np.random.default_rng(0).integers(SYMBOLS, size=(2 * CLIENTS, LENGTH + 1))
    data = {"x": symbols[:, :-1].astype(np.int32), "y": symbols[:, 1:].astype(np.int32)}
    some = jax.tree.map(lambda x: x[:2], data)
    module = Transformer(width, layers)
    model = fo.models.from_linen(module, loss=fo.models.sequence_cross_entropy)
    base = jax.jit(model.init)(jax.random.key(0), some)
    adapted = fo.models.lora(model, base, RANK, WHERE)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.5))
    clients = fo.ClientData.from_arrays(data, np.arange(2 * CLIENTS) % CLIENTS)
    federation = fo.Federation(adapted, clients, cohort=CLIENTS, local_steps=2, batch_size=2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("clients",))
    strategy = fo.Strategy("sharded", mesh=mesh)

    @jax.jit
    def one_round(federation, state):
        return fo.run_rounds(
            algorithm, federation, state, 1, strategy=strategy, diagnostics=["upload_bytes"]
        )

    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    state = fo.place(fo.init_state(algorithm, federation), strategy)
    federation = jax.device_put(federation, everywhere)
    compiled = one_round.lower(federation, state).compile()
    after, memory = compiled(federation, state), compiled.memory_analysis()
    trained = jax.device_get(after.state.variables)

    def own(variables, batch, key):
        logits = module.apply({"params": variables.params}, batch["x"])
        return logits.mean(), fo.Aux(features=logits)

    plain = fo.Model(lambda key, batch: base, own)
    beside = fo.models.lora(plain, base, RANK, WHERE)
    whole = fo.models.merged(adapted, trained)
    logits, expected = (
        jax.jit(m.loss)(v, some, None, *rest)[1].features
        for m, v, *rest in ((beside, trained, beside.frozen), (plain, whole))
    )
    before = jax.jit(plain.loss)(base, some, None)[1].features
    largest = jnp.abs(expected).max()
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(base)),
        "bytes of the base": size_of(base),
        "bytes of the adapters": size_of(state.variables),
        "upload by costs.of": fo.costs.of(algorithm, state.variables).bytes_up,
        "upload measured": float(after.history.diagnostics["upload_bytes"][0]),
        "summed over devices": carried(compiled.as_text(), _REDUCE),
        "handed to other devices": carried(compiled.as_text(), _MOVE),
        "arguments of a device": memory.argument_size_in_bytes,
        "temporary on a device": memory.temp_size_in_bytes,
        "largest move of a logit": float(jnp.abs(expected - before).max()),
        "error of merged logits": float(jnp.abs(logits - expected).max() / largest),
    }


def check(found):
    """Refuses what is not as the head of this file says."""
    base, adapters = found["bytes of the base"], found["bytes of the adapters"]
    assert found["upload by costs.of"] == found["upload measured"] == adapters
    assert adapters <= found["summed over devices"] <= adapters + 1024
    assert found["handed to other devices"] <= adapters + 1024
    assert base <= found["arguments of a device"] <= base + adapters + 20_000
    # Beside a small base, activations are larger.
    assert base < 10_000_000 or found["temporary on a device"] < base
    assert found["error of merged logits"] < 1e-5 < found["largest move of a logit"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    found = measure(options.width, options.layers)
    for name, value in found.items():
        print(f"{name:26} {value:14,.9g}")
    check(found)


if __name__ == "__main__":
    main()
