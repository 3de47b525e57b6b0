"""A model's structure and size: from its configuration and parameters if known, else from tables and its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.models.words import COUNT
from hwmatrix.records import Family, SizeTier, Structure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hwmatrix.models.taxonomy import Taxonomy

_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_layer")
_STATES: Final = ("state_size", "ssm_state_size", "mamba_d_state")
_DIFFUSERS: Final = "_diffusers_version"
_UNITS: Final = {"b": 1e9, "m": 1e6}
_BOUNDS: Final = ((10e6, SizeTier.TINY), (100e6, SizeTier.SMALL), (1e9, SizeTier.MEDIUM), (10e9, SizeTier.LARGE))
"""The upper bounds of the tiers in parameters (exclusive), as in records.SizeTier."""


def structure_of(config: Mapping[str, Any], architecture: str | None, subfamily: str | None, known: Taxonomy) -> Structure | None:
    """A model's structure, from its configuration, else its architecture, else the usual one of its subfamily.

    Specific structures come first: experts, states and diffusion before speech, speech before encoders and decoders.
    """
    parts = list(_language_configs(config))
    usual = known.subfamilies[subfamily].structure if subfamily else None
    listed = known.structures.get(architecture or "")
    experts = [part[key] for part in parts for key in _EXPERTS if isinstance(part.get(key), int)]
    holds = {
        Structure.MIXTURE_OF_EXPERTS: any(number > 1 for number in experts) if experts else listed is Structure.MIXTURE_OF_EXPERTS,
        Structure.STATE_SPACE: listed is Structure.STATE_SPACE or any(part.get(key) for part in parts for key in _STATES),
        Structure.DIFFUSION: _DIFFUSERS in config or Structure.DIFFUSION in {listed, usual},
        Structure.SPEECH: usual is Structure.SPEECH,
        Structure.ENCODER_DECODER: listed is Structure.ENCODER_DECODER or config.get("is_encoder_decoder") is True,
        Structure.DECODER_ONLY: config.get("is_decoder") is True,
    }
    return next((structure for structure, true in holds.items() if true), usual)


def is_of_diffusers(config: Mapping[str, Any]) -> bool:
    """Whether a configuration belongs to a pipeline of the diffusers library, or to a part of one."""
    return _DIFFUSERS in config


def tier_of(parameters: int) -> SizeTier:
    """The size tier of a number of parameters."""
    return next((tier for bound, tier in _BOUNDS if parameters < bound), SizeTier.XLARGE)


def tier_in_name(name: str, family: Family | None, known: Taxonomy) -> tuple[SizeTier, str] | None:
    """The size tier in a name, and the word that says it: a number of parameters, else a word such as ``base``.

    Of several numbers the largest counts: smaller ones are the active parameters of a mixture of experts.
    """
    numbers = {match.group(): _number(match.group()) for match in COUNT.finditer(name)}
    if numbers:
        word = max(numbers, key=lambda each: numbers[each])
        return tier_of(int(numbers[word])), word
    own = known.sizes_of.get(family, {}) if family else {}
    for word in re.findall(r"[a-z]+", name.rpartition("/")[2].lower()):
        tier = own.get(word) or known.sizes.get(word)
        if tier:
            return tier, word
    return None


def _number(count: str) -> float:
    """The number of parameters that ``7b``, ``1.3B``, ``350M`` or ``8x7B`` stands for."""
    times, _, each = count.lower().rpartition("x")
    return float(times or 1) * float(each[:-1].lstrip("ae")) * _UNITS[each[-1]]


def _language_configs(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A configuration and its nested configurations of language models."""
    yield config
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            yield from _language_configs(inner)
