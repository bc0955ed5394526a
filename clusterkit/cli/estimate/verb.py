"""`clusterkit estimate`: which strategy fits, what it costs, and the command that runs it."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import takes_rows
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core import files
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.launch.option_rows import rows_of

if TYPE_CHECKING:
    from clusterkit.estimate.advice.launch import Launch
    from clusterkit.estimate.advice.recommend import Answer


@takes_rows(rows_of(EstimateOptions).values())
@explained
def estimate(
    options: Mapping[str, Any],
    folder: Path | None = None,
    plot: Path | None = None,
    launch: bool = False,
    calibrate: Path | None = None,
    score: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Tell which strategy fits a model on some GPUs, how fast it trains, and why.

    clusterkit estimate --model llama-3.1-8b --gpu h100 --gpus 8

    Without --gpus, the smallest number that is enough. Exits with 1 where nothing fits.
    """
    if score is not None:
        _shipped_module("accuracy", "report").show_score(score, as_json=json)
        return
    if calibrate is not None:
        from clusterkit.cli.estimate.calibrate import learn

        learn(calibrate, options.get("cluster"), as_json=json)
        return
    if folder is not None and not launch:
        nameless = not {"model", "params"} & options.keys()
        raise UserError(
            f"unexpected word {str(folder)!r}",
            hint=f"--model {folder}" if nameless else "a folder stands behind --launch",
        )
    from clusterkit.estimate.query.answer import answer

    alone = launch or plot is not None
    special = _special(options, alone=alone) or (None if alone else _counting(options))
    if special is not None:
        special(EstimateOptions(**options), as_json=json)
        return
    _warn_of_too_many(options.get("cluster"), options.get("gpus"))
    found = answer(EstimateOptions(**options))
    launched = _launch(found, folder, options.get("cluster")) if launch else None
    if plot is not None:
        from clusterkit.estimate.advice.plot import draw

        draw(plot, found)
    if json:
        from clusterkit.estimate.query.document import document

        console.json_document(document(found, launch=launched))
    else:
        _show(found)
        if launch:
            _show_launch(launched)
        if plot is not None:
            console.note(f"drew {plot}")
    if found.chosen is None:
        raise typer.Exit(EXIT_FINDINGS)


def _warn_of_too_many(cluster: str | None, gpus: int | None) -> None:
    """Say that a cluster whose hosts are listed has fewer GPUs than are asked about."""
    if cluster is None or gpus is None:
        return
    from clusterkit.config.load import load_settings

    spec = load_settings().cluster(cluster)
    slots = [spec.slots_of(host.name) for host in spec.hosts]
    has = sum(filter(None, slots))
    if slots and all(slots) and has < gpus:
        console.warn(f"cluster {cluster} has {has} GPUs on {len(slots)} hosts: --gpus {has}")


def _special(options: Mapping[str, Any], *, alone: bool) -> Callable[..., None] | None:
    """Return what answers for several machines or kinds of GPU, which some flags do not go with."""
    from clusterkit.estimate.query.mixed import is_mixed

    several, kinds = "," in (options.get("on") or ""), is_mixed(options.get("gpu"))
    if several and alone:
        raise UserError("--launch and --plot are for one machine", hint="--on with one of them")
    if kinds and alone:
        raise UserError("--launch and --plot are for one kind of GPU", hint="--gpu with one kind")
    return _divide if kinds else _rank if several else None


def _counting(options: Mapping[str, Any]) -> Callable[..., None] | None:
    """Return what answers how many GPUs are enough, where that is all that is left open."""
    told = bool({"model", "params"} & options.keys()) and bool({"gpu", "cluster"} & options.keys())
    return _count if told and not {"gpus", "on", "own"} & options.keys() else None


def _count(options: EstimateOptions, *, as_json: bool) -> None:
    """Print the numbers of GPUs up to the first on which something fits, and what to type next."""
    from clusterkit.cli.estimate import report
    from clusterkit.estimate.query.document import document_of_smallest
    from clusterkit.estimate.query.smallest import smallest

    found = smallest(options)
    if as_json:
        console.json_document(document_of_smallest(found))
    else:
        command = ["clusterkit", *sys.argv[1:], "--gpus", str(found.gpus)]
        console.say(*report.counts(found), "", "For the whole answer:", f"  {shlex.join(command)}")
    if found.answer.chosen is None:
        raise typer.Exit(EXIT_FINDINGS)


def _rank(options: EstimateOptions, *, as_json: bool) -> None:
    """Print what so many tokens take on several rented machines, the cheapest first."""
    from clusterkit.cli.estimate import report
    from clusterkit.estimate.query.answer import ranked

    rows = ranked(options)
    if as_json:
        console.json_document({"ranked": rows})
    else:
        console.say(*report.ranking(rows))
    if not any(row.bill for row in rows):
        raise typer.Exit(EXIT_FINDINGS)


def _divide(options: EstimateOptions, *, as_json: bool) -> None:
    """Print which micro batch each of two kinds of GPUs takes of one global batch."""
    from clusterkit.cli.estimate import report
    from clusterkit.estimate.query.document import document_of_mixed
    from clusterkit.estimate.query.mixed import mixed

    found = mixed(options)
    if as_json:
        console.json_document(document_of_mixed(found))
    else:
        console.say(*report.division(found))
    if found.strategy is None:
        raise typer.Exit(EXIT_FINDINGS)


def _shipped_module(package: str, name: str) -> Any:
    """Return a module of `bench/`, which a wheel has among its data: few need it, and rarely."""
    folder, alias = data_dir("bench") / package, f"clusterkit_bench_{package}"
    places = [str(folder)]
    start = importlib.util.spec_from_file_location(
        alias, folder / "__init__.py", submodule_search_locations=places
    )
    if start is None:
        raise UserError(f"this installation lacks {folder}", hint="install it again")
    sys.modules[alias] = importlib.util.module_from_spec(start)
    return importlib.import_module(f"{alias}.{name}")


def _show(answer: Answer) -> None:
    from clusterkit.cli.estimate import report

    request, subject = answer.request, answer.subject
    blocks = [
        report.headline(request),
        report.table(answer),
        report.advice(answer),
        report.changes(answer),
        report.adapters(answer),
        report.refusals(answer),
        report.explanation(subject) if request.explain else (),
        report.curve(answer) if request.scale else (),
        report.bill(answer) if request.tokens is not None else (),
        report.power(answer),
        report.renting(request),
        report.assumptions(answer),
        report.warnings(subject),
    ]
    console.say("\n\n".join("\n".join(block) for block in blocks if block))


def _launch(answer: Answer, place: Path | None, cluster: str | None) -> Launch | None:
    """Write what starts the chosen strategy, and return it; nothing where none fits."""
    chosen = answer.chosen
    if chosen is None:
        return None
    from clusterkit.estimate.advice.launch import FILES, SUBMIT, launch_of

    folder = place or Path(f"launch-{chosen.name.replace('+', '-')}")
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"cannot write the launch into {folder}: it is a file", hint="--launch with a new DIR"
        )
    launch = launch_of(chosen.setup, folder=str(folder), cluster=cluster)
    files.create_output_folder(folder)
    for name, text in launch.files.items():
        mode = files.output(files.PUBLIC_PROGRAM if name == SUBMIT else files.PUBLIC)
        files.write_text(folder / name, text, mode=mode)
    earlier = [name for name in FILES if name not in launch.files and (folder / name).exists()]
    if earlier:
        console.note(f"{folder}/ also has {', '.join(earlier)}, of another launch: remove it")
    return launch


def _show_launch(launch: Launch | None) -> None:
    console.say("")
    if launch is None:
        console.note("--launch wrote nothing, as nothing fits; what is above may change that")
        return
    console.note(f"wrote {launch.folder}/: {', '.join(sorted(launch.files))}")
    console.say(shlex.join(launch.command))
    for note in launch.notes:
        console.note(f"  {note}")
