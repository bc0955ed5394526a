"""NCCL: the plug-in and the files without which it does not find a fast fabric."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Found, each_machine, known, majority
from clusterkit.preflight.checks.results import Advice, Result, Results, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import Evidence, NodeFacts, check
from clusterkit.preflight.probes.host import fabric_files, image_fabric
from clusterkit.preflight.probes.host.fabric_files import PLUGIN_VARIABLE, Plugin, plugin_names
from clusterkit.preflight.probes.net import rdma_ports
from clusterkit.transport.probe import Missing, PreflightJob


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


@check("NCCL007", "nccl-plugin", fabric_files.PLUGIN, rdma_ports.PROBE, skip_if=_no_plugin)
def _plugin(evidence: Evidence) -> Results:
    job = evidence.job

    def rule(node: NodeFacts) -> Found:
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

    return each_machine(rule)(evidence)


def _unopened(
    found: Plugin, job: PreflightJob, wrong: Advice, where: str, *, certain: bool
) -> Result:
    asked = PLUGIN_VARIABLE in job.env
    alone = asked or not job.spans_nodes
    verdict = Verdict.WARN if alone or not certain else Verdict.FAIL
    by = f"{PLUGIN_VARIABLE}={job.env[PLUGIN_VARIABLE]}: " if asked else ""
    summary = f"{by}NCCL's plug-in cannot be opened{where}: NCCL goes on without, mostly over TCP"
    return wrong.result(verdict, summary, "; ".join(found.failures))


def _no_image(job: PreflightJob) -> str | None:
    if job.container_runtime is None:
        return "the job runs in no container"
    if job.uses_gpus is False:
        return "the job uses no GPU"
    if image_fabric.runtime_of(job) is None:
        return "the image is fetched when the job starts: `status` then says what NCCL takes"
    asked = image_fabric.plugins_inside(job) or image_fabric.files_inside(job)
    return None if asked else "neither a plug-in nor a file is named"


@check("NCCL009", "nccl-image", image_fabric.PROBE, rdma_ports.PROBE, skip_if=_no_image)
def _image(evidence: Evidence) -> Results:
    job = evidence.job
    named = image_fabric.files_inside(job)

    def rule(node: NodeFacts) -> Found:
        found = node.need(image_fabric.PROBE)
        wrong = []
        for path in filter(named.get, found.lacks):
            what = f"{named[path]}={path} cannot be read in the image"
            wrong.append(advice("NCCL009", "file", path=path).fail(what))
        if not image_fabric.plugins_inside(job) or _no_fabric(node, job):
            return wrong or ok("the image has what the job names")
        if found.plugin is None:
            return [*wrong, unknown("the image has no python3 to open the plug-in with")]
        if found.plugin.opened is None:
            inside = advice("NCCL009")
            wrong.append(_unopened(found.plugin, job, inside, " in the image", certain=True))
        return wrong or ok(f"{found.plugin.opened} can be opened in the image")

    return each_machine(rule)(evidence)


def _no_files(job: PreflightJob) -> str | None:
    return None if job.files else "no file is named by setup, mounts or variables of NCCL"


_WRONG = {"absent": "is not there", "unreadable": "cannot be read"}


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
