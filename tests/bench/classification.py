"""How well models are classified, measured on all model types of transformers: the numbers of docs/classification.md.

    python tests/bench/classification.py            print the tables
    python tests/bench/classification.py --write    put them into docs/classification.md
    python tests/bench/classification.py --missing  types of the installed transformers that taxonomy.yaml lacks, with a proposal

The table of architectures was made from the mappings that are the ground truth here, so measuring with the full table says little. "Held
out" uses a table with only the types of transformers 4.46.3, without transformers installed, and tests the types of both releases or only
those of the newer one. ``alone`` tests each type with a table that has all types but that one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime as dt
import importlib.metadata
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import classification_truth as truth

from hwmatrix.models import mappings
from hwmatrix.models.classify import classify
from hwmatrix.models.evidence import Known, Witness, from_name, witnesses
from hwmatrix.models.taxonomy import Taxonomy, taxonomy
from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hwmatrix.records import Classification

Heard = tuple[str, Witness, Family]
"""A question, a witness's answer, and the true family."""
PAGE: Final = Path(__file__).parents[2] / "docs" / "classification.md"
BEGIN, END = "<!-- measured: tests/bench/classification.py --write -->", "<!-- end of what was measured -->"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A question, the stated confidence, the answered family (None: no answer), and the true one."""

    question: str
    stated: float
    said: Family | None
    true: Family

    @property
    def right(self) -> bool:
        """Whether the answer is the true family."""
        return self.said is self.true


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """The number of questions, of answers, and of right answers."""

    asked: int
    answered: int
    right: int

    @property
    def accuracy(self) -> float:
        """The share of all questions with a right answer."""
        return self.right / self.asked

    @property
    def precision(self) -> float:
        """The share of answers that are right."""
        return self.right / self.answered


def score(answers: Iterable[Answer]) -> Score:
    """Count answers."""
    listed = list(answers)
    said = [answer for answer in listed if answer.said is not None]
    return Score(asked=len(listed), answered=len(said), right=sum(answer.right for answer in said))


def then() -> Taxonomy:
    """The table as it would have been with transformers 4.46.3."""
    return taxonomy().only(frozenset(truth.older()))


def without(types: Iterable[str]) -> Taxonomy:
    """The table without these types."""
    return taxonomy().only(frozenset(taxonomy().architectures) - frozenset(types))


@contextlib.contextmanager
def no_transformers() -> Iterator[None]:
    """Simulate a machine without transformers: its mappings are not used."""
    with mock.patch.object(mappings, "installed", return_value={}):
        yield


def kinds() -> dict[str, list[Answer]]:
    """The answers of each kind of evidence, held out. Each type counts once for each class or task."""
    found: dict[str, list[Answer]] = collections.defaultdict(list)
    with no_transformers():
        heard = [*_of_types(), *_of_classes(), *_of_uses(), *_of_names()]
    for question, witness, true in (*heard, *_of_mappings()):
        if witness.subfamily:
            said = taxonomy().family(witness.subfamily)
            found[witness.kind].append(Answer(question=question, stated=witness.confidence, said=said, true=true))
    older, stated = truth.single(truth.older()), taxonomy().confidence.architecture
    for name, family in truth.single(truth.families()).items():
        if name in older:
            found["architecture"].append(Answer(question=name, stated=stated, said=older[name], true=family))
    return dict(found)


def _of_mappings() -> Iterator[Heard]:
    """Answers from the installed transformers' mappings alone. They are the ground truth, so this only tests how they are read."""
    for name, family in truth.single(truth.families()).items():
        yield from _heard(name, family, witnesses(Known(architecture=name), taxonomy().only(frozenset())), "mapping")


def _of_types() -> Iterator[Heard]:
    """Answers for the names of types that are newer than the table."""
    for name, family in truth.single(truth.families()).items():
        if name not in truth.older():
            yield from _heard(name, family, witnesses(Known(architecture=name), then()), "words_of_architecture")


def _of_classes() -> Iterator[Heard]:
    types, known = truth.single(truth.families()), then()
    for name, class_name in truth.classes():
        if name in types:
            heard = witnesses(Known(model_class=class_name), known)
            yield from _heard(class_name, types[name], heard, "head", "usual_head", "stem", "words_of_class")


def _of_uses() -> Iterator[Heard]:
    types, known = truth.single(truth.families()), then()
    for name, tag in typed_tags():
        yield from _heard(f"{name}, {tag}", types[name], witnesses(Known(tasks=(tag,)), known), "task", "usual_task")
    for name, method in typed_methods():
        yield from _heard(f"{name}.{method}", types[name], witnesses(Known(methods=(method,)), known), "method")


def _of_names() -> Iterator[Heard]:
    known = then()
    for name, family in truth.single({name: each for name, (_types, each) in truth.names().items()}).items():
        witness = from_name(name, known)
        yield from _heard(name, family, [witness] if witness else [], "type_in_name", "words_of_name")


def _heard(question: str, true: Family, heard: Iterable[Witness], *only: str) -> Iterator[Heard]:
    yield from ((question, witness, true) for witness in heard if witness.kind in only)


def typed_tags() -> list[tuple[str, str]]:
    """Every pair of a type with one family and a hub tag whose pipeline loads it."""
    listed, types = truth.listed(), truth.single(truth.families())
    return sorted({(name, tag) for tag, tasks in truth.tags().items() for task in tasks for name in listed[task] if name in types})


def typed_methods() -> list[tuple[str, str]]:
    """Every pair of a type with one family and a method in the table that one of its classes has."""
    types, names = truth.single(truth.families()), taxonomy().methods
    pairs = ((name, method) for name, class_name in truth.classes() for method in truth.methods().get(class_name, ()))
    return sorted({(name, method) for name, method in pairs if name in types and method in names})


def answer(question: str, true: Family, found: Classification) -> Answer:
    """Convert a classification to an answer."""
    return Answer(question=question, stated=found.confidence, said=found.family, true=true)


def by_type(known: Callable[[str], Taxonomy], types: Iterable[str]) -> dict[str, list[Answer]]:
    """:func:`classify` on types: from the configuration, the architecture alone, each class alone, each task alone."""
    true, wanted = truth.single(truth.families()), set(types)
    found: dict[str, list[Answer]] = {"configuration": [], "architecture": [], "class": [], "task": []}
    for name, class_name in truth.classes():
        if name in wanted:
            config = {"model_type": name, "architectures": [class_name]}
            found["configuration"].append(answer(f"{name}, {class_name}", true[name], classify("x", config=config, known=known(name))))
            found["class"].append(answer(class_name, true[name], classify("x", model_class=class_name, known=known(name))))
    for name in sorted(wanted):
        found["architecture"].append(answer(name, true[name], classify("x", architecture=name, known=known(name))))
    for name, tag in typed_tags():
        if name in wanted:
            found["task"].append(answer(f"{name}, {tag}", true[name], classify("x", tasks=[tag], known=known(name))))
    return found


def by_name(known: Callable[[frozenset[str]], Taxonomy]) -> list[Answer]:
    """:func:`classify` on the names of the checkpoints in transformers' documentation."""
    listed = truth.names()
    true = truth.single({name: each for name, (_types, each) in listed.items()})
    return [answer(name, family, classify(name, known=known(listed[name][0]))) for name, family in true.items()]


def made_names() -> list[Answer]:
    """:func:`classify` on the name ``owner/prefix-<type>-base`` of each type."""
    names = {f"owner/prefix-{name}-base": family for name, family in truth.single(truth.families()).items()}
    return [answer(name, family, classify(name)) for name, family in names.items()]


def several() -> tuple[Score, Score]:
    """For the types and the names that transformers puts into several families: how many answers are one of those."""
    types = {name: each for name, each in truth.families().items() if len(each) > 1}
    names = {name: each for name, (_types, each) in truth.names().items() if len(each) > 1}
    right_types = sum(classify("x", architecture=name).family in each for name, each in types.items())
    right_names = sum(classify(name).family in each for name, each in names.items())
    return (
        Score(asked=len(types), answered=len(types), right=right_types),
        Score(asked=len(names), answered=len(names), right=right_names),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """All measurements. ``held_out``: with the table of 4.46.3, without transformers. ``alone``: each type without itself in the table."""

    whole: dict[str, list[Answer]]
    held_out: dict[str, list[Answer]]
    newer: dict[str, list[Answer]]
    alone: dict[str, list[Answer]]
    kinds: dict[str, list[Answer]]


def measure() -> Results:
    """Measure everything. Takes about 10 s, mostly for reading transformers' source."""
    types, table, old = truth.single(truth.families()), taxonomy(), then()
    with no_transformers():
        whole = by_type(lambda _name: table, types) | {"name": by_name(lambda _types: table), "made-up name": made_names()}
        held_out = by_type(lambda _name: old, types) | {"name": by_name(lambda _types: old)}
        newer = by_type(lambda _name: old, types.keys() - truth.older().keys())
        alone = by_type(lambda name: without([name]), types) | {"name": by_name(without)}
    newer["name"] = [each for each in held_out["name"] if not truth.names()[each.question][0] & truth.older().keys()]
    return Results(whole=whole, held_out=held_out, newer=newer, alone=alone, kinds=kinds())


def reliability(answers: dict[str, list[Answer]]) -> list[tuple[str, float, Score]]:
    """Answers grouped by stated confidence: the range, the mean stated confidence, and the score."""
    said = [each for listed in answers.values() for each in listed if each.said is not None]
    found = []
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.0)):
        within = [each for each in said if low <= each.stated < high]
        if within:
            found.append((f"{low:.2f} to {high:.2f}", math.fsum(each.stated for each in within) / len(within), score(within)))
    return found


def render(results: Results) -> str:
    """The measured part of docs/classification.md."""
    types, (ambiguous, names) = truth.families(), several()
    version, today = importlib.metadata.version("transformers"), dt.datetime.now(tz=dt.UTC).date().isoformat()
    lines = [
        f"Measured on {today} with transformers {version}, which has {len(types)} model types in its mappings.",
        f"{len(truth.single(types))} of them have exactly one family and are tested below.",
        f"Of {ambiguous.asked} types with several families, {ambiguous.right} are classified into one of these.",
        f"Of {names.asked} names with several families, {names.right} are.",
        "",
        "| what is known | questions | right | held out | of newer types alone | each type unknown |",
        "|---|---|---|---|---|---|",
    ]
    for what, answers in results.whole.items():
        columns = [_share(each.get(what)) for each in (results.held_out, results.newer, results.alone)]
        lines.append(f"| {what} | {len(answers)} | {_share(answers)} | {' | '.join(columns)} |")
    lines += ["", "| kind of evidence | answers, held out | right | stated |", "|---|---|---|---|"]
    for kind in dataclasses.fields(taxonomy().confidence):
        counted = score(results.kinds[kind.name])
        lines.append(f"| `{kind.name}` | {counted.answered} | {counted.precision:.3f} | {getattr(taxonomy().confidence, kind.name):.2f} |")
    for title, answers in (("held out", results.held_out), ("with the whole table", results.whole)):
        lines += ["", f"| stated confidence, {title} | answers | mean stated | right |", "|---|---|---|---|"]
        lines += [f"| {span} | {each.answered} | {mean:.3f} | {each.precision:.3f} |" for span, mean, each in reliability(answers)]
    return "\n".join(lines)


def _share(answers: list[Answer] | None) -> str:
    """The accuracy, and the share of questions without an answer."""
    if answers is None:
        return ""
    counted = score(answers)
    silent = 1 - counted.answered / counted.asked
    return f"{100 * counted.accuracy:.1f} %" + (f" ({100 * silent:.0f} % unanswered)" if silent else "")


def missing() -> dict[str, str]:
    """The types of transformers that the table lacks, each with the subfamily that transformers' mappings imply."""
    table = taxonomy()
    lacking = [name for name in truth.families() if name not in table.architectures and name not in table.outside]
    tasks = {**table.mappings, **table.usual_mappings}
    return {name: next((kind for task, kind in tasks.items() if name in truth.listed().get(task, {})), "?") for name in lacking}


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description="How well models are classified.")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/classification.md")
    parser.add_argument("--wrong", action="store_true", help="list the wrong answers of the whole table")
    parser.add_argument("--missing", action="store_true", help="only list the types that taxonomy.yaml lacks")
    arguments = parser.parse_args()
    if arguments.missing:
        print("\n".join(f"{subfamily}: {name}" for name, subfamily in missing().items()))  # noqa: T201 - it is a command
        return
    results = measure()
    text = render(results)
    print(text)  # noqa: T201 - it is a command
    if arguments.wrong:
        wrong = {(what, each.question, each.said, each.true) for what, listed in results.whole.items() for each in listed if not each.right}
        print("\n".join(f"{what}: {question}: {said or 'nothing'}, not {true}" for what, question, said, true in sorted(wrong, key=str)))  # noqa: T201
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
        PAGE.write_text(pattern.sub(lambda _match: f"{BEGIN}\n\n{text}\n\n{END}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
