"""How the answers of the integration are printed for people: every recommendation with what it stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from hwmatrix.cli.inspecting import print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hwmatrix.advice.answers import CompatibilityAnswer, ModelAnswer, PoolAnswer, ReasonAnswer, RequirementsAnswer, TaskAnswer

_YES_NO: Final = {True: "yes", False: "no", None: "not known"}
_UNSURE: Final = 0.8
"""Below this confidence a person is told to look twice."""


def cell(value: Any) -> str:
    """A value in a table: nothing where there is none, confidences in two places."""
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def show_models(answers: Sequence[ModelAnswer], only: Sequence[str] = ()) -> None:
    """What each model is, where it works, and where to run it here; of all hardware, or of that alone."""
    for number, answer in enumerate(answers):
        if number:
            typer.echo()
        typer.echo(f"{answer['model_name']}: {_kind(answer)}")
        hardware = answer["recommended_hardware"] or "none"
        typer.echo(f"  recommended hardware: {hardware} ({_basis(answer)}), PyTorch device {answer['torch_device']}")
        typer.echo(f"  recommended template: {answer['recommended_template'] or 'none'}")
        typer.echo(f"  needs: {_needs(answer['resource_requirements'])}")
        _show_reasons("why", answer["reasons"])
        for expected in answer["expected"]:
            amounts = _amounts(expected["resource_requirements"])
            typer.echo(f"  expected by the {expected['document']}: {expected['recommended_hardware']}, {amounts}")
        _show_profile(answer["hardware_profile"], only)


def show_task(answer: TaskAnswer) -> None:
    """The models for a task, the best first, and those that fit it and are not recommended."""
    among = f" on {', '.join(answer['hardware_constraints'])}" if answer["hardware_constraints"] else ""
    typer.echo(f"models for {answer['task']}{among}, the best first:")
    rows = []
    for number, model in enumerate(answer["recommendations"], 1):
        here = "" if model["available"] else " (not here)"
        stands_on = model["basis"] + (f", by its {model['nearness']}" if model["nearness"] in {"architecture", "family"} else "")
        kind = f"{model['family'] or ''} {model['subfamily'] or ''}".strip()
        rows.append(
            (
                str(number),
                model["model_name"],
                f"{kind}\n{model['fit']}",
                f"{model['recommended_hardware']}{here}\n{stands_on}",
                _needs(model["resource_requirements"]),
                _first(model["reasons"]),
            )
        )
    print_table(("", "model", "kind", "hardware", "needs", "why"), rows)
    for refused in answer["not_recommended"]:
        typer.echo(f"not recommended: {refused['model_name']}")
        _show_reasons("why", refused["reasons"])


def show_pool(answer: PoolAnswer) -> None:
    """The configuration of a pool."""
    config, needs, hardware = answer["resource_pool_config"], answer["resource_requirements"], answer["hardware_recommendations"]
    typer.echo(f"low-memory mode: {_YES_NO[config['low_memory_mode']]}")
    typer.echo(f"time-out: {config['recommended_timeout_mins']} minutes")
    typer.echo(
        f"memory: {_mib(needs['max_memory_mb'])} for the largest, {_mib(needs['total_memory_mb'])} for all, of {_mib(needs['budget_mb'])}"
    )
    typer.echo(f"hardware: {hardware['preferred_hardware']} ({answer['basis']}), PyTorch device {hardware['torch_device']}")
    print_table(("model", "best hardware by itself"), [(name, best or "none") for name, best in hardware["by_model"].items()])
    _show_reasons("why", answer["reasons"])


def show_hardware(found: Mapping[str, Mapping[str, CompatibilityAnswer]]) -> None:
    """Which models work on which hardware, and what each answer stands on."""
    names = list(next(iter(found.values()), {}))
    print_table(("model", *found), [(name, *(_works(answers[name]) for answers in found.values())) for name in names])
    typer.echo("why: hwmatrix classify --model M")


def _works(answer: CompatibilityAnswer) -> str:
    near = f", by its {answer['nearness']}" if answer["nearness"] in {"architecture", "family"} else ""
    level = f", {answer['level']}" if answer["level"] else ""
    return f"{_YES_NO[answer['compatible']]}{level}\n{answer['basis']}{near}"


def _kind(answer: ModelAnswer) -> str:
    found = answer["classification"]
    sure = f"confidence {answer['confidence']:.2f}: {found['source']}"
    if answer["family"] is None:
        return f"nobody knows what it is ({sure})"
    doubt = "" if answer["confidence"] >= _UNSURE else "; this is a guess, so give its class, its tasks or its folder to be sure"
    return f"{answer['family']}, {answer['subfamily'] or 'no known subfamily'} ({sure}{doubt})"


def _basis(answer: ModelAnswer) -> str:
    near = answer["nearness"]
    return answer["basis"]["recommended_hardware"] + (f", by its {near}" if near in {"architecture", "family"} else "")


def _needs(needs: RequirementsAnswer) -> str:
    if needs["min_memory_mb"] is None:
        return f"not known: {needs['note']}"
    return f"{_amounts(needs)} ({needs['basis']})"


def _amounts(needs: Mapping[str, Any]) -> str:
    known = (
        ("min_memory_mb", "{:.0f} MiB"),
        ("recommended_memory_mb", "better {:.0f}"),
        ("cpu_cores", "{} cores"),
        ("disk_space_mb", "disk {} MiB"),
        ("batch_size", "batches up to {}"),
    )
    return ", ".join(form.format(needs[name]) for name, form in known if needs[name] is not None)


def _mib(amount: float | None) -> str:
    return "an unknown amount" if amount is None else f"{amount:.0f} MiB"


def _first(reasons: Sequence[ReasonAnswer]) -> str:
    return reasons[0]["text"] if reasons else ""


def _show_reasons(title: str, reasons: Iterable[ReasonAnswer]) -> None:
    for reason in reasons:
        typer.echo(f"  {title}: [{reason['basis']}] {reason['text']}")


def _show_profile(profile: Mapping[str, Mapping[str, Any]], only: Sequence[str]) -> None:
    rows = []
    for name, entry in profile.items():
        if only and name not in only:
            continue
        works = _YES_NO[entry["compatible"]] + (f", {entry['level']}" if entry["level"] else "")
        here = "yes" if entry["available"] else f"no: {entry['unavailable_because']}"
        peak = entry["memory_usage"]["peak"]
        needs = "" if peak is None else f"{peak:.0f} MiB\n{entry['memory_usage']['basis']}"
        rows.append((name, f"{works}\n{entry['basis']}", here, needs, entry["reason"]))
    print_table(("hardware", "the model works", "here", "needs", "why"), rows)
