"""Executes the workflows on this machine, job by job and step by step, from the plan to the files of a release."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from workflow_walker import SKIPPED, Walked, Walker

sys.path.insert(0, str(Path(__file__).parent))  # for registry_server

from registry_server import Registry, serving

import hwmatrix
from hwmatrix.errors import EngineError
from hwmatrix.host.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.containers, pytest.mark.pipeline, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
MODELS = ("bert", "vit", "t5")
TARGETS = ("cpu", "onnxruntime", "cuda")
LAST = ROOT / "tests/recorded/default.duckdb"
TOKEN = "token-of-the-test"  # noqa: S105 - of a server of the test
GH = """#!/usr/bin/env python3
import json, os, pathlib, shutil, sys
words = sys.argv[1:]
place = pathlib.Path(os.environ["FAKE_GH"])
assert os.environ["GH_TOKEN"]
with (place / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
if words[:2] == ["release", "view"]:
    print("What somebody wrote.")
elif words[:2] == ["release", "list"]:
    print("v2\\nv1")
elif words[:2] == ["release", "download"]:
    shutil.copyfile(os.environ["FAKE_LAST"], pathlib.Path(words[words.index("--dir") + 1]) / "matrix.duckdb")
elif words[:2] == ["release", "upload"]:
    for name in words[3 : words.index("--repo")]:
        shutil.copy(name, place / "attached")
elif words[:2] == ["release", "edit"]:
    shutil.copyfile(words[words.index("--notes-file") + 1], place / "notes.md")
elif words[:2] != ["run", "cancel"]:
    sys.exit(f"gh does not know {words}")
"""


class Api:
    """A fake of GitHub's API for the current state of a run's jobs."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked = 0
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked += 1
                right = self.headers["Authorization"] == f"Bearer {TOKEN}"
                known = self.path.startswith("/repos/owner/name/actions/runs/7/attempts/1/jobs?")
                self.send_response(200 if right and known else 404)
                self.end_headers()
                self.wfile.write(json.dumps({"total_count": len(api.jobs), "jobs": list(api.jobs.values())}).encode())

            def log_message(self, *_arguments: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def set(self, target: str, status: str, conclusion: str | None = None) -> None:
        self.jobs[target] = {"name": f"on {target}", "status": status, "conclusion": conclusion}


@pytest.fixture
def api() -> Iterator[Api]:
    found = Api()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as found:
        found.login = "somebody:password-of-the-test"
        yield found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a matrix.yaml of three models and three targets, one of which has no runner here."""
    try:
        connect(dict(os.environ))
    except EngineError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"these tests must run in CI: {error}")
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        [  # noqa: S607 - the git that made this checkout
            "git",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "harness",
            "images",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    matrix = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    matrix["targets"] = {name: matrix["targets"][name] for name in TARGETS}
    matrix["models"] = {name: matrix["models"][name] for name in MODELS}
    matrix["suites"] = {"default": {"size": "tiny", "models": "all"}}
    matrix["expect"] = []
    matrix["github"] = {"wait_minutes": 1}
    (folder / "matrix.yaml").write_text(yaml.safe_dump(matrix, sort_keys=False), encoding="utf-8")
    return folder


def walker(workflow: str, source: Path, folder: Path, api: Api, *, event: str, inputs: dict[str, Any] | None = None) -> Walker:
    gh = folder / "gh"
    (gh / "attached").mkdir(parents=True)
    (folder / "artifacts").mkdir()
    (folder / "tools").mkdir()
    (folder / "tools" / "gh").write_text(GH, encoding="utf-8")
    (folder / "tools" / "gh").chmod(stat.S_IRWXU)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "RUNNER_", "HWMATRIX_CACHE", "PYTHON"))
    }
    environment |= {
        "DOCKER_CONFIG": str(folder / "docker"),
        "PATH": f"{folder / 'tools'}{os.pathsep}{os.environ['PATH']}",
        "FAKE_GH": str(gh),
        "FAKE_LAST": str(LAST),
        "GITHUB_API_URL": f"http://127.0.0.1:{api.server.server_address[1]}",
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_RUN_ID": "7",
        "GITHUB_RUN_ATTEMPT": "1",
    }
    github = {
        "event_name": event,
        "token": TOKEN,
        "ref": "refs/tags/v2",
        "event": {"repository": {"fork": False, "default_branch": "main"}, "release": {"tag_name": "v2"}},
    }
    path = ROOT / ".github/workflows" / workflow
    return Walker.of(path, source=source, folder=folder, github=github, environment=environment, inputs=inputs or {})


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "gh" / "calls").read_text(encoding="utf-8").splitlines()]


def planned(walking: Walker) -> dict[str, Walked]:
    """Execute the first two jobs: the plan, and its bundles."""
    plan = walking.walk("plan", {})
    assert plan.result == "success", plan.log
    bundles = walking.walk("bundles", {"plan": plan})
    assert bundles.result == "success", bundles.log
    return {"plan": plan, "bundles": bundles}


def targets_of(walking: Walker, needs: dict[str, Walked], api: Api) -> list[Walked]:
    """Execute the jobs of hosted targets one after the other, and report them in the API; those on self-hosted runners stay queued."""
    plan = needs["plan"]
    assert walking.starts("own", needs)
    for each in json.loads(plan.outputs["own"])["include"]:
        api.set(each["target"], "queued")
    found = []
    include = json.loads(plan.outputs["hosted"])["include"]
    for each in include:
        api.set(each["target"], "queued")
    for each in include:
        api.set(each["target"], "in_progress")
        job = walking.walk("hosted", needs, each)
        assert "to build or find" not in job.log  # the job of bundles made them all
        api.set(each["target"], "completed", job.result)
        found.append(job)
    return found


def image_of(walking: Walker, plan: Walked, registry: Registry) -> None:
    """Execute the job of one image: it is built and pushed with a login, and no trace of the login remains."""
    assert not walking.starts("image", {"plan": plan})  # no variable sets a registry
    walking.variables = {"HWMATRIX_REGISTRY": f"{registry.address}/team/hwmatrix"}
    assert walking.starts("image", {"plan": plan})
    assert json.loads(plan.outputs["images"]) == {"include": [{"target": "cpu"}, {"target": "onnxruntime"}]}
    walking.secrets = {"HWMATRIX_REGISTRY_USER": "somebody", "HWMATRIX_REGISTRY_PASSWORD": "password-of-the-test"}
    image = walking.walk("image", {"plan": plan}, {"target": "onnxruntime"})
    assert image.result == "success", image.log
    assert "-- skipped: Log in to GitHub's registry" in image.log
    assert "password-of-the-test" not in image.log
    login = json.loads((walking.folder / "docker" / "config.json").read_text(encoding="utf-8"))
    assert registry.address not in login.get("auths", {})
    digests = {digest for name, digest in registry.manifests if name == "team/hwmatrix/onnxruntime" and digest.startswith("sha256:")}
    (digest,) = digests
    assert image.not_run == ["actions/attest"]
    assert image.given == [{"subject-name": f"{registry.address}/team/hwmatrix/onnxruntime", "subject-digest": digest}]


def test_a_release_from_the_plan_to_its_files(source: Path, tmp_path: Path, api: Api, registry: Registry) -> None:
    walking = walker("release.yml", source, tmp_path, api, event="release")
    needs = planned(walking)
    plan = needs["plan"]
    assert [each["target"] for each in json.loads(plan.outputs["hosted"])["include"]] == ["cpu", "onnxruntime"]
    assert walking.starts("collect", needs)
    assert walking.starts("collect", {"plan": plan, "bundles": dataclasses.replace(SKIPPED, result="failure")})
    with ThreadPoolExecutor() as pool:  # collect does not need the targets' jobs, so it runs in parallel with them
        collecting = pool.submit(walking.walk, "collect", needs)
        worked = targets_of(walking, needs, api)
        collect = collecting.result()
    assert [job.result for job in worked] == ["success", "success"], "\n".join(job.log for job in worked)
    assert collect.result == "success", collect.log
    assert collect.outputs == {"waiting": "cuda", "reported": "yes"}
    assert "no runner with the labels self-hosted, linux, x64, cuda took the job within 1 minutes" in collect.log
    image_of(walking, plan, registry)
    needs["collect"] = collect
    assert walking.starts("assets", needs)
    needs["assets"] = walking.walk("assets", needs)
    assert needs["assets"].result == "success", needs["assets"].log
    assert walking.starts("publish", needs)
    publish = walking.walk("publish", needs)
    assert publish.result == "success", publish.log
    assert publish.not_run == ["actions/attest"]
    assert publish.given == [{"subject-checksums": "made/assets/SHA256SUMS"}]
    needs["publish"] = publish
    assert not walking.starts("pages", needs)  # no variable enables it
    walking.variables["HWMATRIX_PAGES"] = "true"
    assert walking.starts("pages", needs)
    pages = walking.walk("pages", needs)
    assert pages.not_run == ["actions/upload-pages-artifact", "actions/deploy-pages"]
    assert "<html" in (tmp_path / "jobs/pages/workspace" / pages.given[0]["path"] / "index.html").read_text(encoding="utf-8")
    assert walking.starts("close", needs)
    assert walking.walk("close", needs).result == "success"
    assert calls(tmp_path)[-1] == ["run", "cancel", "7", "--repo", "owner/name"]
    check_release(tmp_path / "gh", collect)


def check_release(gh: Path, collect: Walked) -> None:
    attached = gh / "attached"
    names = {path.name for path in attached.iterdir()}
    assert names >= {"matrix.md", "matrix.json", "errors.md", "errors.json", "summary.md", "matrix.duckdb", "badges.tar.gz", "plots.tar.gz"}
    assert "index.html" in names
    sums = dict(reversed(line.split("  ")) for line in (attached / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    assert sums.keys() == names - {"SHA256SUMS"}
    assert {name: hashlib.sha256((attached / name).read_bytes()).hexdigest() for name in sums} == sums
    with duckdb.connect(str(attached / "matrix.duckdb"), read_only=True) as connection:
        rows = connection.execute("SELECT target, model, status, message FROM results").fetchall()
    statuses = {(target, model): status for target, model, status, _ in rows}
    assert {key: status for key, status in statuses.items() if key[0] != "cuda"} == {
        (target, model): "pass" for target in ("cpu", "onnxruntime") for model in MODELS
    }
    assert {status for (target, _), status in statuses.items() if target == "cuda"} == {"unavailable"}
    assert {message for target, _, _, message in rows if target == "cuda"} == {
        "no runner with the labels self-hosted, linux, x64, cuda took the job within 1 minutes"
    }
    notes = (gh / "notes.md").read_text(encoding="utf-8")
    assert notes.startswith("What somebody wrote.")
    assert "# Compatibility matrix" in notes
    assert "There is no earlier release" not in notes
    assert "# Compatibility matrix" in collect.summary


def test_offline_runners_do_not_block_the_run(source: Path, tmp_path: Path, api: Api) -> None:
    inputs = {"models": "bert vit t5", "targets": "cpu cuda", "suite": ""}
    walking = walker("matrix.yml", source, tmp_path, api, event="workflow_dispatch", inputs=inputs)
    plan = walking.walk("plan", {})
    assert plan.result == "success", plan.log
    api.set("cpu", "completed", "failure")  # its machine died without output
    api.set("cuda", "queued")
    failed = dataclasses.replace(SKIPPED, result="failure")
    collect = walking.walk("collect", {"plan": plan, "bundles": failed})
    assert collect.outputs == {"waiting": "cuda", "reported": "yes"}
    assert collect.result == "failure"  # because of the gate: a planned target has no verdict
    assert "::error title=shards::cpu: its job ended with failure" in collect.log
    report = json.loads(next((tmp_path / "artifacts").glob("report-*/matrix.json")).read_text(encoding="utf-8"))
    assert report["run"]["counts"] == {"unavailable": 9, "not_run": 3}
    assert "cpu: its job ended with failure" in collect.summary
    needs = {"plan": plan, "collect": collect}
    assert walking.starts("close", needs)
    walking.inputs = {**inputs, "called": True}
    assert not walking.starts("close", needs)  # the run is the caller's
    walking.github["event_name"] = "pull_request"
    assert not walking.starts("own", {"plan": plan, "bundles": dataclasses.replace(SKIPPED, result="success")})


def test_a_single_target_whose_job_is_rerun(source: Path, tmp_path: Path, api: Api) -> None:
    """GitHub's download action stores a single artifact without a folder, and a second attempt replaces the first one's artifact."""
    inputs = {"models": "bert", "targets": "onnxruntime", "suite": ""}
    walking = walker("matrix.yml", source, tmp_path, api, event="workflow_dispatch", inputs=inputs)
    needs = planned(walking)
    (each,) = json.loads(needs["plan"].outputs["hosted"])["include"]
    first = walking.walk("hosted", needs, each)
    assert first.result == "success", first.log
    (archive,) = (tmp_path / "artifacts").glob("shards-onnxruntime-*/shards.tar")
    archive.write_bytes(b"what a first attempt has left")
    shutil.rmtree(tmp_path / "jobs" / "hosted-onnxruntime")
    second = walking.walk("hosted", needs, each)
    assert second.result == "success", second.log
    api.set("onnxruntime", "completed", "success")
    collect = walking.walk("collect", needs)
    assert collect.result == "success", collect.log
    assert "onnxruntime: 1 shard" in collect.log
    report = json.loads(next((tmp_path / "artifacts").glob("report-*/matrix.json")).read_text(encoding="utf-8"))
    assert report["run"]["counts"] == {"pass": 1}


def test_what_a_release_publishes_is_built_and_checked(source: Path, tmp_path: Path, api: Api) -> None:
    """All steps except the publishing one, which needs the package index."""
    walking = walker("release.yml", source, tmp_path, api, event="release")
    assert not walking.starts("package", {})  # no variable enables it
    walking.variables["HWMATRIX_PACKAGE"] = "true"
    assert walking.starts("package", {})
    wrong = walking.walk("package", {})
    assert wrong.result == "failure"
    assert "::error::the release's tag is not the version" in wrong.log
    walking.github["event"]["release"]["tag_name"] = f"v{hwmatrix.__version__}"
    shutil.rmtree(tmp_path / "jobs" / "package")
    package = walking.walk("package", {})
    assert package.result == "success", package.log
    (folder,) = (tmp_path / "artifacts").glob("package-*")
    assert {path.name for path in folder.iterdir()} == {
        f"hwmatrix-{hwmatrix.__version__}-py3-none-any.whl",
        f"hwmatrix-{hwmatrix.__version__}.tar.gz",
    }
    assert walking.starts("index", {"package": package})


def test_the_action_in_another_repository(source: Path, tmp_path: Path, api: Api) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "ci").mkdir(parents=True)
    shutil.copy(source / "matrix.yaml", theirs / "ci" / "our-matrix.yaml")
    walking = walker("matrix.yml", theirs, tmp_path, api, event="pull_request")
    checkout = walking.workflow["jobs"]["plan"]["steps"][0]
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    walking.workflow = {"jobs": {"action": {"steps": [checkout, *action["runs"]["steps"]]}}}
    defaults = {name: each["default"] for name, each in action["inputs"].items()}
    walking.inputs = {**defaults, "matrix": "ci/our-matrix.yaml", "models": "bert", "targets": "cpu"}
    walking.environment["GITHUB_ACTION_PATH"] = str(source)
    job = walking.walk("action", {})
    assert job.result == "success", job.log
    assert "# Compatibility matrix" in job.summary
    reports = tmp_path / "jobs" / "action" / "workspace" / "hwmatrix-reports"
    counts = json.loads((reports / "matrix.json").read_text(encoding="utf-8"))["run"]["counts"]
    assert counts == {"pass": 1}
    walking.inputs["targets"] = "cpu --output-dir /elsewhere"
    walking.folder = tmp_path / "again"
    again = walking.walk("action", {})
    assert again.result == "failure"
    assert "::error::a word of an input begins with a dash" in again.log
