"""Walks the jobs of a workflow file on this machine: what a runner of GitHub does, as far as the rendered workflows need it.

``run:`` parts are really run, each job in clean folders. Of the actions, those that move files are done here (checkout, artifacts), a
Python is put on PATH, and the others are listed as not run. Expressions are evaluated by a small parser; what it does not know, it
refuses.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

Context = dict[str, Any]
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*)|(?P<sign>\|\||&&|==|!=|[!(),]))"
)
_EMBEDDED = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_STATUS = ("cancelled()", "always()", "success()", "failure()")


class Expression:
    """One expression of GitHub's, evaluated: names, texts, ``! && || == !=``, and the functions that the workflows use."""

    def __init__(self, text: str, context: Context) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._context = context
        at = 0
        text = text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            assert found is not None, f"no such expression here: {text[at:]!r}"
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()

    def value(self) -> Any:
        found = self._either()
        assert not self._tokens, f"left over: {self._tokens}"
        return found

    def _sign(self, *signs: str) -> str | None:
        if self._tokens and self._tokens[0][0] == "sign" and self._tokens[0][1] in signs:
            return self._tokens.pop(0)[1]
        return None

    def _either(self) -> Any:
        left = self._both()
        while self._sign("||"):
            right = self._both()
            left = left or right
        return left

    def _both(self) -> Any:
        left = self._compared()
        while self._sign("&&"):
            right = self._compared()
            left = left and right
        return left

    def _compared(self) -> Any:
        left = self._single()
        sign = self._sign("==", "!=")
        if sign is None:
            return left
        same = _plain(left) == _plain(self._single())
        return same if sign == "==" else not same

    def _single(self) -> Any:
        if self._sign("!"):
            return not self._single()
        if self._sign("("):
            inner = self._either()
            assert self._sign(")")
            return inner
        kind, text = self._tokens.pop(0)
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if self._sign("("):
            arguments = []
            while not self._sign(")"):
                arguments.append(self._either())
                self._sign(",")
            return self._call(text, arguments)
        value: Any = {**self._context, "true": True, "false": False}
        for part in text.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def _call(self, name: str, arguments: list[Any]) -> Any:
        if name == "fromJSON":
            return json.loads(*arguments)
        if name == "format":
            return re.sub(r"\{(\d+)\}", lambda found: str(arguments[1 + int(found[1])]), arguments[0])
        if name == "startsWith":
            return str(_plain(arguments[0])).lower().startswith(str(arguments[1]).lower())
        return {"cancelled": False, "always": True, "success": not self._context["failed"], "failure": self._context["failed"]}[name]


def _plain(value: Any) -> Any:
    """What is missing equals the empty text and false, as on GitHub."""
    return "" if value is None or value is False else value


def fill(text: Any, context: Context) -> Any:
    """A value of a workflow with its expressions evaluated; one that is an expression alone keeps its type."""
    if isinstance(text, dict):
        return {key: fill(value, context) for key, value in text.items()}
    if not isinstance(text, str):
        return text
    whole = _EMBEDDED.fullmatch(text)
    if whole:
        found = Expression(whole[1], context).value()
        return "" if found is None else found
    return _EMBEDDED.sub(lambda found: str(_plain(Expression(found[1], context).value())), text)


def holds(condition: str | None, context: Context) -> bool:
    """Whether a job or step runs: without a function of the status, only if nothing has failed."""
    if condition is None:
        return not context["failed"]
    whole = _EMBEDDED.fullmatch(condition.strip())
    text = whole[1] if whole else condition
    return bool(Expression(text, context).value()) and (any(word in text for word in _STATUS) or not context["failed"])


@dataclasses.dataclass(kw_only=True)
class Walked:
    """A job that was walked: how it ended, its outputs, what its steps printed, which actions were not run and what they were given."""

    result: str
    outputs: dict[str, str]
    log: str
    summary: str
    not_run: list[str]
    given: list[Context]


SKIPPED = Walked(result="skipped", outputs={}, log="", summary="", not_run=[], given=[])


@dataclasses.dataclass(kw_only=True)
class Walker:
    """A place where jobs are walked. ``source`` is what checkout gives, ``folder`` holds jobs and artifacts."""

    workflow: dict[Any, Any]
    source: Path
    folder: Path
    github: Context
    environment: dict[str, str]
    inputs: Context = dataclasses.field(default_factory=dict)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    secrets: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, **facts: Any) -> Walker:
        return cls(workflow=yaml.safe_load(path.read_text(encoding="utf-8")), **facts)

    def walk(self, job_id: str, needs: dict[str, Walked], matrix: Context | None = None) -> Walked:
        """Walk a job in clean folders."""
        job = self.workflow["jobs"][job_id]
        name = job_id + (f"-{matrix['target']}" if matrix else "")
        home = self.folder / "jobs" / name
        context: Context = {
            "github": self.github,
            "inputs": self.inputs,
            "matrix": matrix or {},
            "vars": self.variables,
            "secrets": self.secrets if "environment" in job else {},
            "needs": {key: {"result": each.result, "outputs": each.outputs} for key, each in needs.items()},
            "steps": {},
            "failed": False,
        }
        for part in ("workspace", "temp", "bin"):
            (home / part).mkdir(parents=True)
        (home / "bin" / "python").symlink_to(sys.executable)
        walking = _Job(self, context, home)
        for step in job["steps"]:
            walking.step(step)
        outputs = {key: str(fill(value, context)) for key, value in job.get("outputs", {}).items()}
        summary = home / "summary.md"
        return Walked(
            result="failure" if context["failed"] else "success",
            outputs=outputs,
            log="".join(walking.log),
            summary=summary.read_text(encoding="utf-8") if summary.exists() else "",
            not_run=walking.not_run,
            given=walking.given,
        )

    def starts(self, job_id: str, needs: dict[str, Walked]) -> bool:
        """Whether a job's condition holds."""
        job = self.workflow["jobs"][job_id]
        told = {key: {"result": each.result, "outputs": each.outputs} for key, each in needs.items()}
        failed = any(each.result != "success" for each in needs.values())
        return holds(job.get("if"), {"github": self.github, "inputs": self.inputs, "needs": told, "vars": self.variables, "failed": failed})


class _Job:
    """One job while it is walked."""

    def __init__(self, walker: Walker, context: Context, home: Path) -> None:
        self._walker, self._context, self._home = walker, context, home
        self._path: list[str] = [str(home / "bin")]
        self._set: dict[str, str] = {}
        self.log: list[str] = []
        self.not_run: list[str] = []
        self.given: list[Context] = []

    def step(self, step: dict[str, Any]) -> None:
        context = self._context
        if not holds(step.get("if"), context):
            self.log.append(f"-- skipped: {step['name']}\n")
            return
        self.log.append(f"-- {step['name']}\n")
        try:
            outputs = self._use(step) if "uses" in step else self._run(step)
        except StepFailedError as error:
            self.log.append(f"{error}\n")
            context["failed"] = True
            outputs = error.outputs
        if "id" in step:
            context["steps"][step["id"]] = {"outputs": outputs}

    def _run(self, step: dict[str, Any]) -> dict[str, str]:
        files = {name: self._home / name for name in ("output", "env", "path")}
        for file in files.values():
            file.write_text("", encoding="utf-8")
        script = self._home / "step.sh"
        assert "${{" not in step["run"], "expressions belong into env"
        script.write_text(step["run"], encoding="utf-8")
        environment = {
            **self._walker.environment,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(files["output"]),
            "GITHUB_ENV": str(files["env"]),
            "GITHUB_PATH": str(files["path"]),
            "GITHUB_STEP_SUMMARY": str(self._home / "summary.md"),
            "GITHUB_WORKSPACE": str(self._home / "workspace"),
            "RUNNER_TEMP": str(self._home / "temp"),
            "HWMATRIX_CACHE": str(self._home / "cache"),
            **self._set,
            **{key: str(fill(value, self._context)) for key, value in step.get("env", {}).items()},
            "PATH": os.pathsep.join([*self._path, self._walker.environment["PATH"]]),
        }
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(
            shell, cwd=self._home / "workspace", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        self.log.append(done.stdout)
        outputs = dict(_pairs(files["output"]))
        self._set |= dict(_pairs(files["env"]))
        self._path = [*files["path"].read_text(encoding="utf-8").split(), *self._path]
        if done.returncode != 0:
            raise StepFailedError(f"exit code {done.returncode}", outputs)
        return outputs

    def _use(self, step: dict[str, Any]) -> dict[str, str]:
        action, _, commit = step["uses"].partition("@")
        assert re.fullmatch(r"[0-9a-f]{40}", commit)
        given = fill(step.get("with", {}), self._context)
        workspace, artifacts = self._home / "workspace", self._walker.folder / "artifacts"
        if action == "actions/checkout":
            assert given["persist-credentials"] is False
            shutil.copytree(self._walker.source, workspace, dirs_exist_ok=True, symlinks=True)
            if (workspace / ".git").exists():  # a copied index knows the times of other files
                subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=workspace, check=True)  # noqa: S607 - any git
        elif action == "actions/upload-artifact":
            if given.get("overwrite"):
                shutil.rmtree(artifacts / given["name"], ignore_errors=True)
            _upload(workspace / given["path"], artifacts / given["name"])
        elif action == "actions/download-artifact":
            names = (
                [given["name"]]
                if "name" in given
                else sorted(fnmatch.filter([each.name for each in artifacts.iterdir()], given["pattern"]))
            )
            for name in names:
                into = workspace / given.get("path", ".") / ("" if len(names) == 1 else name)  # no folder for a single one
                if not (artifacts / name).is_dir():
                    raise StepFailedError(f"no artifact {name}", {})
                shutil.copytree(artifacts / name, into, dirs_exist_ok=True)
        elif action != "actions/setup-python":
            for key in ("subject-checksums", "path"):
                assert key not in given or (workspace / given[key]).exists()
            self.not_run.append(action)
            self.given.append(given)
        return {}


class StepFailedError(Exception):
    def __init__(self, message: str, outputs: dict[str, str]) -> None:
        super().__init__(message)
        self.outputs = outputs


def _upload(path: Path, artifact: Path) -> None:
    """As upload-artifact does it: the files of a folder, neither hidden ones nor empty folders; a name only once."""
    assert not artifact.exists(), f"{artifact.name} is there already"
    found = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else []
    root = path.parent if path.is_file() else path
    shown = [each for each in found if not any(part.startswith(".") for part in each.relative_to(root).parts)]
    if not shown:
        raise StepFailedError(f"no files at {path}", {})
    for each in shown:
        into = artifact / each.relative_to(root)
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(each, into)


def _pairs(file: Path) -> list[tuple[str, str]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    assert all("=" in line and "<<" not in line.partition("=")[0] for line in lines), lines
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines]
