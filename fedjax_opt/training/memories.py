"""What extensions remember, as text for a checkpoint, and back with the same bits."""

import base64
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ARRAY = "__array__"


def as_text(memory: Any) -> str:
    """JSON, in which arrays are their bytes; a ValueError for what is neither."""
    return json.dumps(memory, default=_as_json)


def from_text(text: str) -> Any:
    """What `as_text` was given; tuples have become lists."""
    return json.loads(text, object_hook=_from_json)


def _as_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, jax.Array)):
        array = np.ascontiguousarray(value)
        content = base64.b64encode(array.tobytes()).decode()
        return {_ARRAY: [array.dtype.name, list(np.shape(value)), content]}
    raise ValueError(
        "What an extension remembers must consist of mappings, lists, numbers, texts, None and arrays,"
        f" got {value!r}."
    )


def _from_json(value: dict[str, Any]) -> Any:
    if value.keys() != {_ARRAY}:
        return value
    dtype, shape, content = value[_ARRAY]
    return np.frombuffer(base64.b64decode(content), jnp.dtype(dtype)).reshape(shape).copy()
