"""All compose files, against the schema of the Compose specification; and what is beside them."""

from __future__ import annotations

import importlib.resources
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from clusterkit.images.catalogue import IMAGES, ROOT_IMAGE, VARIANTS, tag_of
from clusterkit.launch.render import render
from tests.helpers.needs import require
from tests.helpers.paths import ROOT
from tests.helpers.render_cases import CASES, plan

MONITORING = ROOT / "compose" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/cluster.json").read_text())


@cache
def validator() -> Any:
    found = importlib.resources.files("check_jsonschema") / "builtin_schemas/vendor"
    schema = json.loads((found / "compose-spec.json").read_text())
    return jsonschema.validators.validator_for(schema)(schema)


def problems(text: str) -> list[str]:
    return [
        f"{error.json_path}: {error.message}"
        for error in validator().iter_errors(yaml.safe_load(text))
    ]


@pytest.mark.parametrize("case", CASES)
def test_rendered_compose_files_follow_the_specification(case: str) -> None:
    files = [file for file in render(plan(case)) if file.name.endswith((".yaml", ".yml"))]
    assert files
    assert {file.name: problems(file.text) for file in files} == {file.name: [] for file in files}


def test_images_that_nobody_names_are_those_of_the_catalogue() -> None:
    known = {tag_of(image, variant) for image in IMAGES.values() for variant in VARIANTS}
    texts = (file.text for case in CASES for file in render(plan(case), only=("compose",)))
    named = set(re.findall(r'^  image: "(clusterkit/[^"]+)"$', "\n".join(texts), re.MULTILINE))
    assert named
    assert named <= known


@pytest.mark.parametrize("name", ["slurm", "rack", "monitoring"])
def test_clusters_follow_the_specification(name: str) -> None:
    assert problems((ROOT / "compose" / name / "compose.yaml").read_text()) == []


def test_monitoring_is_built_on_the_root_of_the_catalogue() -> None:
    assert f"PARENT: ${{PARENT:-{ROOT_IMAGE}}}\n" in (MONITORING / "compose.yaml").read_text()
    assert f"ARG PARENT={ROOT_IMAGE}\n" in (MONITORING / "Dockerfile").read_text()


def test_monitoring_takes_images_by_digest_and_opens_nothing_to_everybody() -> None:
    text = (MONITORING / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    for name in ("grafana", "dcgm-exporter"):
        image = services[name]["image"]
        assert re.fullmatch(r"\$\{\w+:-[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}\}", image)
    listening = re.findall(r"(?:listen-address=|LISTEN: |HTTP_ADDR: )(\S+)", text)
    assert len(listening) == 5
    assert all(one.startswith(("127.0.0.1", "${NODE_ADDRESS:-127.0.0.1}:")) for one in listening)
    grafana = services["grafana"]
    settings = grafana["environment"]
    assert settings["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/grafana-password/admin"
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    condition = grafana["depends_on"]["grafana-password"]["condition"]
    assert condition == "service_completed_successfully"


def test_every_image_of_others_is_named_by_its_digest() -> None:
    """In compose files and Dockerfiles; what this repository builds itself has no registry."""
    require("git")
    listed = subprocess.run(
        ["git", "ls-files", "compose", "images", "tests/docker"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    named = [
        (path, found)
        for path in listed
        if path.endswith((".yaml", ".yml", "Dockerfile"))
        for found in re.findall(
            r"(?m)^\s*(?:image: |FROM |ARG PARENT=|COPY --from=)(\S+)", (ROOT / path).read_text()
        )
    ]
    assert named
    stage = re.compile(r"(?m)^FROM \S+ AS (\S+)")
    for path, image in named:
        stages = set(stage.findall((ROOT / path).read_text())) | {"scratch"}
        ours = "clusterkit/" in image or image in stages or image.startswith(("${PARENT", "*"))
        built_stage = re.sub(r"\$\{VARIANT\}", "cpu", image) in stages
        assert ours or built_stage or "@sha256:" in image, f"{path}: {image}"


def test_the_schema_would_find_a_mistake() -> None:
    assert problems("services: {a: {imge: b}}") != []


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    rules = yaml.safe_load((MONITORING / "prometheus/rules.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def test_what_is_shown_is_what_is_collected() -> None:
    asked = {name for text in expressions() for name in re.findall(r"\b[A-Za-z]+_\w+\b", text)}
    counters = (MONITORING / "dcgm/counters.csv").read_text().splitlines()
    fields = {line.partition(",")[0] for line in counters if not line.startswith("#")}
    assert {name for name in asked if name.startswith("DCGM_")} == fields
    ours = set(re.findall(r"`(clusterkit_\w+)`", (ROOT / "docs/how-to/metrics.md").read_text()))
    assert {name for name in asked if name.startswith("clusterkit_")} <= ours
    written = (ROOT / "clusterkit/observe").glob("[mp]*.*")
    assert ours == {
        name for path in written for name in re.findall(r"\b(clusterkit_\w+)", path.read_text())
    }


def test_alerts_go_to_a_receiver_that_exists_and_no_secret_stands_in_their_file() -> None:
    """What amtool would say of it is asked in tests/docker, where it is installed."""
    text = (MONITORING / "alertmanager/alertmanager.yml").read_text()
    told = yaml.safe_load(text)
    receivers = {one["name"]: one for one in told["receivers"]}
    assert told["route"]["receiver"] == "nobody", "until somebody is named"
    assert {*receivers} == {"nobody", "mail", "slack", "webhook"}
    rules = yaml.safe_load((MONITORING / "prometheus/rules.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in rules for rule in group["rules"]}
    assert {"JobHangs", "JobFailed", "NodeDrained", "GpuIdle"} <= alerts
    for rule in told["inhibit_rules"]:
        named = {one.partition(" = ")[2] for key in rule for one in rule[key] if "alertname" in one}
        assert named <= alerts
    secret = r"(?m)^\s*-?\s*(?:api_url|\w*password|credentials|bearer_token|\w*secret|\w*key):"
    assert not re.search(secret, text)
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())
    handed = {f"/run/secrets/{name}" for name in services["services"]["alertmanager"]["secrets"]}
    assert set(re.findall(r"_file: (\S+)", text)) == handed
    assert all(
        services["secrets"][Path(one).name]["file"].endswith(":-/dev/null}") for one in handed
    )
    (asked,) = yaml.safe_load((MONITORING / "prometheus/prometheus.yml").read_text())["alerting"][
        "alertmanagers"
    ]
    (address,) = asked["static_configs"][0]["targets"]
    assert f"--web.listen-address={address}" in services["services"]["alertmanager"]["command"]


def test_the_dashboard_holds_together() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    source = yaml.safe_load(
        (MONITORING / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )["datasources"][0]
    used = {json.dumps(p["datasource"]) for p in panels if "datasource" in p}
    assert used == {json.dumps({"type": source["type"], "uid": source["uid"]})}
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_temperature_has_its_line_at_85() -> None:
    (panel,) = (panel for panel in DASHBOARD["panels"] if panel["title"] == "Temperature")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["custom"]["thresholdsStyle"]["mode"] == "line"
    assert defaults["thresholds"]["steps"][-1] == {"color": "red", "value": 85}
