"""`clusterkit estimate`: which strategy fits, what it costs, and the command that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.estimate.flags import EstimateFlags, takes_flags
from clusterkit.cli.frame import console
from clusterkit.core.errors import UserError

if TYPE_CHECKING:
    from clusterkit.estimate.advice.launch import Launch
    from clusterkit.estimate.advice.recommend import Recommendation
    from clusterkit.estimate.query.answer import Answer

EXIT_FINDINGS = 1


@takes_flags
def estimate(flags: EstimateFlags) -> None:
    """Tell which strategy fits a model on some GPUs, how fast it trains, and why.

    clusterkit estimate --model llama-3.1-8b --gpu h100 --gpus 8

    Exits with 1 where nothing fits.
    """
    if flags.score is not None:
        _shipped_module("accuracy", "report").show_score(flags.score, as_json=flags.json)
        return
    if flags.calibrate is not None:
        from clusterkit.cli.estimate.calibrate import learn
        from clusterkit.config import load_settings
        from clusterkit.estimate.query.answer import LOCAL

        if flags.cluster is not None:
            load_settings().cluster(flags.cluster)  # a wrong name is to be told of
        learn(flags.calibrate, flags.cluster or LOCAL, as_json=flags.json)
        return
    if flags.folder is not None and not flags.launch:
        nameless = flags.model is flags.params is None
        raise UserError(
            f"unexpected word {str(flags.folder)!r}",
            hint=f"--model {flags.folder}" if nameless else "a folder stands behind --launch",
        )
    from clusterkit.estimate.query.answer import answer

    found = answer(flags.words())
    launch = _launch(flags, found.advice) if flags.launch else None
    if flags.plot is not None:
        _draw(flags.plot, found)
    if flags.json:
        from clusterkit.estimate.query.document import document

        console.json_document(document(found, launch=launch))
    else:
        _show(flags, found)
        if launch is not None:
            _show_launch(launch)
        if flags.plot is not None:
            console.note(f"drew {flags.plot}")
    if found.advice.chosen is None:
        raise typer.Exit(EXIT_FINDINGS)


def _shipped_module(package: str, name: str) -> Any:
    """Return a module of `bench/`, which a wheel has among its data: few need it, and rarely."""
    import importlib.util
    import sys

    from clusterkit.core.data import data_dir

    folder, alias = data_dir("bench") / package, f"clusterkit_bench_{package}"
    places = [str(folder)]
    start = importlib.util.spec_from_file_location(
        alias, folder / "__init__.py", submodule_search_locations=places
    )
    if start is None:
        raise UserError(f"this installation lacks {folder}", hint="install it again")
    sys.modules[alias] = importlib.util.module_from_spec(start)
    return importlib.import_module(f"{alias}.{name}")


def _show(flags: EstimateFlags, found: Answer) -> None:
    from clusterkit.cli.estimate import details, report
    from clusterkit.estimate.advice.recommend import nearest_of

    asked, judge, tried, advice = found.asked, found.judge, found.tried, found.advice
    subject = nearest_of(tried, advice)
    blocks = [
        report.headline(asked.wish),
        report.table(tried, advice),
        report.advice(advice, judge),
        report.changes(asked.wish, judge, tried, advice),
        report.adapters(asked.wish, judge, advice) if asked.chosen is None else (),
        report.refusals(tried),
        details.explanation(subject) if flags.explain else (),
        details.curve(asked.wish, judge, subject) if flags.scale else (),
        details.bill(asked, subject) if asked.tokens is not None else (),
        report.assumptions(asked, judge, tried),
        report.cautions(subject),
    ]
    console.say("\n\n".join("\n".join(block) for block in blocks if block))


def _launch(flags: EstimateFlags, advice: Recommendation) -> Launch | None:
    """Write what starts the chosen strategy, and return it; nothing where none fits."""
    chosen = advice.chosen
    if chosen is None:
        return None
    from clusterkit.core import files
    from clusterkit.estimate.advice.launch import FILES, SUBMIT, launch_of

    folder = flags.folder or Path(f"launch-{chosen.name.replace('+', '-')}")
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"cannot write the launch into {folder}: it is a file", hint="--launch with a new DIR"
        )
    launch = launch_of(chosen.setup, folder=str(folder), cluster=flags.cluster)
    files.create_output_folder(folder)
    for name, text in launch.files.items():
        mode = files.output(files.PUBLIC_PROGRAM if name == SUBMIT else files.PUBLIC)
        files.write_text(folder / name, text, mode=mode)
    earlier = [name for name in FILES if name not in launch.files and (folder / name).exists()]
    if earlier:
        console.note(f"{folder}/ also has {', '.join(earlier)}, of another launch: remove it")
    return launch


def _show_launch(launch: Launch) -> None:
    import shlex

    console.say()
    console.note(f"wrote {launch.folder}/: {', '.join(sorted(launch.files))}")
    console.say(shlex.join(launch.command))
    for note in launch.notes:
        console.note(f"  {note}")


def _draw(path: Path, found: Answer) -> None:
    from clusterkit.estimate.advice.plot import draw
    from clusterkit.estimate.advice.recommend import nearest_of
    from clusterkit.estimate.query.shown import points_of

    subject = nearest_of(found.tried, found.advice)
    points = points_of(found.asked.wish, found.judge, subject)
    draw(path, found.tried.candidates, subject=subject, points=points)
