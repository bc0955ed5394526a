"""`clusterkit images ...` where something is missing or fails: what is said, and the exit code.

`docker` here is a script that says what Docker's own client was heard to say (20.10.24, 28.2.2).
Real builds are in test_docker_images.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.core.data import data_dir
from clusterkit.core.errors import Problem
from clusterkit.images import health
from clusterkit.images.build import Progress, StepState, explain_failure
from clusterkit.images.catalogue import ROOT_IMAGE, Variant
from clusterkit.images.keep import Form, export_command
from clusterkit.images.scan import Vulnerability, read_answer
from tests.helpers.command_line import typed_in

Run = Callable[..., subprocess.CompletedProcess[str]]

_VERSIONS = """case "$*" in
*Server.Version*) echo 20.10.24 ;;
*Client.Version*) echo {client} ;;
"buildx version") exit {buildx} ;;
"image inspect"*)
  [ {there} = 0 ] && echo '[{image}]' && exit
  echo 'Error: No such image: x' >&2; exit 1 ;;
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs clusterkit with a `docker` of its own, or with none."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in tuple(os.environ):
        if name.startswith("DOCKER"):
            monkeypatch.delenv(name)

    def call(
        *words: str, docker: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        if docker is not None:
            (programs / "docker").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/said\n{docker}')
            (programs / "docker").chmod(0o755)
        if not (programs / "sh").exists():
            (programs / "sh").symlink_to("/bin/sh")
        return typed_in(tmp_path, "images", *words, PATH=str(programs), **env)

    return call


def engine(
    rest: str = "",
    *,
    client: str = "20.10.24",
    buildx: bool = True,
    there: bool = True,
) -> str:
    """Return the script of a docker whose engine answers."""
    image = {
        "Id": "sha256:" + "ab" * 32,
        "RepoTags": ["clusterkit/base:cpu"],
        "RepoDigests": [],
        "Size": 314_000_000,
        "Created": "2026-11-22T00:00:00Z",
        "Config": {"Labels": {"io.clusterkit.image": "base"}},
    }
    start = _VERSIONS.format(
        client=client,
        buildx=int(not buildx),
        image=json.dumps(image),
        there=int(not there),
    )
    return f"{start}{rest}\nesac\n"


def test_without_docker_it_says_how_to_get_it(run: Run) -> None:
    done = run("build", "base:cpu")
    assert done.returncode == 2
    assert "there is no docker on this machine" in done.stderr
    assert "hint: apt-get install docker.io" in done.stderr


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            (
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
                "Is the docker daemon running?"
            ),
            "the Docker daemon does not answer",
        ),
        (
            (
                "Got permission denied while trying to connect to the Docker daemon socket at "
                "unix:///var/run/docker.sock: dial unix /var/run/docker.sock: connect: permission "
                "denied"
            ),
            "no permission for the Docker daemon",
        ),
    ],
)
@pytest.mark.parametrize("words", [("build", "base:cpu"), ("test", "base:cpu"), ("prune",)])
def test_an_engine_that_does_not_let_us_in(
    run: Run, said: str, message: str, words: tuple[str, ...]
) -> None:
    done = run(*words, "--json", docker=f"echo '{said}' >&2; exit 1")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert message in document["error"]["problems"][0]["message"]
    assert document["error"]["problems"][0]["hint"]


def test_the_list_stands_also_without_an_engine(run: Run) -> None:
    done = run("list", "--variant", "cpu")
    assert done.returncode == 0
    assert "clusterkit/torch:cpu" in done.stdout
    assert "unknown" in done.stdout
    assert "there is no docker" in done.stderr


def test_a_new_client_without_buildx_is_refused_with_what_to_install(run: Run) -> None:
    done = run("build", "base:cpu", docker=engine(client="28.2.2", buildx=False))
    assert done.returncode == 2
    assert "docker 28.2.2 needs its plugin buildx" in done.stderr
    assert "docker-buildx-plugin" in done.stderr


def test_an_old_client_without_buildx_builds_with_buildkit(run: Run, tmp_path: Path) -> None:
    done = run(
        "build", "base:cpu", "--json",
        docker=engine('build*) echo "BUILDKIT=$DOCKER_BUILDKIT" >&2 ;;', buildx=False)
        + f'echo "$DOCKER_BUILDKIT" >>{tmp_path}/buildkit',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    assert image["tag"] == "clusterkit/base:cpu"
    assert image["digest"] == "sha256:" + "ab" * 32
    assert "1" in (tmp_path / "buildkit").read_text().split()
    said = (tmp_path / "said").read_text()
    assert "build --progress=plain --build-arg=PARENT=debian:bookworm-slim@sha256:" in said
    assert "buildx build" not in said


def test_what_is_built_is_pushed_and_no_other_builder_is_asked(run: Run, tmp_path: Path) -> None:
    """One that `docker buildx use` names sees no parent that the engine has."""
    done = run(
        "build", "torch:cpu", "--push", "--registry", "reg.example",
        docker=engine(f'build*) echo "$BUILDX_BUILDER" >>{tmp_path}/builder ;;'),
        HTTPS_PROXY="http://u:secret@proxy:1", BUILDX_BUILDER="other",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pushed") == 2
    said = (tmp_path / "said").read_text()
    assert "--build-arg=PARENT=reg.example/clusterkit/base:cpu" in said
    assert said.count("push --quiet reg.example/clusterkit/torch:") == 3
    assert "secret" not in said
    assert "other" not in (tmp_path / "builder").read_text()


def test_a_push_that_is_refused_says_where_to_log_in(run: Run) -> None:
    done = run(
        "build", "base:cpu", "--push", "--registry", "reg.example",
        docker=engine("push*) echo 'denied: requested access' >&2; exit 1 ;;"),
    )  # fmt: skip
    assert done.returncode == 2
    assert "denied: requested access" in done.stderr
    assert "hint: docker login reg.example" in done.stderr


FAILED_STEP = """#6 [2/3] RUN install-python requirements.txt
#6 0.213 Collecting torch
#6 1.5 {said}
#6 ERROR: executor failed running [/bin/sh -c install-python requirements.txt]: exit code: 1
------
 > [2/3] RUN install-python requirements.txt:
------
failed to solve with frontend dockerfile.v0: failed to build LLB: exit code: 1
"""


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "make room"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "PyTorch's own index"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS", "find out why"),
        ("SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate", "--ca FILE"),
        ("Temporary failure resolving 'deb.example.org'", "--network host"),
        ("E: Unable to locate package python3-nosuch", "--apt-sources FILE"),
        ("ERROR: No matching distribution found for einops==0.8.2", "--pip-conf FILE"),
    ],
)
def test_a_failed_step_is_shown_with_its_own_output(said: str, hint: str) -> None:
    progress = Progress()
    for line in FAILED_STEP.format(said=said).splitlines():
        progress.feed(line)
    error = explain_failure("torch:cpu", progress, 1)
    assert "[2/3] RUN install-python requirements.txt" in error.message
    assert f"  | {said}" in error.message
    assert "Collecting torch" in error.message
    assert hint in (error.hint or "")


def test_a_base_image_that_cannot_be_pulled_is_named() -> None:
    progress = Progress()
    name = "[internal] load metadata for docker.io/library/debian:bookworm-slim@sha256:47"
    progress.feed(f"#3 {name}")
    progress.feed("#3 ERROR: failed to do request: lookup registry: no such host")
    error = explain_failure("base:cpu", progress, 1)
    assert "debian:bookworm-slim@sha256:47 cannot be pulled" in error.message
    assert "--root IMAGE" in (error.hint or "")


def test_a_disk_that_fills_in_the_middle_ends_the_build_with_words(run: Run) -> None:
    lines = [
        "#5 [2/3] COPY bin/ /usr/local/bin/",
        "#5 ERROR: write /var/lib/docker/overlay2/x: no space left on device",
    ]
    text = "; ".join(f"echo '{line}'" for line in lines)
    done = run("build", "base:cpu", docker=engine(f"'build --progress'*) {text}; exit 1 ;;"))
    assert done.returncode == 2
    assert "no space left on device" in done.stderr
    assert "hint: make room there" in done.stderr
    assert done.stdout == ""


def test_the_progress_of_a_build_is_read() -> None:
    progress = Progress()
    lines = """#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 128B done
#1 DONE 0.0s
#5 [stage-1 1/2] FROM docker.io/library/debian-base:bookworm
#5 sha256:498b3ff378c734e60c6706c85ccce10dcccc20adca1743cc98d7da65de458f1f
#5 CACHED
#6 [stage-1 2/2] RUN make
#6 0.31 hello
#6 DONE 12.5s"""
    changes = [step for line in lines.splitlines() if (step := progress.feed(line))]
    assert len(changes) == 6
    cached, made = progress.steps["5"], progress.steps["6"]
    assert (cached.state, made.state, made.seconds) == (StepState.CACHED, StepState.DONE, 12.5)
    assert list(made.output) == ["hello"]
    assert [step.internal for step in progress.steps.values()] == [True, False, False]
    assert progress.failed is None


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Release Build\nGCC version: 12.2.0\n"


def seen(**more: object) -> health.Seen:
    """Return what torch says in a container that has everything, changed by `more`."""
    document = {
        "torch": "2.13.0+cu130", "cuda": "13.0", "hip": None, "count": 8, "messages": [],
        "devices": ["/dev/nvidia0"], "driver": DRIVER.format("580.82.07"), "visible": None,
    }  # fmt: skip
    return health.read_seen({**document, **more})


def test_a_torch_that_sees_its_gpus_needs_no_explanation() -> None:
    assert health.explain(Variant.CUDA, seen()) is None
    assert health.explain(Variant.CPU, seen(count=0, cuda=None)) is None


@pytest.mark.parametrize(
    ("variant", "facts", "message", "hint"),
    [
        ("cuda", {"cuda": None, "torch": "2.13.0+cpu"}, "not built for cuda", "lock file"),
        ("cuda", {"driver": DRIVER.format("550.54.15")}, "driver 550.54.15 is too old", "580"),
        ("cuda", {"devices": []}, "given no GPU", "--gpus all"),
        ("cuda", {"driver": ""}, "runs no NVIDIA driver", "modprobe"),
        ("cuda", {"visible": ""}, "CUDA_VISIBLE_DEVICES='' hides", "unset"),
        (
            "cuda",
            {"messages": ["CUDA error 802: not initialized"]},
            "NVSwitch",
            "fabric",
        ),
        ("cuda", {"messages": ["CUDA error: unknown error"]}, "unknown error", "nvidia-smi"),
        ("rocm", {"hip": "7.1", "devices": []}, "no AMD GPU", "/dev/kfd"),
        ("rocm", {"hip": None}, "not built for rocm", "lock file"),
    ],
)
def test_a_torch_that_sees_no_driver_is_explained(
    variant: str, facts: dict[str, object], message: str, hint: str
) -> None:
    found = health.explain(Variant(variant), seen(**{"count": 0, **facts}))
    assert isinstance(found, Problem)
    assert message in found.message
    assert hint in (found.hint or "")


def test_an_unhealthy_image_is_a_finding(run: Run) -> None:
    docker = engine("run*) echo 'ImportError: torch' >&2; exit 3 ;;")
    done = run("test", "base:cpu", "--json", docker=docker)
    assert done.returncode == 1
    (image,) = json.loads(done.stdout)["images"]
    assert not image["healthy"]
    assert image["output"] == "ImportError: torch"
    assert "code 3" in image["problem"]["message"]


def test_an_image_that_is_not_built_is_named_with_the_command(run: Run) -> None:
    for words in (("test", "base:cpu"), ("show", "base:cpu", "--sbom", "x.json")):
        done = run(*words, docker=engine(there=False))
        assert done.returncode == 2
        assert "clusterkit images build base:cpu" in done.stderr


def test_images_are_exported_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    save = (
        'save*) [ "$FAIL" ] && { echo "write x: no space left on device" >&2; exit 1; }; '
        'echo archive >"$3" ;;'
    )
    failed = run("export", "base:cpu", "--to", "tar", docker=engine(save), FAIL="1")
    assert failed.returncode == 2
    assert "the disk of Docker is full" in failed.stderr
    assert "are free in" in failed.stderr
    assert not list(tmp_path.glob("*.tar*"))
    done = run("export", "base:cpu", "--to", "tar", "--json", docker=engine(save))
    assert json.loads(done.stdout)["size_bytes"] == len("archive\n")
    assert (tmp_path / "base-cpu.tar").read_text() == "archive\n"
    again = run("export", "base:cpu", "--to", "tar", docker=engine(save))
    assert again.returncode == 2
    assert "--force" in again.stderr


@pytest.mark.parametrize(
    ("form", "command"),
    [
        (Form.ENROOT, "enroot import --output x.sqsh dockerd://clusterkit/torch:cuda"),
        (Form.APPTAINER, "apptainer build x.sqsh docker-daemon:clusterkit/torch:cuda"),
        (Form.TAR, "docker save --output x.sqsh clusterkit/torch:cuda"),
    ],
)
def test_the_command_of_each_export(form: Form, command: str) -> None:
    words = export_command("clusterkit/torch:cuda", form, Path("x.sqsh"))
    assert " ".join(words) == command


def test_an_export_without_its_tool_is_refused(run: Run) -> None:
    for form in ("enroot", "apptainer"):
        done = run("export", "base:cpu", "--to", form, docker=engine())
        assert done.returncode == 2
        assert f"{form} is not installed here" in done.stderr
    assert "did you mean 'enroot'" in run("export", "base", "--to", "enrot").stderr


def test_prune_takes_only_what_later_builds_replaced(run: Run, tmp_path: Path) -> None:
    old = json.dumps(
        [{"Id": "sha256:01", "RepoTags": ["clusterkit/base:cpu-0123456789ab"], "Size": 1,
          "Created": "", "Config": {"Labels": {"io.clusterkit.image": "base"}}}]
    )  # fmt: skip
    built_on_it = old.replace("clusterkit/base:cpu-0123456789ab", "my/train:cpu-0123456789ab")
    untagged = old.replace('"clusterkit/base:cpu-0123456789ab"', "")
    in_use = old.replace('["clusterkit', '["clusterkit/base:cpu", "clusterkit')
    docker = (
        "case \"$*\" in *' sha256:01') echo '" + old + "'; exit 0 ;;\n"
        "*' sha256:03') echo '" + built_on_it + "'; exit 0 ;;\n"
        "*' sha256:04') echo '" + untagged + "'; exit 0 ;;\n"
        "*' sha256:05') echo '" + in_use + "'; exit 0 ;; esac\n"
        + engine("'image ls'*) for n in 1 2 3 4 5; do echo sha256:0$n; done ;;")
    )  # fmt: skip
    dry = run("prune", "--dry-run", docker=docker)
    assert dry.stdout.splitlines() == ["clusterkit/base:cpu-0123456789ab  0 kB", "1 would go"]
    assert "image rm" not in (tmp_path / "said").read_text()
    done = run("prune", "--json", docker=docker)
    assert [image["id"] for image in json.loads(done.stdout)["removed"]] == ["sha256:01"]
    assert "image rm clusterkit/base:cpu-0123456789ab" in (tmp_path / "said").read_text()


def test_output_builds_nothing_and_writes_all_that_a_build_needs(run: Run, tmp_path: Path) -> None:
    done = run("build", "torch:cpu", "--output", "out")
    assert done.returncode == 0, done.stderr
    written = {str(path.relative_to(tmp_path / "out")) for path in tmp_path.glob("out/**/*")}
    assert {"build.sh", "docker-bake.json", "torch-cpu/requirements.txt"} <= written
    assert any(name.startswith("base-cpu/clusterkit_launch-") for name in written)


def test_each_build_tells_what_it_was_made_from_and_what_is_inside(
    run: Run, tmp_path: Path
) -> None:
    inside = dict.fromkeys(("torch", "torch_cuda", "torch_hip"))
    inside |= {"system": "Debian 12", "user": "train", "python": "3.11.2"}
    inside |= {"python_packages": {"rich": "15.0.0"}, "debian_packages": {"tini": "0.19"}}
    docker = engine(f"build*) ;;\nrun*) echo '{json.dumps(inside)}' ;;")
    done = run("build", "torch:cpu", "--attest", "out", "--json", "--pip-conf", "x", docker=docker)
    assert "'pip' is missing" in done.stderr
    (tmp_path / "x").write_text("[global]\nextra-index-url = https://token@example.org\n")
    done = run("build", "torch:cpu", "--attest", "out", "--json", "--pip-conf", "x", docker=docker)
    assert done.returncode == 0, done.stderr
    names = ("base-cpu", "torch-cpu")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{name}.{kind}.json" for name in names for kind in ("sbom", "provenance")
    }
    made = {name: (tmp_path / "out" / f"{name}.provenance.json").read_text() for name in names}
    assert "token" not in "".join(made.values())
    below, torch = (json.loads(made[name]) for name in names)
    images = {one["name"]: one for one in json.loads(done.stdout)["images"]}
    assert torch["subject"][0] == {
        "name": "clusterkit/torch:cpu",
        "digest": {"sha256": images["torch"]["digest"].removeprefix("sha256:")},
    }
    used = {
        one.get("uri", one.get("name")): one["digest"]["sha256"]
        for one in torch["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    assert used["docker:clusterkit/base:cpu"] == below["subject"][0]["digest"]["sha256"]
    lock = (data_dir("images") / "torch/lock/cpu.txt").read_bytes()
    assert used["requirements.txt"] == hashlib.sha256(lock).hexdigest()
    assert f"sha256:{used['pkg:pypi/torch@2.13.0%2Bcpu']}" in lock.decode()
    assert len([uri for uri in used if uri.startswith("pkg:")]) == lock.count(b"--hash")
    root = below["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert root["uri"] == "docker:debian:bookworm-slim"
    assert f"sha256:{root['digest']['sha256']}" in ROOT_IMAGE
    sbom = json.loads((tmp_path / "out" / "torch-cpu.sbom.json").read_text())
    assert [one["purl"] for one in sbom["components"]] == [
        "pkg:pypi/rich@15.0.0",
        "pkg:deb/debian/tini@0.19",
    ]
    assert run("build", "torch:cpu", "--attest", "a", "--output", "b").returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("build", "tourch"), "did you mean 'torch'?"),
        (("build", "torch:cupa"), "did you mean 'cuda'?"),
        (("build", "torch:cpu", "--push"), "--push without a registry"),
        (("build", "torch:cpu", "--build-arg", "X"), "--build-arg NAME=VALUE"),
        (("build", "torch:cpu", "--ca", "nosuch.pem"), "'ca' is missing"),
        (("build", "torch:rocm"), "images lock"),
        (("build", "tensorflow:rocm"), "hint: it has cpu and cuda"),
        (("lock", "tensorflow", "--variant", "rocm"), "tensorflow has no variant rocm"),
        (("build", "torch:cpu", "--registry", "https://x"), "not a registry"),
    ],
)
def test_what_cannot_be_built_is_refused_before_docker_is_asked(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_date_that_is_no_number_is_refused(run: Run) -> None:
    done = run("build", "base:cpu", SOURCE_DATE_EPOCH="today")
    assert done.returncode == 2
    assert "SOURCE_DATE_EPOCH" in done.stderr


def test_what_was_built_before_a_failure_is_said(run: Run) -> None:
    rest = "*torch-cpu) echo 'no space left on device'; exit 1 ;;"
    done = run("build", "torch:cpu", docker=engine(rest))
    assert done.returncode == 2
    assert done.stdout.startswith("clusterkit/base:cpu  314 MB  sha256:abababababab  in ")
    assert "torch:cpu was not built" in done.stderr


def audited(**vulnerabilities: object) -> str:
    """Return an answer of pip-audit 2.10.1 on three packages, as it was seen."""
    known = {"django": ["CVE-2021-31542"], "jinja2": [], "torch": [], **vulnerabilities}
    rows = [
        {"name": name, "version": "3.2", "vulns": [{"id": i, "fix_versions": ["3.3"]} for i in ids]}
        if isinstance(ids, list)
        else {"name": name, "skip_reason": "Dependency not found on PyPI and could not be audited"}
        for name, ids in known.items()
    ]
    return json.dumps({"dependencies": rows, "fixes": []})


def test_known_vulnerabilities_are_told_with_the_release_that_has_none() -> None:
    clean = read_answer(audited(torch="skipped"))
    assert (clean.scanned, clean.unknown, clean.vulnerabilities) == (1, ("torch",), ())
    (one,) = read_answer(audited(jinja2=["CVE-1"])).vulnerabilities
    assert one == Vulnerability(package="jinja2", version="3.2", id="CVE-1", fixed_in=("3.3",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (audited(django="skipped", jinja2="skipped", torch="skipped"), "not even those of django"),
        (audited(django=[]), "not even those of django"),
        (audited(jinja2="skipped", torch="skipped"), "none of the packages"),
        ('{"dependencies": [{}]}', "of another form"),
        ("[]", "of another form"),
        ("", "Expecting value"),
    ],
)
def test_an_answer_that_knows_no_vulnerabilities_is_none(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_answer(text)


def auditing(folder: Path, program: str) -> None:
    """Put a pip-audit on PATH that answers by a shell program."""
    audit = folder / "bin/pip-audit"
    audit.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {{ {program}; }}\n')
    audit.chmod(0o755)


_PACKAGES = {
    **dict.fromkeys(("system", "user", "python", "torch", "torch_cuda", "torch_hip")),
    "python_packages": {"Jinja2": "3", "torch": "2"},
    "debian_packages": {},
}
HEALTHY = engine(f"*entrypoint*) echo '{json.dumps(_PACKAGES)}' ;;")


@pytest.mark.parametrize(
    ("audit", "why"),
    [
        (None, "not scanned: pip-audit: command not found (pip install pip-audit)"),
        ("echo 'x: Name or service not known' >&2; exit 1", "not scanned: pip-audit: x: Name or"),
        (f"echo '{audited(django='skipped')}'", "not scanned: pip-audit: its service knows no"),
    ],
)
def test_what_was_not_scanned_is_said(
    run: Run, tmp_path: Path, audit: str | None, why: str
) -> None:
    if audit is not None:
        auditing(tmp_path, audit)
    done = run("test", "base:cpu", docker=HEALTHY)
    assert done.returncode == 0
    assert why in done.stderr
    assert "vulnerabilities" not in done.stdout


def test_a_known_vulnerability_is_a_finding_without_no_scan(run: Run, tmp_path: Path) -> None:
    auditing(tmp_path, f"echo '{audited(jinja2=['CVE-1'])}'; exit 1")
    done = run("test", "base:cpu", docker=HEALTHY)
    assert done.returncode == 1
    assert "1 known vulnerability in 2 Python packages" in done.stdout
    done = run("test", "base:cpu", "--no-scan", docker=HEALTHY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vulnerabilit" not in done.stdout
    done = run("test", "base:cpu", "--no-scan", "--json", docker=HEALTHY)
    assert json.loads(done.stdout)["images"][0]["scan"]["not_scanned"] == "--no-scan"
