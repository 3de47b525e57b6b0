"""Prints the answers of the integration: every recommendation with its basis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hwmatrix.cli.evidence_text import show_evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hwmatrix.classifier.answers import CompatibilityAnswer, ModelAnswer, PoolAnswer, ReasonAnswer, RequirementsAnswer, TaskAnswer

_YES_NO: Final = {True: "yes", False: "no", None: "not known"}
_UNSURE: Final = 0.8
"""Below this confidence a person is told to look twice."""


def show_classifications(rows: Sequence[Mapping[str, Any]]) -> None:
    """What models are, one a row; with the image that was asked, where there is one."""
    asked = [("target", "target")] if "target" in rows[0] else []
    first = [name for name, _ in asked]
    shown = []
    for row in rows:
        made_of = "\n".join(str(row[name]) for name in ("architecture", "class", "model_class") if row.get(name))
        kind = "\n".join(str(row[name]) for name in ("family", "subfamily", "structure") if row[name]) or "nobody knows"
        shown.append((*(row[key] for _, key in asked), row["model"], made_of, kind, f"{row['confidence']:.2f}: {row['source']}"))
    _table((*first, "model", "architecture, class", "kind", "how sure, and by what"), shown)


def show_models(answers: Sequence[ModelAnswer], only: Sequence[str] = ()) -> None:
    """What each model is, where it works, and where to run it here; of all hardware, or of that alone."""
    for number, answer in enumerate(answers):
        if number:
            typer.echo()
        typer.echo(f"{answer['model_name']}: {_kind(answer)}")
        stands_on = answer["basis"]["recommended_hardware"] + _near(answer["nearness"])
        typer.echo(
            f"  recommended hardware: {answer['recommended_hardware'] or 'none'} ({stands_on}), PyTorch device {answer['torch_device']}"
        )
        typer.echo(f"  recommended template: {answer['recommended_template'] or 'none'}")
        typer.echo(f"  needs: {_needs(answer['resource_requirements'])}")
        _show_reasons("why", answer["reasons"])
        for expected in answer["expected"]:
            amounts = _amounts(expected["resource_requirements"])
            typer.echo(f"  expected by the {expected['document']}: {expected['recommended_hardware']}, {amounts}")
        _show_profile(answer["hardware_profile"], only)
    show_evidence(answers[0]["evidence"] if answers else [])


def show_task(answer: TaskAnswer) -> None:
    """The models for a task, the best first, and those that fit it and are not recommended."""
    among = f" on {', '.join(answer['hardware_constraints'])}" if answer["hardware_constraints"] else ""
    typer.echo(f"models for {answer['task']}{among}, the best first:")
    rows = []
    for number, model in enumerate(answer["recommendations"], 1):
        here = "" if model["available"] else " (not here)"
        stands_on = model["basis"] + _near(model["nearness"])
        kind = f"{model['family']}, {model['subfamily']}\n{model['fit']}"
        hardware = f"{model['recommended_hardware']}{here}\n{stands_on}"
        rows.append((str(number), model["model_name"], kind, hardware, _memory(model["resource_requirements"])))
    _table(("", "model", "kind", "hardware", "memory"), rows)
    for model in answer["recommendations"]:
        typer.echo(f"{model['model_name']}: {_first(model['reasons'])}")
    for refused in answer["not_recommended"]:
        typer.echo(f"not recommended: {refused['model_name']}")
        _show_reasons("why", refused["reasons"])
    show_evidence(answer["evidence"])


def show_pool(answer: PoolAnswer) -> None:
    """The configuration of a pool."""
    config, needs, hardware = answer["resource_pool_config"], answer["resource_requirements"], answer["hardware_recommendations"]
    typer.echo(f"low-memory mode: {_YES_NO[config['low_memory_mode']]}")
    typer.echo(f"timeout: {config['recommended_timeout_mins']} minutes")
    typer.echo(
        f"memory: {_mib(needs['max_memory_mb'])} for the largest, {_mib(needs['total_memory_mb'])} for all, of {_mib(needs['budget_mb'])}"
    )
    typer.echo(f"hardware: {hardware['preferred_hardware']} ({answer['basis']}), PyTorch device {hardware['torch_device']}")
    _table(("model", "best hardware by itself"), [(name, best or "none") for name, best in hardware["by_model"].items()])
    _show_reasons("why", answer["reasons"])
    show_evidence(answer["evidence"])


def show_hardware(found: Mapping[str, Mapping[str, CompatibilityAnswer]]) -> None:
    """Which models work on which hardware, and what each answer stands on."""
    names = list(next(iter(found.values()), {}))
    _table(("model", *found), [(name, *(_works(answers[name]) for answers in found.values())) for name in names])
    typer.echo("why: hwmatrix classify --model M")


def _works(answer: CompatibilityAnswer) -> str:
    level = f", {answer['level']}" if answer["level"] else ""
    return f"{_YES_NO[answer['compatible']]}{level}\n{answer['basis']}{_near(answer['nearness'])}"


def _near(nearness: str | None) -> str:
    """Whose measurements decided, where they were not of the model itself."""
    return f", by its {nearness}" if nearness in {"architecture", "family"} else ""


def _kind(answer: ModelAnswer) -> str:
    found = answer["classification"]
    sure = f"confidence {answer['confidence']:.2f}: {found['source']}"
    if answer["family"] is None:
        return f"nobody knows what it is ({sure})"
    doubt = "" if answer["confidence"] >= _UNSURE else "; this is a guess, so give its class, its tasks or its folder to be sure"
    return f"{answer['family']}, {answer['subfamily'] or 'no known subfamily'} ({sure}{doubt})"


def _needs(needs: RequirementsAnswer) -> str:
    if needs["min_memory_mb"] is None:
        return f"not known: {needs['note']}"
    return f"{_amounts(needs)} ({needs['basis']})"


def _memory(needs: RequirementsAnswer) -> str:
    amount = needs["min_memory_mb"]
    return "not known" if amount is None else f"{amount:.0f} MiB\n{needs['basis']}"


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
    shown = {name: entry for name, entry in profile.items() if not only or name in only}
    rows = []
    for name, entry in shown.items():
        works = _YES_NO[entry["compatible"]] + (f", {entry['level']}" if entry["level"] else "")
        peak, basis = entry["memory_usage"]["peak"], entry["memory_usage"]["basis"]
        needs = "not known" if peak is None else f"{peak:.0f} MiB ({basis})"
        rows.append((name, f"{works} ({entry['basis']}{_near(entry['nearness'])})", _YES_NO[entry["available"]], needs))
    _table(("hardware", "the model works", "here", "needs"), rows)
    for name, entry in shown.items():
        typer.echo(f"  {name}: {entry['reason']}")
        if not entry["available"]:
            typer.echo(f"  {name} is not here: {entry['unavailable_because']}")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows as a table; a word that is too long for its column goes on in the next line."""
    table = Table(show_lines=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    Console().print(table)
