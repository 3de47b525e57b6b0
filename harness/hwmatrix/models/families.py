"""What a model is for: the family of a model class, and how that is known.

A class name mostly says it (``ViTForImageClassification``). Where it does not (``T5ForConditionalGeneration``,
``CLIPModel``), the architecture's name does, and where that is new to us, transformers' own auto mappings, if transformers
is installed. The machine that plans a run has none, so the tables come first and give the same answer on both.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Final, Literal

from hwmatrix.errors import FactoryError
from hwmatrix.records import Family


@dataclasses.dataclass(frozen=True, kw_only=True)
class FamilyVerdict:
    """A family, what it was read from, and how sure that is.

    ``high``: the class is made for one task. ``medium``: the architecture has one use, or transformers lists the class under
    one task. ``low``: the class could serve several families, and this is the usual one.
    """

    family: Family
    source: str
    confidence: Literal["high", "medium", "low"]


# Heads that belong to one family, whatever the architecture.
_HEADS: Final[dict[str, Family]] = {
    "ForAudioClassification": Family.AUDIO,
    "ForAudioFrameClassification": Family.AUDIO,
    "ForCTC": Family.AUDIO,
    "ForSpeechSeq2Seq": Family.AUDIO,
    "ForSpeechToText": Family.AUDIO,
    "ForTextToSpeech": Family.AUDIO,
    "ForXVector": Family.AUDIO,
    "ForDepthEstimation": Family.VISION,
    "ForImageClassification": Family.VISION,
    "ForImageClassificationWithTeacher": Family.VISION,
    "ForImageSuperResolution": Family.VISION,
    "ForInstanceSegmentation": Family.VISION,
    "ForKeypointDetection": Family.VISION,
    "ForMaskedImageModeling": Family.VISION,
    "ForObjectDetection": Family.VISION,
    "ForSemanticSegmentation": Family.VISION,
    "ForUniversalSegmentation": Family.VISION,
    "VisionModel": Family.VISION,
    "ForVideoClassification": Family.VIDEO,
    "ForImageTextToText": Family.MULTIMODAL,
    "ForZeroShotObjectDetection": Family.MULTIMODAL,
}

# Architectures with one use: they decide where the head does not (``Model``, ``ForConditionalGeneration``, ...).
_USES: Final[dict[Family, str]] = {
    Family.AUDIO: (
        "audio-spectrogram-transformer bark data2vec-audio encodec hubert mimi moonshine musicgen sew sew-d speech_to_text "
        "speecht5 unispeech unispeech-sat vits wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm whisper"
    ),
    Family.MULTIMODAL: (
        "align altclip aria blip blip-2 bridgetower chameleon chinese_clip clap clip clipseg flava fuyu gemma3 git idefics "
        "idefics2 idefics3 instructblip internvl janus kosmos-2 layoutlm layoutlmv2 layoutlmv3 llava llava_next llava_onevision "
        "mistral4 mllama owlv2 owlvit paligemma phi4_multimodal pix2struct pixtral qwen2_5_vl qwen2_audio qwen2_vl siglip "
        "siglip2 smolvlm stable-diffusion tvlt vilt vipllava vision-encoder-decoder vision-text-dual-encoder visual_bert"
    ),
    Family.VIDEO: "llava_next_video timesformer tvp video_llava videomae vivit vjepa2 xclip",
    Family.VISION: (
        "beit bit convnext convnextv2 cvt data2vec-vision deit depth_anything detr dinov2 dpt efficientnet hiera mobilenet_v1 "
        "mobilenet_v2 mobilevit pvt regnet resnet sam segformer swin swin2sr swinv2 vit vit_mae vitdet yolos"
    ),
    Family.TEXT_GENERATION: (
        "bart bigbird_pegasus blenderbot blenderbot-small bloom codegen encoder-decoder falcon falcon_mamba gemma gemma2 gpt2 "
        "gpt_bigcode gpt_neo gpt_neox gptj led llama longt5 m2m_100 mamba mamba2 marian mbart mistral mixtral mpt mt5 mvp opt "
        "pegasus pegasus_x phi phi3 plbart prophetnet qwen2 qwen2_moe qwen3 qwen3_moe rwkv stablelm starcoder2 "
        "switch_transformers t5 umt5"
    ),
    Family.EMBEDDING: (
        "albert bert bert-generation big_bird camembert canine convbert deberta deberta-v2 distilbert dpr electra ernie esm "
        "flaubert fnet funnel ibert longformer luke megatron-bert mobilebert modernbert mpnet mra nystromformer roberta "
        "roberta-prelayernorm roc_bert roformer squeezebert xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso"
    ),
}
_ARCHITECTURES: Final[dict[str, Family]] = {name: family for family, names in _USES.items() for name in names.split()}

# Heads that are usually, not always, of one family.
_USUAL_HEADS: Final[dict[str, Family]] = {
    "ForCausalLM": Family.TEXT_GENERATION,
    "LMHeadModel": Family.TEXT_GENERATION,
    "ForSeq2SeqLM": Family.TEXT_GENERATION,
    "ForMaskedLM": Family.EMBEDDING,
    "ForMultipleChoice": Family.EMBEDDING,
    "ForNextSentencePrediction": Family.EMBEDDING,
    "ForQuestionAnswering": Family.EMBEDDING,
    "ForSequenceClassification": Family.EMBEDDING,
    "ForTokenClassification": Family.EMBEDDING,
    "Backbone": Family.VISION,
}

# What an architecture's name gives away: the last thing that is asked.
_HINTS: Final[dict[str, Family]] = {
    "asr": Family.AUDIO,
    "audio": Family.AUDIO,
    "music": Family.AUDIO,
    "speech": Family.AUDIO,
    "tts": Family.AUDIO,
    "voice": Family.AUDIO,
    "vl": Family.MULTIMODAL,
    "vlm": Family.MULTIMODAL,
    "multimodal": Family.MULTIMODAL,
    "ocr": Family.MULTIMODAL,
    "omni": Family.MULTIMODAL,
    "vision": Family.MULTIMODAL,
    "vit": Family.VISION,
}

# transformers' auto mappings, in the order they are asked: the particular before the general.
_MAPPINGS: Final[dict[str, Family]] = {
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES": Family.VIDEO,
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES": Family.AUDIO,
    "MODEL_FOR_CTC_MAPPING_NAMES": Family.AUDIO,
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": Family.AUDIO,
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": Family.MULTIMODAL,
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES": Family.AUDIO,
    "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES": Family.AUDIO,
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES": Family.MULTIMODAL,
    "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES": Family.MULTIMODAL,
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES": Family.MULTIMODAL,
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": Family.VISION,
    "MODEL_FOR_IMAGE_MAPPING_NAMES": Family.VISION,
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": Family.TEXT_GENERATION,
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": Family.TEXT_GENERATION,
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": Family.EMBEDDING,
    "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES": Family.EMBEDDING,
}


def family_of(architecture: str, class_name: str) -> FamilyVerdict:
    """The family of a model class.

    ``architecture`` is a configuration's ``model_type`` (``bert``), ``class_name`` a class of transformers (``BertForMaskedLM``).

    Raises:
        FactoryError: neither says it (``error_type`` is ``family_unknown``).
    """
    head = _longest_suffix(class_name, _HEADS)
    if head:
        return FamilyVerdict(family=_HEADS[head], source=f"the class's head {head}", confidence="high")
    if architecture in _ARCHITECTURES:
        return FamilyVerdict(family=_ARCHITECTURES[architecture], source=f"the architecture {architecture}", confidence="medium")
    mapping = _auto_mapping(class_name)
    if mapping:
        return FamilyVerdict(family=_MAPPINGS[mapping], source=f"transformers' {mapping}", confidence="medium")
    usual = _longest_suffix(class_name, _USUAL_HEADS)
    if usual:
        return FamilyVerdict(family=_USUAL_HEADS[usual], source=f"the class's head {usual}, as usual", confidence="low")
    hint = next((hint for hint in _HINTS if hint in re.split(r"[^a-z]+", architecture.lower())), None)
    if hint:
        return FamilyVerdict(family=_HINTS[hint], source=f"{hint!r} in the architecture's name", confidence="low")
    families = ", ".join(family.value for family in Family)
    message = f"the family of {class_name} ({architecture}) is not known: give it an entry in matrix.yaml with family: one of {families}"
    raise FactoryError(message, error_type="family_unknown")


def _longest_suffix(class_name: str, table: dict[str, Family]) -> str | None:
    return max((suffix for suffix in table if class_name.endswith(suffix)), key=len, default=None)


def _auto_mapping(class_name: str) -> str | None:
    """The first of transformers' mappings that lists the class, or None, also where transformers is not installed."""
    try:
        mappings = importlib.import_module("transformers.models.auto.modeling_auto")
    except ImportError:
        return None
    return next((name for name in _MAPPINGS if class_name in _listed(getattr(mappings, name, {}))), None)


def _listed(mapping: dict[str, str | tuple[str, ...]]) -> set[str]:
    """Every class of a mapping whose values are a class name or several."""
    return {name for value in mapping.values() for name in ((value,) if isinstance(value, str) else value)}
