"""NCCL: the variables that job and nodes set, held against the hardware; its plug-in and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Found, known, machine_check, majority
from clusterkit.preflight.checks.results import (
    Advice,
    Result,
    Results,
    advice,
    missing,
    ok,
    skip,
    unknown,
)
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.env_lint.rules.base import strtoll
from clusterkit.preflight.env_lint.setting import Source
from clusterkit.preflight.env_lint.sources import from_environment
from clusterkit.preflight.probes.gpu import nvidia_links
from clusterkit.preflight.probes.host import fabric_files
from clusterkit.preflight.probes.host.fabric_files import PLUGIN_VARIABLE, Plugin, plugin_names
from clusterkit.preflight.probes.host.nccl_settings import CONF, ENVIRONMENT
from clusterkit.preflight.probes.net import interfaces, rdma_ports
from clusterkit.preflight.probes.net.interfaces import NamedInterface
from clusterkit.preflight.probes.net.rdma_ports import Rdma
from clusterkit.preflight.topology.analysis import parse_names
from clusterkit.preflight.topology.matrix import Topology, nvlinks
from clusterkit.transport.probe import Missing, PreflightJob

if TYPE_CHECKING:
    from clusterkit.preflight.env_lint.lint import LintFinding

_LONGEST_VALUE = 40


def _lint(sources: Sequence[Source], allowed: tuple[str, ...]) -> tuple[Result, ...]:
    """Return what the lint says of these settings; its rules are loaded where there are any."""
    if not any(source.settings for source in sources):
        return ()
    from clusterkit.preflight.env_lint.lint import lint  # noqa: PLC0415

    return tuple(_of_lint(lint(sources, allowed=allowed)))


def _of_lint(findings: tuple[LintFinding, ...]) -> Iterator[Result]:
    """Yield a result for each warning and failure of the lint."""
    for finding in findings:
        if finding.verdict not in {Verdict.WARN, Verdict.FAIL}:
            continue
        value = finding.value or ""
        shown = value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 3] + "..."
        where = f"{finding.source}:{finding.line}: " if finding.line else ""
        explain = Advice(hint=finding.hint, command=f"clusterkit explain {finding.id}")
        summary = f"{where}{finding.name}={shown}: {finding.summary}"
        yield explain.result(finding.verdict, summary, finding.id)


def _job_settings(job: PreflightJob) -> Mapping[str, str]:
    """Return the variables of the job, with those that `network_interface` stands for."""
    if not job.network_interface:
        return job.env
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {**dict.fromkeys(names, job.network_interface), **job.env}


def _in_force(job: PreflightJob, node: NodeFacts) -> Mapping[str, str]:
    """Return the variables as a process of the job would see them on `node`, as far as known."""
    found: dict[str, str] = {}
    confs, environment = node.of(CONF), node.of(ENVIRONMENT)
    for source in () if isinstance(confs, Missing) else confs[::-1]:
        found |= {s.name: s.value for s in reversed(source.settings) if s.value is not None}
    if not isinstance(environment, Missing):
        found |= {s.name: s.value for s in environment.settings if s.value is not None}
    return {**found, **_job_settings(job)}


@check("NCCL001", "nccl-job-env")
def job_env(evidence: Evidence) -> Results:
    """Lint the variables that the job sets."""
    source = from_environment(evidence.job.env, "the job")
    if not source.settings:
        yield None, skip("the job sets no such variable")
        return
    found = _lint([source], evidence.job.allowed_names)
    for result in found or (ok("nothing wrong with the variables of the job"),):
        yield None, result


@check("NCCL002", "nccl-node-env", ENVIRONMENT, CONF)
def _node_env(evidence: Evidence) -> Results:
    allowed = (*evidence.job.allowed_names, *_job_settings(evidence.job))
    for node in evidence.nodes:
        environment, confs = node.of(ENVIRONMENT), node.of(CONF)
        for facts in (environment, confs):
            if isinstance(facts, Missing):
                yield node.name, missing(facts)
        sources = (
            *(() if isinstance(environment, Missing) else (environment,)),
            *(() if isinstance(confs, Missing) else confs),
        )
        for result in _linted(sources, allowed) if sources else ():
            yield node.name, result


@lru_cache(maxsize=4096)
def _linted(sources: tuple[Source, ...], allowed: tuple[str, ...]) -> tuple[Result, ...]:
    found = _lint(sources, allowed)
    return found or (ok("nothing wrong with what the node sets"),)


def _prefixes(
    id_: str, setting: str, by_item: Mapping[str, tuple[str, ...]], here: str
) -> Iterator[Result]:
    """Warn of names that match longer names as well."""
    for item, matched in by_item.items():
        if item in matched and any(name[len(item) :].isdigit() for name in matched):
            summary = f"{setting}: {item} is a prefix, it matches {', '.join(matched)}"
            yield advice(id_, "prefix").warn(summary, here)


_BY_PREFIX = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
_RAILS = ("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "NCCL_FASTRAK_IFNAME")
"""The cards beside the GPUs of Google's A3 (TCPX, TCPXO): each of them carries a share."""
_EXACT = (
    *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", *_RAILS),
    *("NCCL_GPUDIRECTTCPX_CTRL_DEV", "NCCL_FASTRAK_CTRL_DEV"),
)


@machine_check("NCCL003", "nccl-interfaces", interfaces.NAMED, ENVIRONMENT, CONF)
def _interfaces(node: NodeFacts, job: PreflightJob) -> Found:
    settings = _in_force(job, node)
    given = {name: settings[name] for name in (*_BY_PREFIX, *_EXACT) if settings.get(name)}
    if settings.get("NCCL_NET", "").lower() != "socket":  # else it names devices, such as HCAs
        given.pop("NCCL_OOB_NET_IFNAME", None)
    if not given:
        return skip("no variable names an interface: the libraries choose")
    found = [*_of_interfaces(given, node.need(interfaces.NAMED))]
    return found or ok("the interfaces that variables name are usable")


def _of_interfaces(
    given: Mapping[str, str], interfaces: tuple[NamedInterface, ...]
) -> Iterator[Result]:
    usable = [i.name for i in interfaces if i.usable and i.name != "lo"]
    here = f"usable here: {', '.join(usable) or 'none'}"
    for name, value in given.items():
        setting = f"{name}={value}"
        listed, names = parse_names(value, plain=name in _EXACT), [i.name for i in interfaces]
        by_item, wanted = listed.by_item(names), listed.taken(names)
        bad = advice("NCCL003", name=name)
        lost = [item for item, matched in by_item.items() if not (matched or listed.exclude)]
        taken = [i for i in interfaces if i.name in wanted]
        if not taken or (lost and name in _EXACT):
            what = f"no interface {', '.join(lost)}" if lost else "it leaves no interface"
            yield bad.fail(f"{setting}: {what}", here)
        elif idle := _idle(taken, every=name in _RAILS):
            down = ", ".join(idle)
            yield bad.fail(f"{setting}: {down} is down or has no address", here)
        elif lost:
            summary = f"{setting}: no interface {', '.join(lost)}"
            yield advice("NCCL003", "lost", name=name).warn(summary, here)
        yield from _prefixes("NCCL003", setting, by_item, here)


def _idle(taken: list[NamedInterface], *, every: bool) -> list[str]:
    """Return the interfaces that are down, where none is up or `every` one has to be."""
    idle = [one.name for one in taken if not one.usable]
    return idle if every or len(idle) == len(taken) else []


_SWITCHES = ("NCCL_IB_DISABLE", "NCCL_NET")


@machine_check("NCCL004", "nccl-hcas", rdma_ports.PROBE, ENVIRONMENT, CONF)
def _hcas(node: NodeFacts, job: PreflightJob) -> Found:
    names = ("NCCL_IB_HCA", "UCX_NET_DEVICES", *_unless_allowed(_SWITCHES, job))
    settings, facts = _in_force(job, node), node.of(rdma_ports.PROBE)
    given = {name: settings[name] for name in names if settings.get(name)}
    if not given:
        return skip("no variable is about HCAs")
    no_hca = isinstance(facts, Missing) and facts.verdict is Verdict.SKIP
    none = no_hca and "NCCL_IB_HCA" in given
    found = [*_of_hcas(given, Rdma(devices=()) if none else node.need(rdma_ports.PROBE))]
    return found or ok("what variables say about HCAs fits the node")


def _unless_allowed(names: tuple[str, ...], job: PreflightJob) -> tuple[str, ...]:
    """Return the variables that `allowed_env` of the cluster does not leave alone."""
    return tuple(n for n in names if not any(fnmatchcase(n, glob) for glob in job.allowed_names))


def _of_hcas(given: Mapping[str, str], rdma: Rdma) -> Iterator[Result]:
    names = [device.name for device in rdma.devices]
    active = {d.name for d in rdma.devices if any(p.state == "active" for p in d.ports)}
    here = f"here: {', '.join(names) or 'none'}; active: {', '.join(sorted(active)) or 'none'}"
    for name, value in given.items():
        setting = f"{name}={value}"
        if name in _SWITCHES:
            off = value.lower() == "socket" if name == "NCCL_NET" else strtoll(value)[0] == 1
            if active and off:
                switch = advice("NCCL004", "switch", setting=setting)
                yield switch.fail(f"{setting} on a node with active HCAs", here)
            continue
        if name == "UCX_NET_DEVICES" and (value == "all" or "mlx" not in value):
            continue
        listed = parse_names(value, plain=name == "UCX_NET_DEVICES")
        by_item, taken = listed.by_item(names), listed.taken(names)
        bad = advice("NCCL004", name=name)
        lost = [item for item, matched in by_item.items() if not (matched or listed.exclude)]
        idle = [item for item in taken if item not in active]
        if not active.intersection(taken):
            yield bad.fail(f"{setting}: takes no active HCA", here)
        elif lost:
            yield bad.fail(f"{setting}: no HCA {', '.join(lost)}", here)
        elif idle and not listed.exclude:
            yield bad.warn(f"{setting}: {', '.join(idle)} has no active port", here)
        yield from _prefixes("NCCL004", setting, by_item, here)


_MAY_DIFFER = frozenset(
    {
        "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
        "NCCL_IB_HCA", "UCX_NET_DEVICES", "NCCL_HOSTID", "NCCL_TOPO_FILE", "NCCL_CONF_FILE",
        "NCCL_DEBUG_FILE", "CUDA_VISIBLE_DEVICES",
    }
)  # fmt: skip


@check("NCCL005", "nccl-uniform", ENVIRONMENT, CONF, tier=Tier.ROUND_TRIP)
def _uniform(evidence: Evidence) -> Results:
    known: dict[str, dict[str, str]] = {}
    for node in evidence.nodes:
        lacking = [f for f in (node.of(ENVIRONMENT), node.of(CONF)) if isinstance(f, Missing)]
        if lacking:
            yield node.name, missing(lacking[0])
            continue
        settings = _in_force(evidence.job, node)
        known[node.name] = {n: v for n, v in settings.items() if n not in _MAY_DIFFER}
    odd: dict[str, list[Result]] = {name: [] for name in known}
    for variable in dict.fromkeys(n for settings in known.values() for n in settings):
        values = {
            name: "not set" if (value := settings.get(variable)) is None else repr(value)
            for name, settings in known.items()
        }
        usual = majority(values)
        seen = f"values: {', '.join(sorted(set(values.values())))}"
        summary = f"{variable} differs, and no value has a majority"
        for name, value in values.items():
            if usual is not None:
                summary = f"{variable} is {value}, on most nodes {usual}"
            if value != usual:
                odd[name].append(advice("NCCL005").fail(summary, seen))
    for name, results in odd.items():
        for result in results or [ok("the same variables as most nodes")]:
            yield name, result


_P2P = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
_SHM = "NCCL_SHM_DISABLE"


@machine_check("NCCL006", "nccl-nvlink", nvidia_links.TOPO, ENVIRONMENT, CONF)
def _nvlink(node: NodeFacts, job: PreflightJob) -> Result:
    names, settings = _unless_allowed((*_P2P, _SHM), job), _in_force(job, node)
    off = [f"{name}={settings[name]}" for name in names if _is_off(name, settings)]
    if not off:
        return skip("no variable switches NVLink off")
    return _switched_off(off, node.need(nvidia_links.TOPO))


def _is_off(name: str, settings: Mapping[str, str]) -> bool:
    value = settings.get(name, "")
    # NCCL reads both switches as 1 or not 1; a level below the first one lets no pair through.
    return value in {"LOC", "0"} if name == _P2P[1] else strtoll(value)[0] == 1


def _switched_off(off: list[str], topology: Topology) -> Result:
    links = [nvlinks(link) for _, _, link in topology.gpu_pairs()]
    if not any(links):
        return skip("no NVLink between GPUs")
    lost = " and ".join(setting for setting in off if setting.startswith(_P2P) or not all(links))
    if not lost:
        return ok("NVLink is not switched off", ", ".join(off))
    pairs = f"{sum(map(bool, links))} of {len(links)} pairs of GPUs have NVLink"
    return advice("NCCL006", settings=lost).fail(f"{lost} on a node with NVLink", pairs)


def _no_plugin(job: PreflightJob) -> str | None:
    if job.container_runtime is not None:
        return "the plug-in is opened in the image (NCCL009)"
    if job.uses_gpus is False:
        return "the job uses no GPU"
    return None if plugin_names(job) else "neither the job nor its platform names a plug-in"


def _no_fabric(node: NodeFacts, job: PreflightJob) -> bool:
    """Tell whether nothing says that a node has a fast fabric, and the job asks for no plug-in."""
    asked = PLUGIN_VARIABLE in job.env or job.has_fabric
    return not asked and isinstance(node.of(rdma_ports.PROBE), Missing)


@machine_check("NCCL007", "nccl-plugin", fabric_files.PLUGIN, rdma_ports.PROBE, skip_if=_no_plugin)
def _plugin(node: NodeFacts, job: PreflightJob) -> Found:
    if _no_fabric(node, job):
        return skip("no fast fabric is known of")
    found = node.need(fabric_files.PLUGIN)
    if found is None:
        return unknown(f"no interpreter {job.python} to open it with")
    if found.opened is not None:
        return ok(f"{found.opened} can be opened")
    name = plugin_names(job)[0]
    # A plain shell may have another search path than the job.
    certain = "/" in name or not job.python_is_set_up
    shell = "" if certain else " in a plain shell"
    return _unopened(found, job, advice("NCCL007", name=name), shell, certain=certain)


def _unopened(
    found: Plugin, job: PreflightJob, wrong: Advice, where: str, *, certain: bool
) -> Result:
    asked = PLUGIN_VARIABLE in job.env
    alone = asked or not job.spans_nodes
    verdict = Verdict.WARN if alone or not certain else Verdict.FAIL
    by = f"{PLUGIN_VARIABLE}={job.env[PLUGIN_VARIABLE]}: " if asked else ""
    summary = f"{by}NCCL's plug-in cannot be opened{where}: NCCL continues without, mostly over TCP"
    return wrong.result(verdict, summary, "; ".join(found.failures))


def _no_image(job: PreflightJob) -> str | None:
    if job.container_runtime is None:
        return "the job runs in no container"
    if job.uses_gpus is False:
        return "the job uses no GPU"
    if fabric_files.runtime_of(job) is None:
        return "the image is fetched when the job starts: `status` then says what NCCL takes"
    asked = fabric_files.plugins_inside(job) or fabric_files.files_inside(job)
    return None if asked else "neither a plug-in nor a file is named"


@machine_check("NCCL009", "nccl-image", fabric_files.IMAGE, rdma_ports.PROBE, skip_if=_no_image)
def _fabric_image(node: NodeFacts, job: PreflightJob) -> Found:
    found, named = node.need(fabric_files.IMAGE), fabric_files.files_inside(job)
    wrong = []
    for path in filter(named.get, found.lacks):
        what = f"{named[path]}={path} cannot be read in the image"
        wrong.append(advice("NCCL009", "file", path=path).fail(what))
    if not fabric_files.plugins_inside(job) or _no_fabric(node, job):
        return wrong or ok("the image has what the job names")
    if found.plugin is None:
        return [*wrong, unknown("the image has no python3 to open the plug-in with")]
    if found.plugin.opened is None:
        inside = advice("NCCL009")
        wrong.append(_unopened(found.plugin, job, inside, " in the image", certain=True))
    return wrong or ok(f"{found.plugin.opened} can be opened in the image")


def _no_files(job: PreflightJob) -> str | None:
    return None if job.files else "no file is named by setup, mounts or variables of NCCL"


_WRONG = {"absent": "is missing", "unreadable": "cannot be read"}


@check("NCCL008", "nccl-files", fabric_files.FILES, skip_if=_no_files)
def _files(evidence: Evidence) -> Results:
    found, results = known(evidence, fabric_files.FILES)
    yield from results
    names = tuple(evidence.job.files.items())
    usual = {
        path: majority({node: files[k].text for node, files in found.items() if k < len(files)})
        for k, (path, _) in enumerate(names)
    }
    for node, files in found.items():
        wrong = []
        for (path, by), file in zip(names, files, strict=False):
            wrong += [one] if (one := _judged(path, by, file, usual[path])) is not None else []
        for result in wrong or [ok("the files that the job names are there")]:
            yield node, result


def _judged(path: str, by: str, file: fabric_files.Found, usual: str | None) -> Result | None:
    named = f"{by}: {path}" if by.islower() else f"{by}={path}"
    why = _WRONG.get(file.state)
    if file.state == "folder" and not by.islower():
        why = "is a folder"
    if why is not None:
        return advice("NCCL008", path=path).fail(f"{named} {why}")
    if file.text not in {usual, "-"}:
        kinds = "differs between nodes" if usual is None else "differs from that of most nodes"
        return advice("NCCL008", "other", path=path).warn(f"{named} {kinds}", file.text)
    return None
