"""Plan -> files, pure: the same plan gives the same bytes.

Templates come from `templates/` at the top of the repository; a cluster's `templates:` folder may
shadow any of them. Every value enters a template through a filter that quotes it for the place
where it stands; an expression without one does not render.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

from clusterkit import __version__, shell
from clusterkit.containers import container_words, pyxis_arguments
from clusterkit.data import data_dir, read_data
from clusterkit.errors import Position, UserError
from clusterkit.frameworks import load_framework
from clusterkit.model import GpuRequest, LaunchPlan, RenderedFile, Word

KINDS = ("sbatch", "node", "hostfile", "compose", "config")
PORT_STRIDE = 10
"""Ports that belong to one job; the next job id gets the next ten."""


def render(plan: LaunchPlan, *, only: Iterable[str] = KINDS) -> tuple[RenderedFile, ...]:
    """Return the files of `plan`; the kinds that it has no file for are left out.

    Raises:
        UserError: a shadowing template is wrong (with its line).
    """
    makers = {
        "sbatch": _sbatch,
        "node": _node,
        "hostfile": _hostfile,
        "compose": _compose,
        "config": _config,
    }
    rendered = (makers[kind](plan) for kind in KINDS if kind in set(only))
    return tuple(file for file in rendered if file is not None)


def template_path(name: str, plan: LaunchPlan) -> Path:
    """Return the file that template `name` comes from: the site's where it has one."""
    if plan.cluster.templates is not None:
        shadow = Path(plan.cluster.templates).expanduser() / name
        if shadow.is_file():
            return shadow
    return data_dir("templates") / name


def _node(plan: LaunchPlan) -> RenderedFile:
    gpus = plan.cluster.gpu_request is not GpuRequest.NONE
    prefix = container_words(
        plan.container,
        workdir=plan.workdir,
        environment=(*plan.env, *plan.secrets),
        gpus=gpus,
    )
    text = _render(
        "node/node.sh.j2",
        plan,
        argv=(*prefix, *plan.command.argv),
        env=_environment(plan),
        default_nodes=" ".join(plan.node_names) or "localhost",
        default_slots=_slots(plan),
        default_port=str(plan.cluster.port_range[0]),
    )
    return RenderedFile(name="node.sh", text=text, executable=True)


def _sbatch(plan: LaunchPlan) -> RenderedFile:
    low, high = plan.cluster.port_range
    text = _render(
        "sbatch/job.sbatch.j2",
        plan,
        directives=tuple(plan.directives.items()),
        summary=summary(plan),
        default_slots=_slots(plan),
        port_low=str(low),
        port_places=str((high - low + 1) // PORT_STRIDE),
        port_range=f"{low}-{high}",
        requeue=str(plan.requeue),
        srun_args=(
            *plan.cluster.srun_args,
            *pyxis_arguments(plan.container, workdir=plan.workdir),
        ),
        node_script=_node(plan).text.rstrip("\n"),
    )
    return RenderedFile(name="job.sbatch", text=text, executable=True)


def _hostfile(plan: LaunchPlan) -> RenderedFile | None:
    if not plan.node_names:
        return None  # Slurm names the nodes; node.sh writes the hostfile there
    lines = (
        f"{name} slots={slots}\n" for name, slots in zip(plan.node_names, plan.slots, strict=False)
    )
    return RenderedFile(name="hostfile", text="".join(lines))


def _compose(plan: LaunchPlan) -> RenderedFile:
    container = plan.container
    default_image = f"clusterkit/{load_framework(plan.framework).image}:latest"
    text = _render(
        "compose/compose.yaml.j2",
        plan,
        project=re.sub(r"[^a-z0-9_-]+", "-", plan.name.lower()).strip("-_") or "train",
        summary=f"{plan.framework}, {plan.slots[0]} processes",
        image=container.image if container else plan.cluster.image or default_image,
        slots=str(plan.slots[0]),
        nccl_env=[pair for pair in plan.env.items() if pair[0].startswith("NCCL_")],
        workdir_mount=f"{plan.workdir}:{plan.workdir}",
        mounts=container.mounts if container else plan.cluster.mounts,
        shm_size=container.shm_size if container else plan.cluster.shm_size,
        gpus=None if plan.cluster.gpu_request is GpuRequest.NONE else "all",
    )
    return RenderedFile(name="compose.yaml", text=text)


def _config(plan: LaunchPlan) -> RenderedFile | None:
    if plan.deepspeed_preset is None:
        return None
    text = read_data("templates", "deepspeed", f"{plan.deepspeed_preset}.json")
    return RenderedFile(name="ds_config.json", text=text)


def summary(plan: LaunchPlan) -> str:
    """Return `torchrun on 3 nodes x 2 slots`, as the header of rendered files says it."""
    nodes = f"{plan.nodes}-{plan.max_nodes}" if plan.max_nodes else str(plan.nodes)
    word = "node" if nodes == "1" else "nodes"
    even = len(set(plan.slots)) == 1
    slots = f"x {plan.slots[0]} slots" if even else f"with {_slots(plan)} slots"
    return f"{plan.framework} on {nodes} {word} {slots}, {plan.processes} processes"


def _environment(plan: LaunchPlan) -> list[tuple[str, Word]]:
    interface: dict[str, Word] = {}
    if plan.cluster.network_interface:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        interface = dict.fromkeys(names, plan.cluster.network_interface)
    return list({**interface, **plan.command.env, **plan.env}.items())


def _slots(plan: LaunchPlan) -> str:
    return " ".join(str(count) for count in plan.slots)


def _render(name: str, plan: LaunchPlan, **values: Any) -> str:
    path = template_path(name, plan)
    source = path.read_text(encoding="utf-8")
    try:
        template = _environment_for_templates().from_string(source)
        return template.render(plan=plan, version=__version__, **values)
    except jinja2.TemplateSyntaxError as error:
        raise _template_error(path, source, error.lineno, error.message or str(error)) from error
    except (jinja2.UndefinedError, UnquotedError) as error:
        line = _template_line(error)
        raise _template_error(path, source, line, str(error)) from error


def _template_error(path: Path, source: str, line: int | None, message: str) -> UserError:
    lines = source.splitlines()
    text = lines[line - 1] if line is not None and 0 < line <= len(lines) else None
    return UserError(
        f"template: {message}",
        position=Position(source=str(path), line=line, text=text),
        hint="see docs/how-to/templates.md for the variables and filters",
    )


def _template_line(error: BaseException) -> int | None:
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


class Quoted(str):
    """Text that has passed a filter and may stand in a rendered file as it is."""

    __slots__ = ()


class UnquotedError(Exception):
    """An expression in a template reached the output without a filter."""


def _environment_for_templates() -> jinja2.Environment:
    environment = jinja2.Environment(  # noqa: S701 # `finalize` is stricter than autoescape
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # `{#` is bash: ${#array[@]}
        comment_end_string="##}",
        finalize=_require_quoted,
    )
    environment.filters.update(FILTERS)
    return environment


def _require_quoted(value: Any) -> str:
    if isinstance(value, jinja2.Undefined | Quoted):
        return str(value)
    raise UnquotedError(f"an expression ({value!r}) has no filter; use one of {', '.join(FILTERS)}")


def _name(value: str) -> Quoted:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", value):
        raise UnquotedError(f"{value!r} is no name")
    return Quoted(value)


def _comment(value: str) -> Quoted:
    return Quoted(" ".join(value.split()))


def _shell_line(value: str) -> Quoted:
    return Quoted(value.rstrip("\n"))


def _directive(value: str) -> Quoted:
    safe = re.fullmatch(r"[A-Za-z0-9_@%+=:,./()\[\]{}|&*~<>-]+", value)
    return Quoted(value) if safe else Quoted('"' + value.replace('"', '\\"') + '"')


def _heredoc(value: str, delimiter: str) -> Quoted:
    if delimiter in value.splitlines():
        raise UnquotedError(f"a line {delimiter!r} would end the here-document")
    return Quoted(value.rstrip("\n"))


def _yaml(value: str) -> Quoted:
    # Double-quoted flow scalars on one line; `$` doubled, as Compose would interpolate it.
    text = yaml.safe_dump(value, default_style='"', width=2**31, allow_unicode=True)
    return Quoted(text.strip().replace("$", "$$"))


FILTERS: Mapping[str, Any] = {
    "sh": lambda word: Quoted(shell.quote(word)),
    "name": _name,
    "comment": _comment,
    "shell_line": _shell_line,
    "directive": _directive,
    "heredoc": _heredoc,
    "yaml": _yaml,
}
"""Filters by name; each returns `Quoted`, and nothing else may enter a rendered file."""
