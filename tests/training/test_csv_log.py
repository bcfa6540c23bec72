"""A run's metrics as a CSV file: each line once, wherever the run is resumed."""

import csv

import numpy as np
import pytest

import fedjax_opt as fo

MODEL, DATA, _ = fo.data.quadratics(num_clients=4, dimension=3)
FEDERATION = fo.Federation(
    MODEL, DATA, cohort=2, local_steps=2, batch_size=1, test=DATA.examples
)  # fmt: skip
ALGORITHM = fo.fedavg(fo.optimizers.sgd(0.1))


def simulate(rounds, path, **options):
    return fo.simulate(
        ALGORITHM, FEDERATION, rounds, evaluate_every=5, extensions=[fo.csv_log(path)],
        progress=False, **options,
    )  # fmt: skip


def rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_chunk_is_a_line(tmp_path):
    path = tmp_path / "logs" / "run.csv"
    for _ in range(2):  # a new run replaces the file
        result = simulate(15, path)
    found = rows(path)
    assert [int(row["round"]) for row in found] == [5, 10, 15]
    assert [*found[0]][:3] == ["round", "seconds", "train_loss"]
    np.testing.assert_allclose(
        [float(row["train_loss"]) for row in found], result.history["loss"][4::5], rtol=1e-6
    )
    np.testing.assert_allclose(
        [float(row["loss"]) for row in found], result.evaluations["loss"], rtol=1e-6
    )


def test_a_resumed_run_has_each_line_once(tmp_path):
    path = tmp_path / "run.csv"
    for rounds in (10, 20):
        with fo.Checkpoints(tmp_path / "kept") as checkpoints:
            simulate(rounds, path, checkpoints=checkpoints)
        with open(path, "a", encoding="utf-8") as file:  # of a chunk that a kill took back
            file.write("25,1.0,0.5\n30,1.")
    with fo.Checkpoints(tmp_path / "kept") as checkpoints:
        simulate(25, path, checkpoints=checkpoints)
    assert [int(row["round"]) for row in rows(path)] == [5, 10, 15, 20, 25]
    path.write_text("another,file\n")
    with (
        pytest.raises(ValueError, match="must hold the columns round,seconds,train_loss"),
        fo.Checkpoints(tmp_path / "kept") as checkpoints,
    ):
        simulate(30, path, checkpoints=checkpoints)
    assert path.read_text() == "another,file\n"
