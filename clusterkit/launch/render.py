"""Plan -> files, pure: the same plan gives the same bytes; `write_files` puts them on disk.

Templates come from `templates/scripts/` of the repository; a folder of the site may shadow any of
them. A value enters a rendered file through a filter, or not at all: an expression without one, or
with an unknown name, does not render.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from typing import Any

import jinja2
import yaml

from clusterkit.config.sources import trusted_owners
from clusterkit.core import files, ownership, shell
from clusterkit.core.data import PEERS, data_dir, read_table, read_template
from clusterkit.core.errors import Position, UserError, choices_hint
from clusterkit.core.hosts.hostfile import Format
from clusterkit.core.hosts.hostfile_writer import write
from clusterkit.core.model import (
    PORT_STRIDE,
    ContainerPlan,
    ContainerRuntime,
    GpuRequest,
    Host,
    LaunchPlan,
    NodeOrder,
    RenderedFile,
    Runtime,
    Word,
)
from clusterkit.core.text import NOT_IN_A_LINE
from clusterkit.core.version import __version__
from clusterkit.launch.frameworks import load_framework
from clusterkit.launch.frameworks.base import preset_text

_WRONG = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
"""What an expression in a template can raise; all of it is the template's fault."""


def template_path(name: str, shadow: str | None) -> Path:
    """Return the file of template `name`: the one in folder `shadow` if it is there.

    Raises:
        UserError: there is no folder `shadow`.
    """
    if shadow is not None:
        folder = Path(shadow).expanduser()
        if not folder.is_dir():
            raise UserError(
                f"the template folder {shadow} does not exist",
                hint="see templates: in clusterkit config show --origin",
            )
        if (folder / name).is_file():
            return folder / name
    return data_dir("templates/scripts") / name


def render_template(path: Path, **values: Any) -> str:
    """Return the text of the template at `path`.

    Raises:
        UserError: the template is wrong, with its line, or somebody else can write it.
    """
    try:
        source = _source(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"template {path} cannot be read: {error}") from error
    try:
        return _compiled(source).render(**values)
    except jinja2.TemplateSyntaxError as error:
        raise _template_error(path, source, error.lineno, error.message or str(error)) from error
    except _WRONG as error:
        raise _template_error(path, source, _template_line(error), str(error)) from error


def _source(path: Path) -> str:
    """Return a template of ours, or one that shadows it and is the user's own, or root's.

    Trusted as well is whoever owns the configuration that the user named outright. The folder
    counts too: in one that others can write, they choose which of the user's files is read.
    """
    if path.is_relative_to(data_dir("templates")):
        return path.read_text(encoding="utf-8")
    trusted = trusted_owners(Path.cwd(), os.environ)
    use = "write a script from it"
    hint = f"if you trust it, copy the folder and name that: cp -r {shell.quote(str(path.parent))}"
    ownership.require_own(path.parent, use=use, hint=hint, trusted=trusted)
    raw = ownership.read_own(path, use=use, hint=hint, trusted=trusted)
    return raw.decode().replace("\r\n", "\n")


class Quoted(str):
    """Text that has passed a filter and may stand in a rendered file as it is."""

    __slots__ = ()


class UnquotedError(ValueError):
    """An expression in a template reached the output without a filter."""


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    """Return the template of a text; an array renders the same ones hundreds of times."""
    return strict_environment().from_string(source)


def strict_environment() -> jinja2.Environment:
    """Return what templates are read with, also by the reference of their variables."""
    environment = jinja2.Environment(  # noqa: S701 # `finalize` is stricter than autoescape
        loader=jinja2.FunctionLoader(lambda _: None),  # no template includes another
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
        raise UnquotedError(f"{value!r} is not a name")
    return Quoted(value)


def _directive(value: str) -> Quoted:
    """Return a value of a `#SBATCH` line, from which Slurm reads exactly `value`.

    Slurm is no shell: a backslash takes the next character as it is, inside of either quote as
    well, an open `#` begins a comment, and nothing but a line's end closes an argument for good
    (`_get_argument` in Slurm's src/sbatch/opt.c).
    """
    if (bad := NOT_IN_A_LINE.search(value)) is not None:
        raise UnquotedError(f"{bad[0]!r} cannot stand in a directive")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./()\[\]{}|&*~<>-]+", value):
        return Quoted(value)
    return Quoted('"' + re.sub(r'(["\\])', r"\\\1", value) + '"')


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
    "comment": lambda value: Quoted(" ".join(value.split())),
    "shell_line": lambda value: Quoted(value.rstrip("\n")),
    "directive": _directive,
    "heredoc": _heredoc,
    "yaml": _yaml,
}
"""Filters by name; each returns `Quoted`, and nothing else may enter a rendered file."""


def _template_error(path: Path, source: str, line: int | None, message: str) -> UserError:
    lines = source.splitlines()
    text = lines[line - 1] if line is not None and 0 < line <= len(lines) else None
    return UserError(
        f"template: {message}",
        position=Position(source=str(path), line=line, text=text),
        hint="see docs/how-to/templates.md for the variables and filters",
    )


def _template_line(error: BaseException) -> int | None:
    frames = walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else None


KINDS = ("sbatch", "node", "hostfile", "compose", "config")


_PARTS: Mapping[ContainerRuntime, tuple[str, ...]] = {
    ContainerRuntime.DOCKER: ("docker.sh",),
    ContainerRuntime.COMPOSE: ("docker.sh", "compose.sh"),
    ContainerRuntime.APPTAINER: ("apptainer.sh",),
    ContainerRuntime.ENROOT: ("enroot.sh",),
    ContainerRuntime.PYXIS: ("pyxis.sh",),
}
"""What puts a node's command into an image: `common.sh`, and these, of `scripts/container/`. They
define `ck_enter` (leaves in `ck_inside` the words before the command) and `ck_leave` (tidies up).
"""
_INSIDE = ("inside.sh", "look.py")
"""The first process in the image, and what it uses."""
_LONGEST_TAG = 64
_VARIANT = {True: "cuda", False: "cpu"}
COMPOSE_NODE = "compose-node.sh"
"""The node script inside the image: one host, and nothing of the site around it."""


def check_kinds(only: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of files to render; all where none is named.

    Raises:
        UserError: there is no such kind.
    """
    for kind in only:
        if kind not in KINDS:
            raise UserError(f"--only {kind}: no such file", hint=choices_hint(kind, KINDS))
    return tuple(only or KINDS)


def render(
    plan: LaunchPlan, *, only: Iterable[str] = KINDS, service: str | None = None
) -> tuple[RenderedFile, ...]:
    """Return the files of `plan`; the kinds that it has no file for are left out.

    Those for a managed service are what its nodes run: the node script, and a configuration.

    Raises:
        UserError: a shadowing template is wrong (with its line), or there is no such service.
    """
    known = service_for(service, plan) if service is not None else None
    # A service has started the image already.
    node = _node(dataclasses.replace(plan, container=None) if known else plan, service=known)
    makers = {
        "sbatch": lambda: _sbatch(plan, node.text),
        "node": lambda: [node],
        "hostfile": lambda: _hostfile(plan) if plan.node_names else [],
        "compose": lambda: _compose(plan),
        "config": lambda: _config(plan),
    }
    selected = set(only) & {"node", "config"} if known else set(only)
    return tuple(file for kind in KINDS if kind in selected for file in makers[kind]())


def write_files(rendered: Sequence[RenderedFile], folder: Path) -> Iterator[Path]:
    """Write each file into `folder`, and yield its path.

    Raises:
        UserError: it cannot be written.
    """
    files.create_output_folder(folder)
    for file in rendered:
        path = folder / file.name
        files.write_text(
            path,
            file.text,
            mode=files.output(files.PUBLIC_PROGRAM if file.executable else files.PUBLIC),
        )
        yield path


def _node(
    plan: LaunchPlan, *, name: str = "node.sh", service: Service | None = None
) -> RenderedFile:
    container = plan.container
    inside = _INSIDE if container else ()
    parts = ("common.sh", *_PARTS[container.runtime]) if container else ()
    text = _render(
        "node/node.sh.j2",
        plan,
        service=service,
        images=_by_node(plan, lambda part: part.container.image if part.container else ""),
        argv=plan.command.argv,
        env=_environment(plan),
        names=tuple(dict.fromkeys((*plan.command.env, *plan.env, *plan.secrets))),
        files={**plan.command.files, **{name: _container(name) for name in inside}},
        peers=PEERS,
        records=load_framework(plan.framework).torch,
        wandb_tags=_wandb_tags(plan),
        mlflow_context=_mlflow_context(plan),
        gpus_of_nodes=_by_node(plan, lambda part: "1" if _wants_gpus(part) else ""),
        container_functions="\n".join(map(_container, parts)),
        default_nodes=" ".join(plan.node_names) or "localhost",
        default_slots=_slots(plan),
        default_port=str(plan.cluster.port_range[0]),
    )
    return RenderedFile(name=name, text=text, executable=True)


def _by_node(plan: LaunchPlan, value_of: Callable[[LaunchPlan], str]) -> tuple[str, ...]:
    """Return what each node has, where components differ in it; else what all have."""
    values = tuple(value_of(part) for part in plan.parts for _ in range(part.nodes))
    return values if len({*values}) > 1 else values[:1]


def _wants_gpus(plan: LaunchPlan) -> bool:
    return plan.cluster.gpu_request is not GpuRequest.NONE


def _container(name: str) -> str:
    return read_template(f"scripts/container/{name}")


def _sbatch(plan: LaunchPlan, node_script: str) -> list[RenderedFile]:
    if not plan.cluster.kind.scheduled:
        return []  # it would name the interface, the Python and the folders of other machines
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
        nodes=str(plan.nodes),
        picks=bool(plan.spares or plan.restarts),
        elsewhere=bool(plan.command.slot_filter or plan.spares or plan.restarts or plan.order),
        **_order(plan.order),
        srun_args=plan.cluster.srun_args,
        node_script=node_script.rstrip("\n"),
    )
    return [RenderedFile(name="job.sbatch", text=text, executable=True)]


def _order(order: NodeOrder | None) -> dict[str, Any]:
    if order is None:
        return {}
    return {
        "order_functions": read_template("scripts/sbatch/order.sh"),
        "together": str(order.together),
        "places": " ".join(str(place) for place in order.places),
        "switches": tuple(" ".join(nodes) for nodes in order.switches),
    }


def _hostfile(plan: LaunchPlan) -> list[RenderedFile]:
    """Return the hostfile where names are known; on Slurm, node.sh writes it."""
    named = zip(plan.node_names, plan.slots, strict=False)
    hosts = tuple(Host(name=name, slots=slots) for name, slots in named)
    # Of all formats the one that DeepSpeed, Horovod and Open MPI read alike.
    return [RenderedFile(name="hostfile", text=write(hosts, Format.DEEPSPEED))]


def _compose(plan: LaunchPlan) -> list[RenderedFile]:
    if plan.container and plan.container.runtime is ContainerRuntime.COMPOSE:
        return _compose_of_hosts(plan, plan.container)
    inside = _inside_the_image(plan)
    container = plan.container
    gpus = _wants_gpus(plan)
    default_image = load_framework(plan.framework).image
    if default_image and "/" not in default_image:  # as images/catalogue.py calls them
        default_image = f"clusterkit/{default_image}:{_VARIANT[gpus]}"
    text = _render(
        "compose/compose.yaml.j2",
        plan,
        **_of_compose(plan),
        summary=summary(inside),
        image=container.image if container else plan.cluster.image or default_image,
        nccl_env=[pair for pair in plan.env.items() if pair[0].startswith("NCCL_")],
        mounts=container.mounts if container else plan.cluster.mounts,
        shm_size=container.shm_size if container else plan.cluster.shm_size,
        gpus="all" if gpus else None,
    )
    return [RenderedFile(name="compose.yaml", text=text), _node(inside, name=COMPOSE_NODE)]


def _of_compose(plan: LaunchPlan) -> dict[str, str]:
    """Return what every compose file of a plan has: a name that Compose accepts, and mounts."""
    return {
        "project": re.sub(r"[^a-z0-9_-]+", "-", plan.name.lower()).strip("-_") or "train",
        "node_script": COMPOSE_NODE,
        "script_mount": f"./{COMPOSE_NODE}:/clusterkit/node.sh:ro",
        "workdir_mount": f"{plan.workdir}:{plan.workdir}",
    }


def _compose_of_hosts(plan: LaunchPlan, container: ContainerPlan) -> list[RenderedFile]:
    """Return a file for each host, and the node script that all of them run inside the image.

    What stands in them for the runtime variables are defaults, for use by hand: `submit` knows
    better, and says so in a second file.
    """
    names = (*plan.node_names, *plan.spare_names) or tuple(f"node-{k}" for k in range(plan.nodes))
    used = plan.node_names or names
    cluster = dataclasses.replace(plan.cluster, modules=(), setup=())
    inside = dataclasses.replace(plan, cluster=cluster, container=None)
    files = []
    for rank, host in enumerate(names):
        defaults = {
            Runtime.NODES.name: " ".join(used),
            Runtime.SLOTS.name: _slots(plan),
            Runtime.NODE_RANK.name: str(rank),
            **plan.env,
        }
        text = _render(
            "compose/host.yaml.j2",
            plan,
            **_of_compose(plan),
            host=host,
            placeholders=not plan.node_names,
            file_name=f"compose-{host}.yaml",
            summary=summary(plan),
            image=container.image,
            environment=tuple(defaults.items()),
            needs_token=PEERS in plan.command.files and len(used) > 1,
            gpus=_wants_gpus(plan),
        )
        files.append(RenderedFile(name=f"compose-{host}.yaml", text=text))
    return [*files, _node(inside, name=COMPOSE_NODE)]


def _inside_the_image(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan of one host, where the image has what the site sets up elsewhere."""
    cluster = dataclasses.replace(
        plan.cluster, modules=(), setup=(), network_interface="lo", python=None
    )
    return dataclasses.replace(
        plan,
        cluster=cluster,
        nodes=1,
        max_nodes=None,
        slots=plan.slots[:1],
        processes=plan.one_host_command.processes or plan.slots[0],
        node_names=(),
        command=plan.one_host_command,
        container=None,
    )


def _config(plan: LaunchPlan) -> list[RenderedFile]:
    if plan.deepspeed_preset is None:
        return []
    return [
        RenderedFile(name="ds_config.json", text=preset_text("deepspeed", plan.deepspeed_preset))
    ]


def summary(plan: LaunchPlan) -> str:
    """Return `torchrun on 3 nodes x 2 slots`, as the header of rendered files says it."""
    nodes = f"{plan.nodes}-{plan.max_nodes}" if plan.max_nodes else str(plan.nodes)
    even = len(set(plan.slots)) == 1
    slots = f"x {_count(plan.slots[0], 'slot')}" if even else f"with {_slots(plan)} slots"
    return (
        f"{plan.framework} on {nodes} {'node' if nodes == '1' else 'nodes'} {slots}, "
        f"{_count(plan.processes, 'process', 'processes')}"
    )


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _environment(plan: LaunchPlan) -> list[tuple[str, Word]]:
    interface: dict[str, Word] = {}
    if plan.cluster.network_interface:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        interface = dict.fromkeys(names, plan.cluster.network_interface)
    return list({**interface, **plan.command.env, **plan.env}.items())


def _wandb_tags(plan: LaunchPlan) -> str:
    """Return the tags of a run in W&B, 1 to 64 characters each (validate_run_tags, wandb 0.31)."""
    tags = (plan.name, plan.cluster.name, plan.framework)
    return ",".join(tag.replace(",", " ")[:_LONGEST_TAG] for tag in tags)


def _mlflow_context(plan: LaunchPlan) -> Word:
    """Return as JSON the name and tags of a run that MLflow begins without others.

    It reads no variable for them but this (`SystemEnvironmentContext` of mlflow 3.18).
    """
    about = {"job": plan.name, "cluster": plan.cluster.name, "framework": plan.framework}
    return ('{"mlflow.runName": "', Runtime.RUN, f'", {json.dumps(about)[1:]}')


def _slots(plan: LaunchPlan) -> str:
    return " ".join(str(count) for count in plan.slots)


def _render(name: str, plan: LaunchPlan, **values: Any) -> str:
    path = template_path(name, plan.cluster.templates)
    functions = read_template("scripts/node/filter.sh") if plan.command.slot_filter else ""
    return render_template(
        path, plan=plan, version=__version__, filter_functions=functions, **values
    )


_NOT_VARIABLES = ("service", "title", "source")
_BY_FIRST_NODE = ("torchrun", "accelerate", "deepspeed", "env")
"""Frameworks whose nodes need no names but that of the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What goes in front of node.sh for one service."""

    title: str
    words: tuple[str, ...]
    """Arguments of the program that reads the service's variables."""
    program: str


def service_for(name: str, plan: LaunchPlan) -> Service:
    """Return what goes in front of the node script of a job.

    Raises:
        UserError: there is no such service, or it cannot start such a job.
    """
    rows = {row["service"]: row for row in read_table(__file__, "services.tsv")}
    if name not in rows:
        raise UserError(f"--for {name}: no such service", hint=choices_hint(name, rows))
    row = rows[name]
    variables = {what: v for what, v in row.items() if v != "-" and what not in _NOT_VARIABLES}
    _require_names(variables, plan, row["title"])
    return Service(
        title=row["title"],
        words=(
            row["title"],
            str(plan.nodes),
            str(plan.max_nodes or plan.nodes),
            *(f"{what}={variable}" for what, variable in variables.items()),
        ),
        program=read_template("programs/services/service.py"),
    )


def _require_names(variables: Mapping[str, str], plan: LaunchPlan, title: str) -> None:
    if "first node" in variables and plan.nodes > 1 and plan.framework not in _BY_FIRST_NODE:
        raise UserError(
            f"--for {title}: {plan.framework} needs the names of all nodes, and the service tells"
            " that of the first alone",
            hint=f"frameworks that need no more: {', '.join(_BY_FIRST_NODE)}",
        )
