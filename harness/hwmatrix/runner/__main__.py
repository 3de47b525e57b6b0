"""The entry point of an image: ``python -m hwmatrix.runner bundles|run|...``. It exchanges files and events with the host."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hwmatrix.basics.garbage import without_collection
from hwmatrix.basics.interrupts import INTERRUPTED, forget_interrupt, interrupt_on_sigterm
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import HwmatrixError
from hwmatrix.records import Plan, plan_from_json
from hwmatrix.runner.events import emit
from hwmatrix.runner.forked import end_with_parent


def main(argv: list[str]) -> int:
    """Run one command of the host; return the exit code."""
    arguments = _parser().parse_args(argv)
    interrupt_on_sigterm()
    end_with_parent()
    try:
        arguments.work(arguments)
    except HwmatrixError as error:
        emit("failed", message=str(error), exit_code=error.exit_code)
        return error.exit_code
    except KeyboardInterrupt:
        forget_interrupt()
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hwmatrix.runner", description=__doc__)
    works = parser.add_subparsers(required=True)
    bundles = works.add_parser("bundles", help="build the bundles of a plan")
    bundles.add_argument("--models", help="only the models listed in models-<MODELS>.json beside the plan, and the canaries")
    bundles.add_argument("--every-exporter", action="store_true", help="do not stop at the first exporter that succeeds")
    bundles.set_defaults(work=_bundles)
    run = works.add_parser("run", help="run one target's cells of a plan")
    run.add_argument("--target", required=True)
    run.add_argument("--cells", help="run only the cells listed in cells-<CELLS>.json beside the plan")
    run.set_defaults(work=_run)
    for work in (bundles, run):
        work.add_argument("--at-once", type=int, default=1, metavar="N", help="run up to N in parallel, limited by the cores")
    tests = works.add_parser("operator-tests", help="write the ONNX standard's operator tests into the cache")
    tests.set_defaults(work=_operator_tests)
    operators = works.add_parser("operators", help="run the operator tests on one target")
    operators.add_argument("--target", required=True)
    operators.add_argument("--tests", default="", help="run only the tests whose name contains a match of this regular expression")
    operators.add_argument("--resume", action="store_true", help="skip the tests listed in finished-<TARGET>.json beside the plan")
    operators.set_defaults(work=_operators)
    survey = works.add_parser("survey", help="write the detected hardware and the classification of the plan's models to a shard")
    survey.add_argument("--target", required=True)
    survey.set_defaults(work=_survey)
    for work in (run, operators, survey):
        work.add_argument("--host", required=True, help="the machine's identity")
        work.add_argument("--image")
        work.add_argument("--image-digest")
    for work in (bundles, run, tests, operators, survey):
        work.add_argument("--plan", type=Path, required=True)
        work.add_argument("--cache", type=Path, required=True, help="the folder of bundles")
        work.add_argument("--out", type=Path, required=True)
    return parser


def _plan(path: Path) -> Plan:
    return plan_from_json(path.read_bytes(), where=str(path))


def _bundles(arguments: argparse.Namespace) -> None:
    from hwmatrix.models import exporter_imports, onnx_export
    from hwmatrix.records import Backend, Size
    from hwmatrix.runner import exports
    from hwmatrix.runner.bundles import BundleOrder, all_cached, build_all
    from hwmatrix.runner.parent import preload

    plan = _plan(arguments.plan)
    listed = _listed(arguments.plan, "models", arguments.models)
    models = frozenset((name, Size(size), batch, length) for name, size, batch, length in listed) if listed is not None else None
    order = BundleOrder(
        plan=plan,
        cache=arguments.cache,
        out=arguments.out,
        models=models,
        every_exporter=arguments.every_exporter,
        at_once=arguments.at_once,
    )
    if not all_cached(order):  # otherwise no child needs the frameworks, and their import would take longest
        with without_collection():
            if exports.wanted(plan):
                exporter_imports.for_onnx()
            if any({onnx_export.FOR_OPENVINO, onnx_export.OPENVINO} & {*names} for names in exports.wanted_by_name(plan).values()):
                exporter_imports.for_openvino()
        preload(Backend.CPU, order.chosen)
    build_all(order)


def _listed(plan: Path, what: str, name: str | None) -> Any:
    """The host's selection in a file beside the plan; None: everything in the plan."""
    return read_json(plan.with_name(f"{what}-{name}.json").read_text(encoding="utf-8")) if name else None


def _run(arguments: argparse.Namespace) -> None:
    from hwmatrix.records.bundle_index import INDEX, read_index
    from hwmatrix.runner.parent import ShardOrder, run_shard

    plan = _plan(arguments.plan)
    listed = _listed(arguments.plan, "cells", arguments.cells)
    wanted = set(listed) if listed is not None else None
    cells = tuple(cell for cell in plan.cells if cell.target == arguments.target and (wanted is None or cell.key in wanted))
    run_shard(
        ShardOrder(
            plan=plan,
            target=plan.target(arguments.target),
            cells=cells,
            bundles=read_index(arguments.plan.parent / "bundles" / INDEX),
            cache=arguments.cache,
            out=arguments.out,
            host=arguments.host,
            image=arguments.image,
            image_digest=arguments.image_digest,
            at_once=arguments.at_once,
        )
    )


def _operator_tests(arguments: argparse.Namespace) -> None:
    from hwmatrix.models.operator_tests import make

    emit("operator_tests", version=make(arguments.cache).name)


def _operators(arguments: argparse.Namespace) -> None:
    from hwmatrix.runner.operator_execution import OperatorOrder, run_operators

    plan = _plan(arguments.plan)
    finished = _listed(arguments.plan, "finished", arguments.target) if arguments.resume else ()
    run_operators(
        OperatorOrder(
            plan=plan,
            target=plan.target(arguments.target),
            pattern=arguments.tests,
            finished=frozenset(finished),
            cache=arguments.cache,
            out=arguments.out,
            host=arguments.host,
            image=arguments.image,
            image_digest=arguments.image_digest,
        )
    )


def _survey(arguments: argparse.Namespace) -> None:
    from hwmatrix.runner.survey import SurveyOrder, survey

    plan = _plan(arguments.plan)
    survey(
        SurveyOrder(
            plan=plan,
            target=plan.target(arguments.target),
            out=arguments.out,
            host=arguments.host,
            image=arguments.image,
            image_digest=arguments.image_digest,
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
