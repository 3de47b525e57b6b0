"""Runs samples through the processor that a checkpoint ships: its tokenizer, image processor or feature extractor.

A folder may come from a stranger, so nothing in it is executed: a processor that needs code of its own is not used. A checkpoint without a
usable processor gets random inputs, and the reason is recorded.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.basics.json_text import read_json
from hwmatrix.basics.log_level import logged_from
from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.models.inputs import image_token
from hwmatrix.models.samples import media

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from hwmatrix.records import ModelPlan

_Tensors: TypeAlias = "dict[str, torch.Tensor]"
_FILE: Final = Path(__file__).with_name("texts.yaml")
_CALIBRATION_VIEW: Final = 100
"""Views from this one on are for calibration: no evaluated sample has one."""
_ROUNDS: Final = 8
"""How often a passage repeats its sentences: it then has more than 1,000 tokens."""
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "*.model", "*.tiktoken", "tekken.json")
"""Files that hold a vocabulary. Without one of them, transformers makes an empty tokenizer of the architecture's class."""
_PROCESSOR_CONFIGS: Final = ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
_CLASS_KEYS: Final = ("tokenizer_class", "image_processor_type", "feature_extractor_type", "processor_class")
_FEWEST_TOKENS: Final = 4
_MOST_UNKNOWN: Final = 0.5
"""The share of unknown tokens above which a tokenizer is of no use for these texts."""
CALIBRATION: Final = 8
"""Samples for calibration."""


class NoSamplesError(Exception):
    """A checkpoint's processor cannot be used: the message says why. It gets random inputs, which is no failure of a cell."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The raw data of one example: a class of pictures or sounds with one of its views, and the texts that go with it.

    ``sentence`` is short; ``passage`` goes on for longer than any sequence length.
    """

    kind: int
    view: int
    sentence: str
    passage: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Texts:
    pairs: tuple[tuple[str, str], ...]
    calibration: tuple[str, ...]


@functools.cache
def _texts() -> _Texts:
    read = parsed(_FILE.read_text(encoding="utf-8"))
    return _Texts(pairs=tuple((first, second) for first, second in read["pairs"]), calibration=tuple(read["calibration"]))


def evaluation_samples() -> Iterator[Sample]:
    """The samples that a checkpoint is evaluated on, endlessly. Samples 2n and 2n + 1 are a pair: of one meaning, of one class."""
    pairs = _texts().pairs
    for number in itertools.count():
        pair = number // 2
        view = 2 * (pair // media.CLASSES) + number % 2
        at = pair % len(pairs)
        following = [first for first, _ in pairs[at:] + pairs[:at]]
        yield Sample(kind=pair % media.CLASSES, view=view, sentence=pairs[at][number % 2], passage=_passage(following))


def calibration_samples() -> Iterator[Sample]:
    """Other samples, endlessly: quantized targets take their value ranges from them."""
    texts = _texts().calibration
    for number in itertools.count():
        at = number % len(texts)
        view = _CALIBRATION_VIEW + number // media.CLASSES
        yield Sample(kind=number % media.CLASSES, view=view, sentence=texts[at], passage=_passage([*texts[at:], *texts[:at]]))


def _passage(sentences: list[str]) -> str:
    return " ".join(itertools.chain.from_iterable(itertools.repeat(sentences, _ROUNDS)))


class Processor:
    """A checkpoint's own processor, for one model and the batch and sequence length of its plan."""

    def __init__(self, model: torch.nn.Module, plan: ModelPlan, parts: Mapping[str, Any]) -> None:
        """Store the arguments. ``parts`` are the processors by kind, as :meth:`read` finds them."""
        parameters = inspect.signature(model.forward).parameters
        self._plan = plan
        self._config: Any = model.config
        self._names = frozenset(parameters)
        self._required = {
            str(getattr(model, "main_input_name", "input_ids")),
            *(name for name, each in parameters.items() if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD),
        }
        self._whole: Any = parts.get("processor")
        self._image_token = image_token(model.config) if "pixel_values" in parameters else None
        self._tokenizer: Any = parts.get("tokenizer")
        self._images: Any = parts.get("image_processor")
        self._videos: Any = parts.get("video_processor")
        self._sounds: Any = parts.get("feature_extractor")

    @classmethod
    def read(cls, model: torch.nn.Module, plan: ModelPlan, folder: Path) -> Processor:
        """Read the processor from the checkpoint's folder.

        Raises:
            NoSamplesError: there is none, it is broken, or it needs code of its own.
        """
        parts = _parts(folder)
        if not any(next(folder.glob(name), None) for name in _TOKENIZER_FILES):
            for kind in ("tokenizer", "processor"):
                parts.pop(kind, None)
        if not parts:
            raise NoSamplesError("it ships no tokenizer, image processor or feature extractor")
        made = cls(model, plan, parts)
        if made._image_token is not None and made._whole is None:
            raise NoSamplesError("images belong within its texts, and it ships no processor that puts them there")
        return made

    @property
    def name(self) -> str:
        """The classes of the processors in use."""
        return " and ".join(type(part).__name__ for part in (self._tokenizer, self._images, self._sounds) if part is not None)

    @property
    def pads(self) -> bool:
        """Whether it can pad texts."""
        return self._tokenizer is not None and (self._tokenizer.pad_token or self._tokenizer.eos_token) is not None

    def inputs(self, samples: Sequence[Sample], *, whole_sentences: bool) -> _Tensors:
        """The arguments of one forward pass on some samples, one per row: integers int64, others float32.

        Args:
            samples: as many as the plan's batch.
            whole_sentences: single sentences, padded to the sequence length; otherwise longer texts that fill it, without padding.

        Raises:
            NoSamplesError: the processor fails, or does not give an argument that the model needs.
        """
        try:
            made = self._made(samples, whole_sentences=whole_sentences)
        except NoSamplesError:
            raise
        except Exception as error:  # a processor's own code may raise anything; it becomes a reason
            raise NoSamplesError(f"{self.name} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        missing = sorted(name for name in self._required if name not in made)
        if missing:
            raise NoSamplesError(f"{self.name or 'the processor'} does not give {', '.join(missing)}")
        return made

    def _made(self, samples: Sequence[Sample], *, whole_sentences: bool) -> _Tensors:
        made: dict[str, Any] = {}
        with_media = self._names & {"pixel_values", "input_features", "input_values"}
        if self._image_token is not None:
            made |= self._texts_with_images(samples)
        elif "input_ids" in self._names and self._tokenizer is not None:
            if "pixel_values" in self._names:
                made |= self._tokens([media.caption(sample.kind) for sample in samples], padded=True)
            elif whole_sentences:
                made |= self._tokens([sample.sentence for sample in samples], padded=True, known=False)
            else:
                made |= self._tokens([sample.passage for sample in samples], padded=False)
        if "pixel_values" in self._names and self._images is not None and self._image_token is None:
            made |= self._pixels(samples)
        if self._names & {"input_features", "input_values"} and self._sounds is not None:
            waves = [media.sound(sample.kind, sample.view) for sample in samples]
            made |= self._sounds(waves, sampling_rate=media.SAMPLING_RATE, return_tensors="pt")
        if getattr(self._config, "is_encoder_decoder", False) and "decoder_input_ids" in self._names and (made or not with_media):
            made["decoder_input_ids"] = self._decoder_tokens([sample.passage for sample in samples])
        return {name: _plain(value) for name, value in made.items() if name in self._names}

    def _tokens(self, texts: list[str], *, padded: bool, known: bool = True, length: int | None = None) -> dict[str, Any]:
        """Token ids and masks of texts, cut to a length, by default the plan's sequence length.

        ``known`` False: the words may all be unknown. A single sentence can be in a language that the tokenizer does not have.

        Raises:
            NoSamplesError: the tokenizer does not fit the model, or does not know the texts' words.
        """
        length = length or self._plan.sequence_length
        if padded and self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token  # any token will do: padding is masked
        made = self._tokenizer(texts, padding="max_length" if padded else False, truncation=True, max_length=length, return_tensors="pt")
        return self._checked(made, known=known)

    def _checked(self, made: Any, *, known: bool = True) -> dict[str, Any]:
        ids, vocabulary = made["input_ids"], getattr(self._config.get_text_config(), "vocab_size", None)
        if isinstance(vocabulary, int) and int(ids.max()) >= vocabulary:
            raise NoSamplesError(f"{type(self._tokenizer).__name__} gives token {int(ids.max())}, and the model has {vocabulary} tokens")
        counted = made["attention_mask"].bool() if "attention_mask" in made else slice(None)
        unknown = self._tokenizer.unk_token_id
        share = float((ids[counted] == unknown).double().mean()) if unknown is not None else 0.0
        if known and (share > _MOST_UNKNOWN or len(ids[counted].unique()) < _FEWEST_TOKENS):
            raise NoSamplesError(f"{type(self._tokenizer).__name__} does not know the words of plain texts ({share:.0%} unknown tokens)")
        return dict(made)

    def _texts_with_images(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Texts that begin with an image: its tokens, and as many tokens of text as the plan has, if the model has the positions."""
        pictures = [[media.picture(sample.kind, sample.view)] for sample in samples]
        self._tokenizer.truncation_side = "right"  # the image comes first
        alone = self._whole(text=[self._with_image("")], images=pictures[:1], return_tensors="pt")
        length = int((alone["input_ids"] == self._image_token).sum()) + self._plan.sequence_length
        most = getattr(self._config.get_text_config(), "max_position_embeddings", None)
        length = min(length, most) if isinstance(most, int) else length
        texts = [self._with_image(sample.passage) for sample in samples]
        return self._checked(self._whole(text=texts, images=pictures, truncation=True, max_length=length, return_tensors="pt"))

    def _with_image(self, text: str) -> str:
        """A prompt: by the checkpoint's own template for chats, if it has one."""
        if getattr(self._whole, "chat_template", None):
            content = [{"type": "image"}, {"type": "text", "text": text}]
            return str(self._whole.apply_chat_template([{"role": "user", "content": content}], tokenize=False))
        return f"{self._whole.image_token}{text}"

    def _pixels(self, samples: Sequence[Sample]) -> dict[str, Any]:
        vision = getattr(self._config, "vision_config", self._config)
        frames = getattr(vision, "num_frames", None)
        if not isinstance(frames, int):
            return dict(self._images([media.picture(sample.kind, sample.view) for sample in samples], return_tensors="pt"))
        films = [media.film(sample.kind, sample.view, frames) for sample in samples]
        return dict((self._videos or self._images)(films, return_tensors="pt"))

    def _decoder_tokens(self, texts: list[str]) -> torch.Tensor:
        """The start token, then the text: (batch, tokens)."""
        import torch

        if self._tokenizer is None:
            raise NoSamplesError("there is no tokenizer for the decoder's text")
        text = self._config.get_text_config()
        most = getattr(text, "max_target_positions", None)
        length = min(self._plan.sequence_length, most) if isinstance(most, int) else self._plan.sequence_length
        ids = self._tokens(texts, padded=False, length=length)["input_ids"]
        start = getattr(self._config, "decoder_start_token_id", None)
        start = start if isinstance(start, int) else (self._tokenizer.pad_token_id or 0)
        return torch.cat([torch.full((len(texts), 1), start), ids[:, : length - 1]], dim=1)


def _plain(value: Any) -> torch.Tensor:
    import torch

    tensor = torch.as_tensor(value)
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _parts(folder: Path) -> dict[str, Any]:
    """What a folder has of a tokenizer, an image processor, a video processor and a feature extractor, by the name of its kind.

    ``processor`` is what combines them, if it has that.

    Raises:
        NoSamplesError: nothing can be loaded.
    """
    import transformers
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.image_processing_utils import BaseImageProcessor
    from transformers.video_processing_utils import BaseVideoProcessor

    kinds: dict[str, Any] = {
        "tokenizer": transformers.PreTrainedTokenizerBase,
        "image_processor": BaseImageProcessor,
        "video_processor": BaseVideoProcessor,
        "feature_extractor": FeatureExtractionMixin,
    }
    loaders: tuple[Any, ...] = (
        transformers.AutoProcessor,
        transformers.AutoTokenizer,
        transformers.AutoImageProcessor,
        transformers.AutoFeatureExtractor,
    )
    _refuse_code(folder)
    parts: dict[str, Any] = {}
    first: Exception | None = None
    with logged_from(logging.CRITICAL + 1, "transformers"):  # what matters becomes a reason
        for loader in loaders:
            try:
                whole = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            except Exception as error:  # noqa: BLE001 - tokenizers and configurations of strangers fail in many ways; each becomes a reason
                first = first or error
                continue
            found = {name: whole if isinstance(whole, kind) else getattr(whole, name, None) for name, kind in kinds.items()}
            parts |= {name: part for name, part in found.items() if part is not None and name not in parts}
            if isinstance(whole, transformers.ProcessorMixin):
                parts["processor"] = whole
            if loader is transformers.AutoProcessor:
                break
    if not parts and first is not None:
        said = " ".join(str(first).split())
        raise NoSamplesError(f"its processor cannot be loaded: {type(first).__name__}: {said[:200]}") from first
    return parts


def _refuse_code(folder: Path) -> None:
    """Refuse a processor whose class is the checkpoint's own: transformers would quietly take another one that it has itself.

    Raises:
        NoSamplesError: a configuration names such a class.
    """
    import transformers

    for name in _PROCESSOR_CONFIGS:
        try:
            config = read_json((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        named = [config.get(key) for key in _CLASS_KEYS] if isinstance(config, dict) and config.get("auto_map") else []
        if any(isinstance(kind, str) and not hasattr(transformers, kind) for kind in named):
            raise NoSamplesError(f"{name} asks for code of its own, which hwmatrix never runs")
