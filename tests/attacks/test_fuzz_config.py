"""Configurations and job files of any content: settings, or errors that a user can read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterkit.config.load import load_settings
from clusterkit.config.schema import ClusterModel
from clusterkit.core.errors import UserError
from clusterkit.launch.array.file import load_sweep_file
from clusterkit.launch.jobfile import JobFile, load_job_file

ODD = st.sampled_from(
    [
        "", " ", "~", "~nobody-here/x", "$HOME", "\0", "\x1b[2J", "?",
        "9" * 5000, "1e400", "-1", "0x10", ".inf", "n[1-60000]", "n[1-3]x[1-3]", "n[", "a=b", "=",
        "/dev/null", "/dev/zero", "/", "..", "x" * 5000, "1:2:3:4", "9" * 30 + "-00:00:00",
        "18446744073709551616",
        "group", "local", "slurm", "ssh", "null", "[1", "'", "\"", "NaN", "1-65536",
    ]
)  # fmt: skip
SCALARS = st.one_of(ODD, st.text(max_size=20), st.integers(), st.floats(), st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.one_of(ODD, st.text(max_size=8)), inner, max_size=4)
    ),
    max_leaves=8,
)
CLUSTERS = st.dictionaries(st.sampled_from(sorted(ClusterModel.model_fields)), VALUES, max_size=5)
CONFIGS = st.fixed_dictionaries(
    {"clusters": st.dictionaries(st.sampled_from(["a", "local", "b b", ""]), CLUSTERS, max_size=2)},
    optional={"default_cluster": VALUES, "x-own": VALUES},
)
JOBS = st.dictionaries(st.sampled_from(sorted(JobFile.model_fields)), VALUES, max_size=6)
BYTES = st.one_of(
    st.binary(max_size=200),
    st.text(alphabet="ab:[]{}&*!-|>'\"#%@`,?\n\t \x00\u2028<=~", max_size=200).map(str.encode),
)
FUZZ = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(content: bytes, how: Callable[[Path], Any], name: str = "clusterkit.yaml") -> None:
    """Read a file of this content, of which nothing but a `UserError` may come."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        try:
            how(path)
        except UserError as error:
            said = [str(problem) for problem in error.problems]
        else:
            return
    assert said
    assert all(said)
    assert max(map(len, said)) < 5_000


def as_settings(path: Path) -> None:
    load_settings(cwd=path.parent, environ={"HOME": str(path.parent)})


def beside(path: Path, content: bytes) -> Path:
    """Put the hostfile that a configuration names beside it."""
    path.with_name("hosts").write_bytes(content)
    return path


def dumped(document: Any) -> bytes:
    return yaml.safe_dump(document, allow_unicode=True).encode(errors="surrogatepass")


@FUZZ
@given(document=CONFIGS)
@example(document={"clusters": {"a": {"kind": "ssh", "hostfile": "~nobody-here/x"}}})
@example(document={"clusters": {"local": {"run_dir": "~nobody-here/x"}}})
def test_any_configuration_is_settings_or_an_error(document: Any) -> None:
    read(dumped(document), as_settings)


@FUZZ
@given(document=JOBS)
def test_any_job_file_is_a_job_or_an_error(document: Any) -> None:
    read(dumped(document), load_job_file)


@FUZZ
@given(content=BYTES)
@example(content=b"[" * 500)
@example(content=b"{a: " * 1_000)
@example(content=b"- " * 3_000)
@example(content=b"? " * 3_000)
@example(content=b"a: &a [" + b"*a," * 500 + b"]")
@example(
    content=b"\n".join(
        [
            b"x-%d: &x%d [%s]" % (i, i, b",".join([b"*x%d" % (i - 1)] * 9) if i else b"1")
            for i in range(12)
        ]
    )
)
@example(content=b"clusters: {local: {<<: &l {<<: *l}}}")
@example(content=b'a: "\\UFFFFFFFF"')
@example(content=b"\xff\xfe\x00a")
def test_any_bytes_are_an_error_at_worst(content: bytes) -> None:
    read(content, as_settings)
    read(content, load_job_file)
    read(content, lambda path: load_sweep_file(path, cwd=path.parent), name="s.csv")
    read(content, lambda path: load_sweep_file(path, cwd=path.parent), name="s.yaml")
    read(
        b"clusters: {a: {kind: ssh, hostfile: hosts}}",
        lambda path: as_settings(beside(path, content)),
    )


@FUZZ
@given(values=st.dictionaries(
    st.sampled_from(["CLUSTER", "CONFIG_FILE", "RUN_DIR", "HOSTS", "TIME", "PORT_RANGE"]),
    st.one_of(ODD, st.text(max_size=30)),
))  # fmt: skip
def test_any_environment_is_settings_or_an_error(values: dict[str, str], tmp_path: Path) -> None:
    environ = {f"CLUSTERKIT_{name}": value for name, value in values.items()}
    try:
        found = load_settings(cwd=tmp_path, environ=environ).clusters
    except UserError as error:
        found = {problem.message: problem for problem in error.problems}
    assert found


def test_many_clusters_of_many_hosts_are_refused_before_memory_is_full(tmp_path: Path) -> None:
    lines = [f"  c{k}: {{kind: ssh, hosts: 'n[1-60000]'}}" for k in range(300)]
    (tmp_path / "clusterkit.yaml").write_text("\n".join(["clusters:", *lines]))
    with pytest.raises(UserError, match="name more than"):
        load_settings(cwd=tmp_path, environ={"HOME": os.environ["HOME"]})
