"""How far can uploads be compressed, and what does it cost? Each front is one program.

Twenty clients hold two classes of digits each; half of them train in each round. Of every upload only
the (1 - s) n largest entries travel, as eight-bit codes. The sparsity s is a value like any other, and
one `vmap` trains all of them side by side:

    FedAvg           the change of the model
    FedAvg, memory   what was left out is added to the client's next upload (error feedback)
    CE-FedAvg        local Adam; both of its moments travel beside the change, at the same entries

The bytes are those of real messages: at the end one upload is written out and read back.

Read the accuracies as what is possible, not as a contest. There is one seed, and the settings were
chosen by these same test digits: for FedAvg the better of two learning rates, for CE-FedAvg the best of
two rates with and two without Adam's bias correction, which did worse with it. Clients train for four
epochs in favour of CE-FedAvg: with one epoch (and the correction) it was behind FedAvg from s = 0.8 on.

Run:  python examples/compress_uploads.py                                 (a minute or two)
      python examples/compress_uploads.py --output compress_uploads.svg   (needs matplotlib)
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

SPARSITIES = [0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99]
CLIENTS, ROUNDS, LAST = 20, 60, 10
LOWEST = 0.8  # of the plot
SGD = fo.optimizers.sgd(0.3)
ADAM = fo.optimizers.adam(0.003, b1=0.9, b2=0.999, eps=1e-8, initial_v=0.0)


def fedavg(sparsity):
    return fo.compressed_fedavg(SGD, sparsity)


def fedavg_with_memory(sparsity):
    codec = fo.compression.ce_fedavg(sparsity)
    return fo.compressed(fo.fedavg(SGD), upload=codec, error_feedback=True)


def ce_fedavg(sparsity):
    return fo.ce_fedavg(ADAM, sparsity)


ALGORITHMS = {"FedAvg": fedavg, "FedAvg, memory": fedavg_with_memory, "CE-FedAvg": ce_fedavg}


def front(make, digits):
    """Test accuracies (the mean of the last rounds) and bytes per upload, one for each sparsity."""

    def one_run(sparsity):
        algorithm = make(sparsity)

        def one_round(state, _):
            run = fo.run_rounds(
                algorithm, digits, state, 1, diagnostics=["upload_bytes"],
                strategy="scan",  # the vmap over sparsities is wide enough, and this compiles sooner
            )  # fmt: skip
            accuracy = fo.evaluate(digits.model, run.state.variables, digits.test)["accuracy"]
            return run.state, (accuracy, run.history.diagnostics["upload_bytes"][0])

        start = fo.init_state(algorithm, digits)
        _, (accuracies, sent) = jax.lax.scan(one_round, start, length=ROUNDS)
        return accuracies[-LAST:].mean(), sent.mean()

    return [np.asarray(found) for found in jax.jit(jax.vmap(one_run))(jnp.array(SPARSITIES))]


def show_one_upload(digits, sparsity=0.9):
    """With one client in the round, the change of the server's state is what that client has sent."""
    algorithm, codec = fedavg(sparsity), fo.compression.ce_fedavg(sparsity)
    before = fo.init_state(algorithm, digits)
    run = fo.run_rounds(
        algorithm, digits.replace(cohort=1), before, 1, diagnostics=["upload_bytes"]
    )
    upload = jax.tree.map(jnp.subtract, run.state.server, before.server)
    message = fo.compression.encode(codec, upload)
    read = fo.compression.decode(codec, message, upload)
    pairs = zip(jax.tree.leaves(upload), jax.tree.leaves(read), strict=True)
    same = all(bool(jnp.all((a != 0) == (b != 0))) for a, b in pairs)
    counted = int(run.history.diagnostics["upload_bytes"][0])
    print(f"\nOne upload of FedAvg at s = {sparsity}: {len(message)} bytes, {counted} counted;")
    print(f"it begins with {message[:16].hex(' ')}; the same entries are read from it: {same}.")


def plot(fronts, path):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "compress_uploads"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained", facecolor="white")
    looks = zip(("#d55e00", "#e69f00", "#0072b2"), ("o--", "s:", "D-"), strict=True)
    for (name, (accuracy, sent)), (colour, style) in zip(fronts.items(), looks, strict=True):
        axes.plot(sent / 1e3, accuracy, style, color=colour, markersize=5, label=name)
        right = name == "CE-FedAvg"
        place = {"xytext": (7, -7) if right else (0, -14), "ha": "left" if right else "center"}
        for s, x, y in zip(SPARSITIES, sent / 1e3, accuracy, strict=True):
            if y < LOWEST:
                text, y, place = f"{s:g}: {y:.0%}", LOWEST, {"xytext": (-4, 5), "ha": "right"}
            elif name == "FedAvg, memory":
                continue  # the bytes and sparsities are those without memory
            else:
                text = f"{s:g}"
            look = place | {"textcoords": "offset points", "color": colour, "fontsize": 8}
            axes.annotate(text, (x, y), **look)
    axes.set(xscale="log", xlabel="kB per client and round", ylabel="test accuracy")
    axes.set_ylim(LOWEST, 0.985)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="sparsity at the points", loc="lower right")
    undated = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=undated)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="where a plot goes; none without")
    output = parser.parse_args().output
    train, test = fo.data.load_digits()
    data = fo.ClientData.from_arrays(train, fo.data.label_shards(train["y"], CLIENTS, 2, seed=0))
    model = fo.models.mlp([64], num_classes=10)
    digits = fo.Federation(
        model, data, cohort=10, local_steps=fo.epochs(4), batch_size=16, test=test
    )
    whole = fo.costs.of(fo.fedavg(SGD), model.init(jax.random.key(0), data[0])).bytes_up
    print(f"{data.summary()}; the model has {whole / 1e3:.1f} kB\n")
    print("algorithm         s  accuracy  kB per client and round  times smaller than the model")
    fronts = {}
    for name, make in ALGORITHMS.items():
        fronts[name] = accuracy, sent = front(make, digits)
        for s, a, b in zip(SPARSITIES, accuracy, sent, strict=True):
            print(f"{name:14} {s:4g}  {a:8.1%}  {b / 1e3:23.2f}  {whole / b:28.1f}")
    show_one_upload(digits)
    if output:
        plot(fronts, output)
        print(f"Plot: {output}")


if __name__ == "__main__":
    main()
