"""The inputs from which a quantizer takes the ranges of a model's values: the bundle's for that, or random ones."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hwmatrix.models.bundle import Bundle

    Arrays = Mapping[str, np.ndarray[Any, Any]]

CALIBRATION_SAMPLES: Final = 8
"""The number of inputs used to calibrate value ranges: the bundle's for that, or its own and random ones of the same kind."""
_SEED: Final = 0


def calibration_inputs(bundle: Bundle, inputs: Arrays) -> list[Arrays]:
    """The inputs to calibrate with: those of the bundle for that, or ``inputs`` and random ones like them.

    Raises:
        UnsupportedError: all are equal, so that they show no ranges (``calibration_constant``).
    """
    samples = bundle.calibration() or random_samples(inputs, TokenIds.of(bundle))
    found = list(itertools.islice(samples, CALIBRATION_SAMPLES))
    require_ranges(found)
    return found


def require_ranges(samples: list[Arrays]) -> None:
    """Check that inputs to calibrate with are not all the same single number.

    Raises:
        UnsupportedError: they are (``calibration_constant``).
    """
    if all(array.size == 0 or array.min() == array.max() for sample in samples for array in sample.values()):
        message = (
            f"every one of the {len(samples)} inputs to calibrate with holds a single number, which shows no range of values: "
            "give the model inputs of its task, or use int8 or int8_dynamic, which need none"
        )
        raise UnsupportedError(message, needs=("calibration inputs",), error_type="calibration_constant")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The token ids of a model are below ``count``. The ``special`` ones have a meaning to the model itself."""

    count: int
    special: frozenset[int]

    @classmethod
    def of(cls, bundle: Bundle) -> TokenIds:
        """Read a bundle's model configuration, including its text model's part. The count is 0 if it has no vocabulary."""
        config = read_json((bundle.model_dir / "config.json").read_bytes())
        parts = [config, *(part for part in (config.get("text_config"), config.get("decoder")) if isinstance(part, dict))]
        counts = [part["vocab_size"] for part in parts if isinstance(part.get("vocab_size"), int)]
        named = [value for part in parts for name, value in part.items() if name.endswith(_SPECIAL)]
        special = {token for value in named for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
        return cls(count=min(counts, default=0), special=frozenset(special))


_SPECIAL: Final = ("_token_id", "_token_ids", "_token_index")


def random_samples(inputs: Arrays, ids: TokenIds) -> Iterator[Arrays]:
    """Yield the bundle's inputs, then endless random ones of the same shapes and types: for models without a task.

    Floating-point values are normal, with the bundle's mean and deviation. Token ids are random, but special ones stay in place (an image's
    tokens, the first, the last), as do integers that are all equal (attention masks).
    """
    random = np.random.default_rng(_SEED)
    yield inputs
    while True:
        yield {name: _sample_like(array, ids, random) for name, array in inputs.items()}


def _sample_like(array: np.ndarray[Any, Any], ids: TokenIds, random: np.random.Generator) -> np.ndarray[Any, Any]:
    if np.issubdtype(array.dtype, np.floating):
        noise: np.ndarray[Any, Any] = random.normal(array.mean(), array.std(), array.shape)
        return noise.astype(array.dtype)
    if array.min() == array.max() or not ids.count:
        return array
    ordinary = np.array([token for token in range(ids.count) if token not in ids.special], dtype=array.dtype)
    drawn: np.ndarray[Any, Any] = random.choice(ordinary, array.shape)
    stays = np.isin(array, list(ids.special))
    drawn[stays] = array[stays]
    return drawn
