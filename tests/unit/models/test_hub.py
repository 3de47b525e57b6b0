"""The hub: the requests to it, and the errors if it is unreachable. It is never contacted here."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest
import safetensors.numpy
from huggingface_hub import errors

from hwmatrix.errors import FactoryError, RefusedError
from hwmatrix.models import hub
from hwmatrix.records import Family, ModelPlan, Size

if TYPE_CHECKING:
    from pathlib import Path

PLAN = ModelPlan(
    name="bert",
    size=Size.TINY,
    family=Family.EMBEDDING,
    architecture="bert",
    model_class="BertForMaskedLM",
    hub_id="google-bert/bert-base-uncased",
    weights="hub",
)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls to a fake hub with one repository at commit 0123abc. Each call returns only files that match its patterns."""
    made: list[dict[str, Any]] = []
    folder = tmp_path / "0123abc"
    folder.mkdir()

    def download(hub_id: str, **options: Any) -> str:
        made.append({"hub_id": hub_id, **options})
        (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}), encoding="utf-8")
        if "*.safetensors" in options["allow_patterns"]:
            (folder / "model.safetensors").write_bytes(safetensors.numpy.save({}))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", _known)
    return made


def _known(_api: object, _hub_id: str, **_options: Any) -> SimpleNamespace:
    return SimpleNamespace(sha="0123abc")


def test_configuration_first_and_no_pickles(calls: list[dict[str, Any]], tmp_path: Path) -> None:
    folder = hub.fetch("google-bert/bert-base-uncased", "main", tmp_path)
    assert folder == tmp_path / "0123abc"
    assert ["*.safetensors" in call["allow_patterns"] for call in calls] == [False, False, True]
    assert all(call["revision"] == "0123abc" for call in calls)
    assert not any(".bin" in pattern or ".pt" in pattern for call in calls for pattern in call["allow_patterns"])


def test_resolved_plan_is_pinned_to_a_commit(calls: list[dict[str, Any]], tmp_path: Path) -> None:
    resolved = hub.resolve(PLAN, tmp_path)
    assert (resolved.weights, resolved.revision) == (str(tmp_path / "0123abc"), "0123abc")
    assert len(calls) == 3


def test_a_recipe_needs_no_hub(calls: list[dict[str, Any]], tmp_path: Path) -> None:
    recipe = ModelPlan(name="bert", size=Size.TINY, family=Family.EMBEDDING, architecture="bert", model_class="BertForMaskedLM")
    assert hub.resolve(recipe, tmp_path) is recipe
    assert calls == []


def test_remote_code_is_refused_before_its_weights_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(_hub_id: str, **options: Any) -> str:
        asked.append(options["allow_patterns"])
        config = {"model_type": "custom", "architectures": ["Custom"], "auto_map": {"AutoConfig": "configuration_custom.Custom"}}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", _known)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(RefusedError):
        hub.fetch("somebody/custom", None, tmp_path)
    assert len(asked) == 1


@pytest.mark.parametrize("here", [True, False])
def test_only_the_configuration_is_read_from_the_cache_or_downloaded(
    here: bool,  # noqa: FBT001 - what pytest gives
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}), encoding="utf-8")
    asked = []

    def download(_hub_id: str, **options: Any) -> str:
        if options.get("local_files_only") and not here:
            raise errors.LocalEntryNotFoundError("nothing is cached")
        asked.append(options.get("allow_patterns"))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", _known)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.fetch_config("somebody/bert", None, tmp_path) == tmp_path
    assert len(asked) == 1
    assert here or not [pattern for pattern in asked[0] if "safetensors" in pattern]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.LocalEntryNotFoundError("no connection"), "hub_unreachable"),
        (ConnectionError("bad proxy"), "hub_unreachable"),
        (TimeoutError("too slow"), "hub_unreachable"),
        (errors.HFValidationError("bad name"), "hub_not_found"),
        (
            errors.RepositoryNotFoundError.__new__(errors.RepositoryNotFoundError),
            "hub_not_found",
        ),
        (errors.RevisionNotFoundError.__new__(errors.RevisionNotFoundError), "hub_not_found"),
        (errors.GatedRepoError.__new__(errors.GatedRepoError), "hub_gated"),
    ],
)
def test_failures_have_types_and_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str) -> None:
    def refuse(_api: object, _hub_id: str, *, timeout: float, **_options: Any) -> str:
        assert timeout <= 5
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(FactoryError, match="somebody/model@v1") as caught:
        hub.fetch("somebody/model", "v1", tmp_path)
    assert caught.value.error_type == kind
    assert "folder" in str(caught.value)


def test_without_the_hub_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]) -> None:
    hub.fetch("google-bert/bert-base-uncased", None, tmp_path)
    download = huggingface_hub.snapshot_download

    def unreachable(_api: object, _hub_id: str, **_options: Any) -> str:
        raise ConnectionError("no route")

    def cached(hub_id: str, *, local_files_only: bool, **options: Any) -> Any:
        assert local_files_only
        return download(hub_id, allow_patterns=["*.safetensors"], **options)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert hub.fetch("google-bert/bert-base-uncased", None, tmp_path) == tmp_path / "0123abc"
    assert len(calls) == 4
