"""A stream of JSON that is refused when it nests too deep.

Parsers that report where they are keep a path whose length grows with the depth, so that a small file of
brackets could fill the memory. Files of data nest a few levels.
"""

import re
from typing import BinaryIO

import numpy as np

_DEEPEST = 64
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEP = np.zeros(256, np.int8)
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1


class Shallow:
    """Reads from a file, and counts the brackets that are not within strings."""

    def __init__(self, stream: BinaryIO, origin: str) -> None:
        self._stream, self._origin = stream, origin
        self._depth = 0
        self._in_string = False
        self._pending = b""  # a backslash whose other half is in the next piece

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the file."""
        content = self._stream.read(size)
        if content:
            self._follow(content)
        return content

    def _follow(self, content: bytes) -> None:
        content = self._pending + content
        self._pending = b""
        if b"\\" in content:
            content = _ESCAPED.sub(b"", content)
            if content.endswith(b"\\"):
                content, self._pending = content[:-1], b"\\"
        data = np.frombuffer(content, np.uint8)
        steps = _STEP[data]
        quotes = data == ord('"')
        if self._in_string or quotes.any():
            inside = (np.cumsum(quotes) + self._in_string) % 2 == 1
            steps[inside] = 0
            self._in_string = bool(inside[-1]) if inside.size else self._in_string
        depths = self._depth + np.cumsum(steps, dtype=np.int64)
        if depths.max(initial=0) > _DEEPEST:
            raise ValueError(f"{self._origin} must nest at most {_DEEPEST} deep, and nests deeper.")
        self._depth = int(depths[-1]) if depths.size else self._depth
