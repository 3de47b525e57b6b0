"""Reduces the default configuration of a class: fewer and narrower layers that are still consistent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.models.factory.rules import Rules, rules

if TYPE_CHECKING:
    from hwmatrix.models.factory.rules import Override

SMALL: Final = "small"
GENTLE: Final = "gentle"
_LEAST_LAYERS: Final = 2
_STAGE_WIDTH: Final = 64
_STAGE_STEP: Final = 16
_PATCHES: Final = 4
_PLAIN_IMAGE: Final = 64


def tiny_config(config_class: Any, override: Override, level: str) -> Any:
    """An instance of a configuration class of transformers, made small by the rules of a level (``small`` or ``gentle``).

    Raises:
        Exception: whatever the class raises on values that it rejects.
    """
    values = config_class(**override.base).to_dict()
    for name in override.drop:
        values.pop(name, None)
    small = _Shrinking(level).all(values)
    small.pop("model_type", None)
    return config_class(**_merged(small, override.config))


class _Shrinking:
    """Makes a configuration and its nested ones small, by the rules of one level."""

    def __init__(self, level: str) -> None:
        self._known = rules()
        self._small = level == SMALL
        self._limits = self._known.limits[level]
        self._tokens = _Tokens()

    def all(self, values: dict[str, Any]) -> dict[str, Any]:
        """Shrink one configuration and its nested ones."""
        kept = _kept_layers(values, self._known)
        small = {name: self._value(name, value, values, kept) for name, value in values.items() if name not in self._known.derived}
        _fit_stages(small, values)
        _fit_resolutions(small, values)
        _fit_layer_numbers(small, self._known)
        if self._small:
            _fit_image(small)
            _fit_window(small)
            _fit_heads(small)
        self._tokens.fit(small)
        _fit_rotary(small)
        return small

    def _value(self, name: str, value: Any, values: dict[str, Any], kept: dict[int, list[int]]) -> Any:
        if isinstance(value, dict):
            return self.all(value) if name.endswith("config") or "model_type" in value else value
        if isinstance(value, (list, tuple)):
            return self._list(name, list(value), kept)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._number(name, value, values, kept)
        if isinstance(value, float) and self._small and value:
            return self._known.deviation.get(name, value)
        return value

    def _number(self, name: str, value: int, values: dict[str, Any], kept: dict[int, list[int]]) -> int:
        known = self._known
        if name in known.layers:
            return min(value, len(kept.get(value, range(value))))
        if name in known.shared_heads:
            return _shared_heads(name, value, values, known) if self._small else value
        staged = self._small and any(isinstance(values.get(depths), (list, tuple)) for depths in known.depths)
        limit = known.limits["staged"].get(name) if staged else None
        return min(value, limit or self._limits.get(name, value))

    def _list(self, name: str, value: list[Any], kept: dict[int, list[int]]) -> list[Any]:
        known = self._known
        numbers = bool(value) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
        if numbers and name in known.depths:
            return [min(item, 1) for item in value]
        if numbers and self._small and name in known.widths:
            return [max(_STAGE_STEP, round(item * _STAGE_WIDTH / max(value) / _STAGE_STEP) * _STAGE_STEP) for item in value]
        if numbers and self._small and name in known.stage_heads:
            return [item // math.gcd(*value) for item in value]
        if len(value) in kept and len(value) > _LEAST_LAYERS:
            return [value[index] for index in kept[len(value)]]
        return [self.all(item) if isinstance(item, dict) else item for item in value]


def _kept_layers(values: dict[str, Any], known: Rules) -> dict[int, list[int]]:
    """For each number of layers, which of them stay: at least two, and one of each kind."""
    stages = {len(values[name]) for name in known.depths if isinstance(values.get(name), (list, tuple))}
    kept: dict[int, list[int]] = {}
    for count in {values[name] for name in known.layers if isinstance(values.get(name), int)} - stages:  # num_layers may count stages
        kinds = [values[name] for name in known.kinds if isinstance(values.get(name), (list, tuple)) and len(values[name]) == count]
        seen: dict[tuple[str, ...], int] = {}
        for index in range(count):
            seen.setdefault(tuple(str(kind[index]) for kind in kinds), index)
        chosen = list(seen.values())
        chosen += [index for index in range(count) if index not in chosen][: max(0, _LEAST_LAYERS - len(chosen))]
        kept[count] = sorted(chosen)
    return kept


def _shared_heads(name: str, value: int, values: dict[str, Any], known: Rules) -> int:
    """The number of key and value heads: all heads if it was all of them, one if it was one, else half of them."""
    paired = ("linear_num_value_heads",) if name == "linear_num_key_heads" else known.heads_of
    heads = next((values[other] for other in paired if isinstance(values.get(other), int)), None)
    few = known.limits[SMALL]["num_attention_heads"]
    if heads is None or value >= heads:
        return min(value, few)
    return min(value, few // 2) if value > 1 else 1


def _fit_heads(small: dict[str, Any]) -> None:
    """Set the width of a head and the number of key and value heads if the class leaves them None, though its layers need them."""
    width, heads = small.get("hidden_size"), small.get("num_attention_heads")
    if not isinstance(width, int) or not isinstance(heads, int):
        return
    for name, value in (("head_dim", width // heads), ("num_key_value_heads", heads)):
        if name in small and small[name] is None:
            small[name] = value


def _fit_stages(small: dict[str, Any], values: dict[str, Any]) -> None:
    """Let a backbone return its last remaining layers. It keeps at least as many layers as it returns."""
    named = values.get("out_features")
    indices = values.get("out_indices")
    wanted = len(named) if isinstance(named, (list, tuple)) else len(indices) if isinstance(indices, (list, tuple)) else 0
    count = next((name for name in ("num_hidden_layers", "num_layers", "n_layers", "depth") if isinstance(small.get(name), int)), None)
    if not wanted or count is None or any(isinstance(values.get(name), (list, tuple)) for name in rules().depths):
        return
    small[count] = max(small[count], wanted)
    small["out_indices"] = list(range(small[count] - wanted + 1, small[count] + 1))
    small.pop("out_features", None)


def _fit_layer_numbers(small: dict[str, Any], known: Rules) -> None:
    """Adjust lists of layer numbers: numbers beyond the last remaining layer become that layer."""
    count = next((small[name] for name in known.layers if isinstance(small.get(name), int)), None)
    for name in known.layer_numbers:
        numbers = small.get(name)
        if count is not None and isinstance(numbers, (list, tuple)) and all(isinstance(item, int) for item in numbers):
            small[name] = sorted({min(item, count - 1) for item in numbers})


def _fit_image(values: dict[str, Any]) -> None:
    """Set the image size to a few patches per side."""
    size, patch = values.get("image_size"), values.get("patch_size")
    if isinstance(patch, (list, tuple)) and patch and all(isinstance(item, int) for item in patch):
        patch = patch[-1]
    side = patch * _PATCHES if isinstance(patch, int) and patch > 1 else _PLAIN_IMAGE
    if isinstance(patch, int) and side < _PLAIN_IMAGE // 2:
        side = patch * _PATCHES * 2
    if isinstance(size, int):
        values["image_size"] = min(size, side)
    elif isinstance(size, (list, tuple)) and all(isinstance(item, int) for item in size):
        values["image_size"] = [min(item, side) for item in size]


def _fit_resolutions(small: dict[str, Any], values: dict[str, Any]) -> None:
    """Adjust the resolutions for tiles: as many tiles as before, of the vision tower's new image size."""
    known = values.get("image_grid_pinpoints")
    before = (values.get("vision_config") or {}).get("image_size")
    after = (small.get("vision_config") or {}).get("image_size")
    if known and isinstance(before, int) and isinstance(after, int):
        small["image_grid_pinpoints"] = [[side * after // before for side in pair] for pair in known]


def _fit_window(values: dict[str, Any]) -> None:
    """Adjust windows in pixels, for models that merge several patches into one token: at least the pixels of one token."""
    patch, merge, window = (values.get(name) for name in ("patch_size", "spatial_merge_size", "window_size"))
    if isinstance(patch, int) and isinstance(merge, int) and isinstance(window, int):
        values["window_size"] = max(window, patch * merge)


class _Tokens:
    """Moves special tokens into the vocabulary: each gets its own id, from the end, and the same id everywhere."""

    def __init__(self) -> None:
        self._moved: dict[int, int] = {}

    def fit(self, values: dict[str, Any]) -> None:
        """Move the special tokens of one configuration. Its vocabulary size may be in a nested configuration."""
        nested = (value for value in values.values() if isinstance(value, dict))
        sizes = (item.get("vocab_size") for item in (values, *nested))
        vocabulary = next((size for size in sizes if isinstance(size, int)), None)
        if vocabulary is None:
            return
        for name, value in values.items():
            if name.endswith(("_token_id", "_token_index", "_token_ids", "suppress_tokens")):
                values[name] = self._below(value, vocabulary)

    def _below(self, value: Any, vocabulary: int) -> Any:
        if isinstance(value, list):
            return [self._below(item, vocabulary) for item in value]
        if not isinstance(value, int) or value < vocabulary:
            return value
        return self._moved.setdefault(value, vocabulary - 1 - len(self._moved))


def _fit_rotary(values: dict[str, Any]) -> None:
    """Adjust the sections of a rotary embedding with several axes: together they cover half of a head."""
    for holder in (values.get("rope_parameters"), values.get("rope_scaling")):
        if not isinstance(holder, dict):
            continue
        for rope in (holder, *(item for item in holder.values() if isinstance(item, dict))):
            sections = rope.get("mrope_section")
            if isinstance(sections, (list, tuple)) and sections:
                half = _head(values) // 2
                share = float(rope.get("partial_rotary_factor") or 1.0)
                half = max(len(sections), int(half * share))
                each = half // len(sections)
                rope["mrope_section"] = [half - each * (len(sections) - 1), *[each] * (len(sections) - 1)]


def _head(values: dict[str, Any]) -> int:
    head = values.get("head_dim")
    if isinstance(head, int):
        return head
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) else 16


def _merged(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` merged into ``values``: mappings are merged recursively, everything else is replaced."""
    merged = dict(values)
    for name, value in over.items():
        within = merged.get(name)
        merged[name] = _merged(within, value) if isinstance(within, dict) and isinstance(value, dict) else value
    return merged
