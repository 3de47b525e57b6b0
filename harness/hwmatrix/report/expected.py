"""Expected against measured: the expectations of design documents and priorities, compared with the results of a run.

The rules are those of docs/expected.md. What was expected is never shown as a result: if nothing was measured, there is no level.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pydantic

from hwmatrix.knowledge.compatibility import LEVELS, Tally
from hwmatrix.knowledge.priorities import priority_for, reason_for
from hwmatrix.matrix.priors import Expectation as Word
from hwmatrix.matrix.priors import priors_for
from hwmatrix.records import Backend, Classification, Execution, Family, Level
from hwmatrix.report.expected_contract import (
    Expectation,
    ExpectedDocument,
    FamilyOrder,
    ModelEvidence,
    PriorEntry,
    Ranking,
    Verdict,
)
from hwmatrix.report.markdown import markdown_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hwmatrix.matrix.priors import Prior
    from hwmatrix.report.rows import ReportRows

_COUNTED: Final = {"high": Level.HIGH, "medium": Level.MEDIUM, "low": Level.LOW, "none": Level.NONE}
_FAMILIES: Final = tuple(Family)
_VERDICTS: Final = tuple(Verdict)


def compare_expected(rows: ReportRows) -> tuple[Expectation, ...]:
    """Every family on every hardware of the run, disagreements first: worse, better, contradictory, then the others."""
    found = [_expectation(row, rows.run.run_id) for row in rows.analysis.expected]
    return tuple(sorted(found, key=lambda each: (_VERDICTS.index(each.verdict), _FAMILIES.index(each.family))))


def compare_orders(rows: ReportRows) -> tuple[FamilyOrder, ...]:
    """For every family of the run, the order in which hardware is tried, against the fastest that was measured."""
    families = {Family(row["family"]) for row in rows.analysis.expected}
    return tuple(_order(family, rows) for family in _FAMILIES if family in families)


def expected_document(rows: ReportRows) -> ExpectedDocument:
    """expected.json as a record."""
    expectations = compare_expected(rows)
    counted = Counter(each.verdict for each in expectations)
    return ExpectedDocument(
        run_id=rows.run.run_id,
        counts={verdict: counted[verdict] for verdict in Verdict if counted[verdict]},
        expectations=expectations,
        orders=compare_orders(rows),
    )


def expected_json(rows: ReportRows) -> str:
    """The text of expected.json."""
    data = pydantic.TypeAdapter(ExpectedDocument).dump_python(expected_document(rows), mode="json")
    return json.dumps({"schema": data.pop("schema"), **data}, indent=2, ensure_ascii=False) + "\n"


def expected_md(rows: ReportRows) -> str:
    """The text of expected.md."""
    document = expected_document(rows)
    groups = [(verdict, [each for each in document.expectations if each.verdict is verdict]) for verdict in document.counts]
    titles = list(dict.fromkeys(prior.document for each in document.expectations for prior in each.priors))
    text = (
        markdown_environment()
        .get_template("expected.md.j2")
        .render(
            run=rows.run,
            parts=rows.parts,
            document=document,
            groups=groups,
            titles=titles,
            said=lambda priors: _prior_words(priors, titles),
            measured=lambda levels: str(Tally(levels=levels)),
        )
    )
    return text.strip() + "\n"


def _expectation(row: Mapping[str, Any], run_id: str) -> Expectation:
    family, hardware, execution = Family(row["family"]), str(row["hardware"]), Execution(row["execution"])
    levels = {level: row[name] for name, level in _COUNTED.items() if row[name]}
    known = priors_for(family, Backend(hardware)) if hardware in tuple(Backend) else ()
    counted = Tally(levels=levels) if levels else None
    judged = {prior: _judge(prior, counted, hardware=row["execution"] == Execution.HARDWARE) for prior in known} if counted else {}
    order = priority_for(_family_only(family))
    return Expectation(
        family=family,
        hardware=hardware,
        execution=execution,
        verdict=_overall(judged) if counted else Verdict.NOT_MEASURED,
        priors=tuple(
            PriorEntry(document=prior.document, expectation=prior.expectation, refused=prior.refused, verdict=judged.get(prior))
            for prior in known
        ),
        place=order.index(hardware) + 1 if hardware in order else None,
        level=counted.level if counted else None,
        levels=levels,
        models=row["models"],
        passing=row["passing"],
        pass_share=row["pass_share"],
        cells=row["cells"],
        passed_cells=row["passed_cells"],
        reason=row["reason"],
        evidence=tuple(ModelEvidence(**cell) for cell in row["evidence"]),
        run_id=run_id,
    )


def _judge(prior: Prior, counted: Tally, *, hardware: bool) -> Verdict:
    """One prior against what was measured. Only what ran on ``hardware`` can be High."""
    if not prior.works:
        return Verdict.BETTER if counted.working else Verdict.AGREES
    if prior.expectation is Word.BASELINE:
        return Verdict.AGREES if counted.working == counted.models else Verdict.WORSE
    if prior.level is None:
        return Verdict.AGREES if counted.compatible else Verdict.WORSE
    comparable = Level.MEDIUM if prior.level is Level.HIGH and not hardware else prior.level
    difference = LEVELS.index(counted.level) - LEVELS.index(comparable)
    return Verdict.WORSE if difference > 0 else Verdict.BETTER if difference < 0 else Verdict.AGREES


def _overall(judged: Mapping[Prior, Verdict]) -> Verdict:
    """The verdict of several priors: contradictory if their verdicts differ and the documents disagree, else the first by order."""
    verdicts = set(judged.values())
    if not verdicts:
        return Verdict.UNEXPECTED
    if len(verdicts) > 1 and _contradict(tuple(judged)):
        return Verdict.CONTRADICTORY
    return min(verdicts, key=_VERDICTS.index)


def _contradict(known: tuple[Prior, ...]) -> bool:
    """Whether documents contradict each other: one says that it works and another that it doesn't, or they name different levels."""
    named = {prior.level for prior in known if prior.works and prior.level is not None}
    return len({prior.works for prior in known}) > 1 or len(named) > 1


def _order(family: Family, rows: ReportRows) -> FamilyOrder:
    kind = _family_only(family)
    order = priority_for(kind)
    duels = [row for row in rows.analysis.duels if row["family"] == family]
    timed = {row["hardware"] for row in duels}
    expected = next((hardware for hardware in order if hardware in timed), None)
    against = [row for row in duels if row["other"] == expected]
    rival = max(against, key=lambda row: row["ratio"], default=None)
    ranking = _ranking(rival)
    return FamilyOrder(
        family=family,
        verdict=ranking,
        order=order,
        stands_on=reason_for(kind),
        expected=expected,
        rival=rival["hardware"] if rival else None,
        fastest=rival["hardware"] if rival and ranking is Ranking.OTHER else expected if ranking is Ranking.AGREES else None,
        ratio=rival["ratio"] if rival else None,
        compared=rival["compared"] if rival else 0,
        faster=rival["faster"] if rival else 0,
        slower=rival["slower"] if rival else 0,
        contended=rival["contended"] if rival else 0,
    )


def _ranking(rival: Mapping[str, Any] | None) -> Ranking:
    """Which hardware is faster: the mean and the cells with a significant difference must agree."""
    if rival is None:
        return Ranking.NOT_MEASURED
    if rival["ratio"] > 1 and rival["faster"] > rival["slower"]:
        return Ranking.OTHER
    return Ranking.AGREES if rival["ratio"] < 1 and rival["slower"] > rival["faster"] else Ranking.TIED


def _family_only(family: Family) -> Classification:
    """A classification in which only the family is known."""
    return Classification(
        model_name=family.value,
        architecture=None,
        model_class=None,
        family=family,
        subfamily=None,
        structure=None,
        confidence=0.0,
        evidence="none",
        source="the family as such",
    )


def _prior_words(priors: Iterable[PriorEntry], titles: Sequence[str]) -> str:
    """The documents' expectations, each once, with the documents' numbers and the verdict, if any: ``High (1, 2): worse``."""
    numbers: defaultdict[tuple[str, Verdict | None], list[int]] = defaultdict(list)
    for prior in priors:
        word = f"{prior.expectation.value}, marked as not supported" if prior.refused else prior.expectation.value
        numbers[word, prior.verdict].append(titles.index(prior.document) + 1)
    told = []
    for (word, verdict), found in numbers.items():
        how = f": {verdict.value.removesuffix(' than expected')}" if verdict else ""
        told.append(f"{word} ({', '.join(str(number) for number in found)}){how}")
    return "; ".join(told)
