"""Workflow files from matrix.yaml: up to date, valid by their schema, with minimal permissions, and safe from injections by matrix.yaml."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwmatrix.cli import main
from hwmatrix.errors import ConfigError
from hwmatrix.host.github.render import ActionPin, action_pins, render
from hwmatrix.matrix.load import load

ROOT = Path(__file__).parents[4]
LOADED = load(ROOT / "matrix.yaml")
TEXTS = render(LOADED)
WORKFLOWS = {name: yaml.safe_load(text) for name, text in TEXTS.items() if name != "action.yml"}
HOSTED = ["ubuntu-24.04"]
JOBS = [(name, job_id) for name, workflow in WORKFLOWS.items() for job_id in workflow["jobs"]]


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_files_are_up_to_date_with_matrix_yaml() -> None:
    for name, text in TEXTS.items():
        path = ROOT / name if name == "action.yml" else ROOT / ".github/workflows" / name
        assert path.read_text(encoding="utf-8") == text, "nox -s workflow"
        assert text.startswith("# Rendered from matrix.yaml by `nox -s workflow`")


def test_the_command_writes_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "matrix.yaml").write_text((ROOT / "matrix.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main.main(["workflow", "--check"]) == 8
    assert "cannot be read" in capsys.readouterr().err
    assert main.main(["workflow"]) == 0
    assert main.main(["workflow", "--check"]) == 0
    assert not (tmp_path / "action.yml").exists()  # only if there is one
    (tmp_path / ".github/workflows/ci.yml").write_text("on: push\n", encoding="utf-8")
    capsys.readouterr()
    assert main.main(["workflow", "--check"]) == 8
    assert ".github/workflows/ci.yml: it does not match matrix.yaml (update it with nox -s workflow)" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "job_id"), JOBS)
def test_permissions_timeouts_and_runners_of_every_job(name: str, job_id: str) -> None:
    workflow, job = WORKFLOWS[name], WORKFLOWS[name]["jobs"][job_id]
    assert workflow["permissions"] == {}
    assert "concurrency" in workflow
    assert job["permissions"]
    assert 0 < job["timeout-minutes"] <= 360
    if job_id in {"hosted", "own"}:  # they run models
        assert job["permissions"] == {"contents": "read"}
        assert "github.token" not in str(job)
        assert "secrets" not in str(job)
    else:
        assert job["runs-on"] == HOSTED


def test_only_these_jobs_have_write_permissions() -> None:
    writing = {
        (name, job_id): sorted(right for right, level in job["permissions"].items() if level == "write")
        for name, workflow in WORKFLOWS.items()
        for job_id, job in workflow["jobs"].items()
        if "write" in job["permissions"].values()
    }
    assert writing == {
        ("matrix.yml", "close"): ["actions"],
        ("release.yml", "close"): ["actions"],
        ("release.yml", "image"): ["attestations", "id-token", "packages"],
        ("release.yml", "publish"): ["attestations", "contents", "id-token"],
        ("release.yml", "index"): ["id-token"],
        ("release.yml", "pages"): ["id-token", "pages"],
    }


def test_what_may_write_to_a_release_runs_nothing_that_was_installed() -> None:
    """It takes the files from another job, and only GitHub's own command and pinned actions touch them."""
    writing = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values() if job["permissions"].get("contents") == "write"]
    assert writing
    for job in writing:
        assert not any(each.get("uses", "").startswith(("actions/checkout@", "actions/setup-")) for each in job["steps"])
        commands = {line.split()[0] for each in job["steps"] for line in each.get("run", "").splitlines()}
        assert commands <= {"gh"}


def test_a_job_can_be_rerun() -> None:
    """Artifacts are named after the run, so a second attempt must overwrite those of the first."""
    uploads = [
        step["with"]
        for workflow in WORKFLOWS.values()
        for step in steps(workflow)
        if step.get("uses", "").startswith("actions/upload-artifact@")
    ]
    assert len(uploads) >= 6
    assert all(given["overwrite"] is True and given["if-no-files-found"] == "error" for given in uploads)


def test_self_hosted_runners_use_their_own_python() -> None:
    for name in ("matrix.yml", "release.yml"):
        own, hosted = (WORKFLOWS[name]["jobs"][job]["steps"] for job in ("own", "hosted"))
        assert not [step for step in own if "setup-python" in step.get("uses", "")]
        assert [step["name"] for step in own] == [step["name"] for step in hosted if step["name"] != "Set up Python"]
        (install,) = (step["run"] for step in own if step["name"] == "Install hwmatrix")
        assert 'python3 -m venv "$RUNNER_TEMP/hwmatrix"' in install


def test_registry_logins_are_only_where_they_are_needed() -> None:
    job = WORKFLOWS["release.yml"]["jobs"]["image"]
    assert "vars.HWMATRIX_REGISTRY != ''" in job["if"]  # disabled unless the variable is set
    assert job["environment"] == "images"
    named = {step["name"]: step for step in job["steps"] if "secrets." in str(step) or "github.token" in str(step)}
    ours, theirs = named.pop("Log in to GitHub's registry"), named.pop("Log in to another registry")
    assert not named
    assert "github.token" not in str(theirs)  # the workflow's token is sent only to GitHub
    assert ours["if"] == "startsWith(vars.HWMATRIX_REGISTRY, 'ghcr.io/')"
    assert theirs["if"] == "${{ !startsWith(vars.HWMATRIX_REGISTRY, 'ghcr.io/') }}"
    assert "docker login ghcr.io " in ours["run"]
    assert "--password-stdin" in ours["run"]
    assert "--password-stdin" in theirs["run"]
    order = [step["name"] for step in job["steps"]]
    assert order.index("Build the image") < order.index(ours["name"]) < order.index("Push the image") < order.index("Log out")
    others = [each for workflow in WORKFLOWS.values() for name, each in workflow["jobs"].items() if name != "image"]
    assert not [each["name"] for each in others if "secrets." in str(each)]


def test_publishing_the_package_by_a_trusted_publisher_is_opt_in() -> None:
    jobs = WORKFLOWS["release.yml"]["jobs"]
    package, index = jobs["package"], jobs["index"]
    assert package["if"] == "vars.HWMATRIX_PACKAGE == 'true'"  # an unset variable has another value
    assert package["permissions"] == {"contents": "read"}  # the packages built and installed here cannot publish
    assert "twine check --strict" in str(package["steps"])
    assert index["needs"] == "package"
    assert "needs.package.result == 'success'" in index["if"]
    assert index["environment"]
    assert index["permissions"] == {"id-token": "write"}
    assert not [step for step in index["steps"] if "run" in step]
    assert not [step for step in index["steps"] if "password" in str(step) or "secrets." in str(step)]
    assert [step["uses"].partition("@")[0] for step in index["steps"]] == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]


def test_images_are_attested_by_the_digest_of_the_registry() -> None:
    steps_of = WORKFLOWS["release.yml"]["jobs"]["image"]["steps"]
    (attesting,) = [step["with"] for step in steps_of if step.get("uses", "").startswith("actions/attest@")]
    assert attesting == {"subject-name": "${{ steps.image.outputs.name }}", "subject-digest": "${{ steps.image.outputs.digest }}"}


def test_pull_requests_use_only_hosted_runners() -> None:
    of_pull_requests = {name for name, workflow in WORKFLOWS.items() if "pull_request" in workflow[True]}
    assert of_pull_requests == {"ci.yml"}
    assert all(job["runs-on"] == HOSTED for job in WORKFLOWS["ci.yml"]["jobs"].values())
    for name, workflow in WORKFLOWS.items():
        assert not {"pull_request_target", "workflow_run", "issue_comment"} & workflow[True].keys(), name
    for name in ("matrix.yml", "release.yml"):
        condition = WORKFLOWS[name]["jobs"]["own"]["if"]
        assert "!github.event.repository.fork" in condition
        assert "pull_request" not in condition  # an allowlist


def test_the_ci_calls_the_commands_of_the_readme() -> None:
    told = "\n".join(step["run"] for step in steps(WORKFLOWS["ci.yml"]) if "run" in step)
    for command in ("nox -s lint", "nox -s tests -- tests/unit", "nox -s workflow_check", "tests/conformance", "tests/integration"):
        assert command in told


@pytest.mark.parametrize("name", TEXTS)
def test_actions_are_pinned_and_expressions_stay_out_of_scripts(name: str) -> None:
    used = list(re.finditer(r"uses: (\S+)@(\S+) # (\S+)$|uses: (.*)$", TEXTS[name], re.MULTILINE))
    assert used
    for found in used:
        assert found[4] is None, found[0]
        assert ActionPin(commit=found[2], version=found[3]) == action_pins()[found[1]]
    for step in [step for workflow in WORKFLOWS.values() for step in steps(workflow)]:
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_a_pin_is_a_full_commit() -> None:
    with pytest.raises(pydantic.ValidationError, match="should match pattern"):
        ActionPin(commit="v4", version="v4")


def test_schedule() -> None:
    spec = dataclasses.replace(LOADED.spec, github=dataclasses.replace(LOADED.spec.github, schedule="17 3 * * MON"))
    workflow = yaml.safe_load(render(dataclasses.replace(LOADED, spec=spec))["matrix.yml"])
    assert workflow[True]["schedule"] == [{"cron": "17 3 * * MON"}]


HOSTILE = [
    "${{ github.event.issue.title }}",
    "x\n    permissions: write-all",
    '"; curl evil | sh; "',
    "$(reboot)",
    "`reboot`",
    "a: &b [*b]",
    "self-hosted",
    "::set-output name=x::y",
    "'\"\\",
    "# comment",
    "{{ 7*7 }} [[ 7*7 ]] [% raw %]",
    "ubuntu-24.04\n",
    "\u2028on: push",
]
BASE = """
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-4, reason: test}}
targets: {cpu: {backend: cpu, image: cpu, runs_on: %(labels)s}, %(target)s: {backend: cuda, image: cuda}}
models: {%(model)s: {family: embedding, architecture: bert, class: BertForMaskedLM, hub_id: %(free)s}}
suites: {default: {models: all, description: %(free)s}, %(name)s: {models: [%(model)s]}}
github: {runs_on: %(hosted)s, schedule: %(schedule)s, python: %(python)s}
"""
HARMLESS = {
    "labels": ["cuda"],
    "free": "x",
    "name": "smoke",
    "target": "gpu",
    "model": "bert",
    "hosted": ["ubuntu-24.04"],
    "schedule": "0 3 * * 1",
    "python": "3.12",
}


def quoted(value: Any) -> str:
    """A value as YAML for a flow mapping."""
    return yaml.safe_dump([value], default_flow_style=True, width=10_000, allow_unicode=False).strip()[1:-1]


def scripts(texts: dict[str, str]) -> dict[str, list[str]]:
    """All lines except the schedule and the descriptions."""
    shown = re.compile(r"\s+(description: |- cron: )")
    return {name: [line for line in text.splitlines() if not shown.match(line)] for name, text in texts.items()}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(list(HARMLESS)),
    text=st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60), st.text(alphabet="${}[]%:\"'\n\\|&;`!# abc", max_size=40)),
)
def test_hostile_values_in_matrix_yaml_cannot_change_the_workflows(tmp_path_factory: pytest.TempPathFactory, key: str, text: str) -> None:
    """Either matrix.yaml is refused, or the workflows differ from those of a harmless one only in descriptions."""
    hostile = {**HARMLESS, key: [text] if key in {"labels", "hosted"} else text}
    path = tmp_path_factory.mktemp("hostile") / "matrix.yaml"
    rendered = []
    for values in (HARMLESS, hostile):
        path.write_text(BASE % {name: quoted(value) for name, value in values.items()}, encoding="utf-8")
        with contextlib.suppress(ConfigError):
            rendered.append(render(load(path)))
    assert rendered, "the harmless one must be accepted"
    if len(rendered) == 2:
        assert scripts(rendered[0]) == scripts(rendered[1])


@pytest.mark.parametrize(
    ("key", "text"),  # self-hosted is a valid label of a target
    [(key, text) for key in ("labels", "hosted", "schedule", "python") for text in HOSTILE if (key, text) != ("labels", "self-hosted")],
)
def test_hostile_values_are_refused_with_their_line(tmp_path: Path, key: str, text: str) -> None:
    hostile = {**HARMLESS, key: [text] if key in {"labels", "hosted"} else text}
    path = tmp_path / "matrix.yaml"
    path.write_text(BASE % {name: quoted(value) for name, value in hostile.items()}, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"matrix\.yaml:\d+: (targets\.cpu\.runs_on|github\.)"):
        load(path)
