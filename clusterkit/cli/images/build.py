"""`clusterkit images build` and `images test`."""

from __future__ import annotations

import json as jsonlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.text import size_in_words
from clusterkit.images.build import Built, OnProgress, Step
from clusterkit.images.build import build as build_all
from clusterkit.images.catalogue import EPOCH, ROOT_IMAGE, check_registry, read_name, tag_of
from clusterkit.images.engine import inspect, require_builder
from clusterkit.images.health import prove
from clusterkit.images.inside import bill_of_materials, read_manifest
from clusterkit.images.provenance import provenance
from clusterkit.images.recipe import (
    BAKE_FILE,
    PROXY_VARIABLES,
    SCRIPT,
    BuildOptions,
    Target,
    make_targets,
    write_folder,
)
from clusterkit.images.scan import Scan


@explained
def build(
    names: list[str],
    variant: str | None = None,
    root: str | None = None,
    registry: str = "",
    push: bool = False,
    platform: str | None = None,
    build_arg: list[str] | None = None,
    no_cache: bool = False,
    network: str | None = None,
    ca: Path | None = None,
    pip_conf: Path | None = None,
    apt_sources: Path | None = None,
    output: Path | None = None,
    attest: Path | None = None,
    verbose: bool = False,
    json: JsonFlag = False,
) -> None:
    """Build images, with those they are built on.

    Proxies are taken from HTTP_PROXY, HTTPS_PROXY and NO_PROXY, and leave nothing behind.
    """
    requested = [read_name(name, variant) for name in names]
    arguments = _arguments(build_arg or ())
    if push and not registry:
        raise UserError("--push without a registry", hint="--registry HOST[:PORT][/PATH]")
    if attest is not None and output is not None:
        raise UserError("--attest tells of what was built, and --output builds nothing")
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or str(EPOCH)
    if not epoch.isdecimal():
        raise UserError(f"SOURCE_DATE_EPOCH is not a number of seconds: {epoch!r}")
    secrets = {"ca": ca, "pip": pip_conf, "apt": apt_sources}
    options = BuildOptions(
        root=root or arguments.pop("PARENT", ROOT_IMAGE),
        registry=check_registry(registry) if registry else "",
        platform=platform,
        network=network,
        arguments=arguments,
        no_cache=no_cache,
        secrets={name: path.absolute() for name, path in secrets.items() if path is not None},
        proxies=tuple(name for name in PROXY_VARIABLES if os.environ.get(name)),
        epoch=int(epoch),
    )
    targets = make_targets(requested, options)
    if output is not None:
        _write(targets, options, output, json=json)
    else:
        done = _build(targets, options, push=push, verbose=verbose, json=json)
        if attest is not None:
            _attest(targets, options, done, attest)


def _arguments(pairs: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--build-arg {pair}: no value", hint="--build-arg NAME=VALUE")
        found[name] = value
    return found


def _write(targets: tuple[Target, ...], options: BuildOptions, output: Path, *, json: bool) -> None:
    write_folder(targets, options, output)
    if json:
        console.json_document(
            {"output": str(output), "targets": [target.folder for target in targets]}
        )
        return
    console.say(f"{output}: {', '.join(target.name for target in targets)}")
    console.say(f"build them: sh {output / SCRIPT}")
    console.say(f"or:         cd {output} && docker buildx bake --file {BAKE_FILE} --load")


def _build(
    targets: tuple[Target, ...], options: BuildOptions, *, push: bool, verbose: bool, json: bool
) -> list[Built]:
    require_builder()
    done: list[Built] = []
    try:
        with _listener(verbose=verbose) as on_progress:
            done += build_all(targets, options, push=push, on_progress=on_progress)
    finally:
        # Not between the steps: what shows them on a terminal takes stdout as well.
        if not json:
            for built in done:
                console.say(_end_line(built))
    if json:
        console.json_document({"images": done})
    return done


def _attest(
    targets: tuple[Target, ...], options: BuildOptions, done: list[Built], folder: Path
) -> None:
    """Write what each image was built from and what is inside, as it is now in the engine."""
    files.create_output_folder(folder)
    digests = {built.tag: built.digest for built in done}
    for target in targets:
        tag = target.tags[0]
        present = inspect(tag)
        documents = {"provenance": provenance(target, options, digests)}
        if present is not None:
            documents["sbom"] = bill_of_materials(tag, present, read_manifest(tag))
        for kind, document in documents.items():
            text = jsonlib.dumps(document, indent=2) + "\n"
            files.write_text(folder / f"{target.folder}.{kind}.json", text, mode=files.output())
    console.note(f"SBOMs and provenance: {folder}")


def _end_line(built: Built) -> str:
    cached = f", {built.cached_steps} of {built.steps} steps cached" if built.cached_steps else ""
    pushed = "  pushed" if built.pushed else ""
    name = console.bold(built.tag)
    size = size_in_words(built.size_bytes)
    return f"{name}  {size}  {built.digest[:19]}  in {built.seconds:.0f} s{cached}{pushed}"


@contextmanager
def _listener(*, verbose: bool) -> Iterator[OnProgress]:
    """Show each step on stderr as it ends; on a terminal also the one that runs."""
    with console.progress(quiet=verbose, plain=False) as show:

        def listen(name: str, progress: Step | str) -> None:
            if not isinstance(progress, str) and progress.state == "running":
                show(f"{name}  {_short(progress.name)}")
            _tell(name, progress, verbose=verbose)

        yield listen


def _tell(name: str, progress: Step | str, *, verbose: bool) -> None:
    if isinstance(progress, str):
        if verbose:
            console.note(f"{name}  {progress}")
    elif not verbose and progress.state not in {"running", "failed"} and not progress.internal:
        how = "cached" if progress.state == "cached" else f"{progress.seconds:.1f} s"
        console.progress_note(console.dim(f"{name}  {_short(progress.name)}  {how}"))


def _short(text: str, width: int = 56) -> str:
    line = re.sub(r"(?<!\S)--mount=\S+ ", "", " ".join(text.split()))
    return line if len(line) <= width else line[: width - 3] + "..."


@explained
def prove_images(
    names: list[str],
    variant: str | None = None,
    registry: str = "",
    network: str | None = None,
    timeout: int = 600,
    no_scan: bool = False,
    json: JsonFlag = False,
) -> None:
    """Run the health tests of images: torch sees the GPUs, two ranks train.

    The container gets no network unless --network says otherwise. Where
    pip-audit is installed and its service answers, known vulnerabilities of
    the Python packages are findings as well, unless --no-scan is given.
    """
    requested = [read_name(name, variant) for name in names]
    found = []
    for image, kind in requested:
        tag = tag_of(image, kind, registry)
        health = prove(
            image, kind, tag, network=network, timeout_s=float(timeout), scanned=not no_scan
        )
        found.append(health)
        if json:
            continue
        if health.output:
            console.note(console.dim("\n".join(f"  {line}" for line in health.output.splitlines())))
        gpus = f", {health.gpus} GPUs" if health.gpus else ""
        word, colour = ("healthy", "green") if health.healthy else ("unhealthy", "red")
        console.say(f"{tag}  {console.coloured(word, colour)} in {health.seconds:.0f} s{gpus}")
        if health.skipped:
            console.warn(health.skipped)
        if health.problem is not None:
            console.error(str(health.problem))
        if not no_scan:
            _tell_scan(tag, health.scan)
    if json:
        console.json_document({"images": found})
    if not all(health.healthy and not health.scan.vulnerabilities for health in found):
        raise typer.Exit(EXIT_FINDINGS)


def _tell_scan(tag: str, scan: Scan) -> None:
    if scan.not_scanned is not None:
        console.warn(f"{tag} not scanned: {scan.not_scanned}")
        return
    if scan.unknown:
        console.warn(f"{tag} not scanned: {', '.join(scan.unknown)}: the service lacks them")
    count = len(scan.vulnerabilities)
    colour = "red" if count else "green"
    words = f"{count or 'no'} known {'vulnerability' if count == 1 else 'vulnerabilities'}"
    console.say(f"{tag}  {console.coloured(words, colour)} in {scan.scanned} Python packages")
    for one in scan.vulnerabilities:
        fixed = f"fixed in {', '.join(one.fixed_in)}" if one.fixed_in else "not fixed yet"
        console.say(f"  {one.package} {one.version}  {one.id}, {fixed}")
