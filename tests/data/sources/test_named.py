"""The readers of data sets by name: IDX, CIFAR-10, plays by role, activities by person."""

import io
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from fedjax_opt.data import text
from fedjax_opt.data.sources import activity, catalogue, cifar, idx, inert_pickle, plays

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
"""


def test_speeches():
    """Continued after stage directions, which are left out; titles begin something new."""
    assert plays.speeches(PLAY) == [
        ("ANN", ["Good morrow.", "How now?  Alas."]),
        ("BOB", ["Well.", "Not so well.", "And worse."]),
        ("FIRST LORD", ["My lady!", "My lord!"]),
        ("ANN", ["Night.", "bob.", "He is no speaker."]),
    ]


def test_names_that_are_not_in_capitals():
    play = "ACT I.\n\nBer.\nWho's there?\n\nFran.\nNay, answer me.\n\nMar. and Ber.\nHolla!\n"
    assert [name for name, _ in plays.speeches(play)] == ["Ber", "Fran", "Mar. and Ber"]


def test_roles_are_clients_and_the_last_fifth_is_for_testing():
    lines = [f"line number {i} of ann." for i in range(10)]
    play = (
        "ACT I.\n\nANN.\n"
        + "\n".join(lines[:6])
        + "\n\nBOB.\nOnce,\nat length.\n\nANN.\n"
        + "\n".join(lines[6:])
    )
    train, test, names = plays.examples({"a": play, "b": play})
    assert names == ("a: ANN", "b: ANN")  # Bob speaks once
    for part, spoken in ((train, lines[:8]), (test, lines[8:])):
        for client in range(2):
            x, y = (part[key][part["client"] == client] for key in "xy")
            assert "".join(text.character_text(y)) == " ".join(spoken)[1:]
            assert "".join(text.character_text(x)).startswith(" ".join(spoken)[:-1])
        assert part["x"].shape[1] == 80 and part["client"].dtype == np.int32
    with pytest.raises(ValueError, match="two or more speeches"):
        plays.examples({"a": "ACT I.\n\nANN.\nOnce."})


def test_the_play_that_comes_with_the_package():
    data = catalogue.load("play")
    entry = catalogue.CATALOGUE["play"]
    assert len(data.client_names) == entry.clients
    assert len(data.train["x"]) + len(data.test["x"]) == entry.examples
    assert {"macbeth: BANQUO", "macbeth: LADY MACBETH"} <= set(data.client_names)
    witch = data.train["x"][data.train["client"] == data.client_names.index("macbeth: FIRST WITCH")]
    first = "When shall we three meet again? In thunder, lightning, or in rain? "
    assert text.character_text(witch[:1])[0].startswith(first)
    for part in (data.train, data.test):  # every role can train and be tested
        assert np.bincount(part["client"], minlength=entry.clients).min() >= 1
        assert part["x"].max() < len(text.CHARACTERS)


def test_digits_by_name():
    data = catalogue.load("digits")
    assert len(data.train["y"]) + len(data.test["y"]) == catalogue.CATALOGUE["digits"].examples
    assert data.client_names == ()


def test_idx():
    content = b"\0\0\x08\x02" + struct.pack(">II", 2, 3) + bytes(range(6))
    assert idx.parse(content, "a").tolist() == [[0, 1, 2], [3, 4, 5]]
    for bad, wrong in (
        (b"", "does not begin"),
        (b"\0\0\x0d\x01" + bytes(8), "does not begin"),
        (content[:9], "ends within its header"),
        (content[:-1], r"\[2, 3\] bytes after its header, got 5"),
        (b"\0\0\x08\x02" + struct.pack(">II", 2**32 - 1, 2**32 - 1), "after its header, got 0"),
    ):
        with pytest.raises(ValueError, match=f"the file .*{wrong}"):
            idx.parse(bad, "the file")


def test_cifar_there_and_back(monkeypatch):
    """Pictures whose rows are images become the binary form, and that becomes images again."""
    monkeypatch.setattr(cifar, "_RECORDS", 2)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    members = {"train_lables.json": str(labels[:10]).encode(), "test_lables.json": b"[5, 8]"}
    for i, name in enumerate(cifar._PARTS):
        stream = io.BytesIO()
        Image.fromarray(images[2 * i : 2 * i + 2].reshape(2, 1024, 3)).save(stream, "PNG")
        members[f"{name}.png"] = stream.getvalue()
    contents = cifar.to_binary(members)
    first = contents["data_batch_1.bin"]
    assert len(first) == 2 * 3073 and first[0] == 3
    assert first[1:1025] == images[0, :, :, 0].tobytes()  # a plane of red comes first
    train, test = cifar.read(contents)
    np.testing.assert_array_equal(np.concatenate([train["x"], test["x"]]), images)
    assert [*train["y"], *test["y"]] == labels and train["y"].dtype == np.int32


class Call:
    """What a pickle makes by a call."""

    def __init__(self, name, *args, state=None):
        self.name, self.args, self.state = name, args, state


def pickled(value):
    """A pickle of the first protocols, written by hand: pandas and old NumPy are not needed."""
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"I01\n" if value else b"I00\n"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        content = value.encode()
        return b"X" + struct.pack("<I", len(content)) + content
    if isinstance(value, dict):
        items = b"".join(pickled(key) + pickled(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(pickled, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(pickled, value)) + b"t"
    module, name = value.name.split(" ")
    made = f"c{module}\n{name}\n".encode() + pickled(value.args) + b"R"
    return made if value.state is None else made + pickled(value.state) + b"b"


def old_array(values):
    kind = "f8" if values.dtype == np.float64 else "i8"
    dtype = Call("numpy dtype", kind, 0, 1, state=(3, "<", None, None, None, -1, -1, 0))
    data = Call("_codecs encode", values.tobytes().decode("latin1"), "latin1")
    made = "numpy.core.multiarray _reconstruct"
    return Call(made, "ndarray", (0,), "b", state=(1, values.shape, dtype, False, data))


def names_of(*names):
    titles = Call("numpy.core.multiarray _reconstruct", state=(1, (2,), None, False, list(names)))
    return Call("pandas.core.indexes.base _new_Index", "Index", {"data": titles, "name": None})


def table(signals, labels, names=activity._SIGNALS):
    blocks = [old_array(signals.T.copy()), old_array(np.stack([np.arange(len(labels)), labels]))]
    manager = ([], blocks, [names_of(*names), names_of("sequence", "label")], {})
    managed = Call("pandas.core.internals.managers BlockManager", state=manager)
    return Call("copy_reg _reconstructor", state={"_data": managed, "_typ": "dataframe"})


def recording(rng, runs):
    labels = np.concatenate([np.full(size, label) for label, size in runs]).astype(np.int64)
    return rng.normal(size=(len(labels), 6)), labels


def test_activities():
    """Windows of one activity only, in their places; training shares no sample with testing."""
    rng = np.random.default_rng(0)
    recordings = [
        recording(rng, [(-1, 200), (1, 900), (7, 300), (2, 700)]),
        recording(rng, [(2, 640)]),
    ]
    people = {1: [table(*one) for one in recordings], 30: [table(*recordings[1])]}
    train, test, names = activity.read(pickled(people) + b".", "a.pkl")
    assert names == ("person 1", "person 30")
    assert set(train["y"]) == set(test["y"]) == {0, 1}  # neither unlabelled nor in transition
    expected = []
    for number, (signals, labels) in enumerate(recordings):
        for start in range(0, len(labels) - 127, 64):
            if set(labels[start : start + 128]) in ({1}, {2}):
                window = signals[start : start + 128].astype(np.float32)
                expected.append((labels[start] - 1, number, start, window))
    mine = {part: arrays["client"] == 0 for part, arrays in (("train", train), ("test", test))}
    for label in (0, 1):
        windows = [e for e in expected if e[0] == label]
        tested = windows[-round(0.2 * len(windows)) :]
        found = test["x"][mine["test"] & (test["y"] == label)]
        np.testing.assert_array_equal(found, [e[3] for e in tested])
        apart = [
            e for e in windows[: -len(tested)]
            if all(e[1] != t[1] or abs(e[2] - t[2]) >= 128 for t in tested)
        ]  # fmt: skip
        found = train["x"][mine["train"] & (train["y"] == label)]
        np.testing.assert_array_equal(found, [e[3] for e in apart])
        assert 0 < len(apart) < len(windows) - len(tested)


def test_activities_of_the_wrong_kind():
    rng = np.random.default_rng(0)
    signals, labels = recording(rng, [(1, 200)])
    good = pickled({1: [table(signals, labels)]}) + b"."
    infinite = signals.copy()
    infinite[3, 2] = np.inf
    for content, wrong in (
        (b"", "not a pickle of arrays"),
        (good[:-1000], "not a pickle of arrays"),
        (good[:-1], "not a pickle of arrays"),
        (pickled([]) + b".", "recordings of each person"),
        (pickled({1: []}) + b".", "a list of recordings"),
        (pickled({1: [3]}) + b".", "a table that cannot be read"),
        (pickled({1: [table(signals, labels, "abcdef")]}) + b".", "a table that cannot be read"),
        (pickled({1: [table(infinite, labels)]}) + b".", "not finite"),
        (b"I" + b"9" * 5000 + b"\n.", "not a pickle of arrays"),
        (b"(" * 100_000, "not a pickle of arrays"),
        (b"N" + b"r\xff\xff\xff\xff" + b"0.", "not a pickle of arrays"),
        (b"}}s.", "not a pickle of arrays"),
    ):
        with pytest.raises(ValueError, match=f"a.pkl .*{wrong}"):
            activity.read(content, "a.pkl")


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_is_never_run(tmp_path, protocol):
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    content = pickle.dumps({1: [Bomb()]}, protocol)
    with pytest.raises(ValueError, match=r"a\.pkl"):
        activity.read(content, "a.pkl")
    assert not ran.exists()


def test_arrays_must_be_what_they_claim():
    whole = old_array(np.arange(6.0).reshape(2, 3))
    record = inert_pickle.read(pickled(whole) + b".", "a")
    assert inert_pickle.array(record, "a").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    for change in (
        {1: (2, 4)},
        {1: (-2, -3)},
        {1: (-1, 3)},
        {1: (2**40, 2**40)},
        {1: "ab"},
        {3: True},
        {4: "text"},
    ):
        state = list(whole.state)
        for place, value in change.items():
            state[place] = value
        wrong = Call(whole.name, *whole.args, state=tuple(state))
        with pytest.raises((ValueError, struct.error)):
            inert_pickle.array(inert_pickle.read(pickled(wrong) + b".", "a"), "a")
