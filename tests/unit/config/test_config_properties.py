"""No text and no bytes raise anything but `UserError`, and none takes for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkit.config.load import load_settings
from clusterkit.config.schema import ClusterModel, ConfigModel
from clusterkit.core.errors import UserError
from clusterkit.launch.jobfile import JobFile, load_job_file

KEYS = st.sampled_from(
    [*ClusterModel.model_fields, *ConfigModel.model_fields, *JobFile.model_fields]
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.text(max_size=6) | st.integers(), inner, max_size=6)
    ),
    max_leaves=20,
)
CLUSTERS = st.fixed_dictionaries(
    {"clusters": st.dictionaries(st.text(max_size=5), st.dictionaries(KEYS, TREES, max_size=5))}
)
YAML_LIKE = st.text(alphabet="ab:-[]{},&*!|>'\"%@`#?<\n\t \\0U~.x", max_size=60)
TEXTS = (
    st.text()
    | YAML_LIKE
    | (TREES | CLUSTERS).map(lambda tree: yaml.safe_dump(tree, allow_unicode=True))
)


@settings(max_examples=400)
@given(text=TEXTS)
def test_no_text_raises_anything_but_user_errors(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    environ = {"CLUSTERKIT_CONFIG_FILE": str(path)}
    for load in (
        lambda: load_settings(cwd=path.parent, environ=environ),
        lambda: load_job_file(path),
    ):
        try:
            load()
        except UserError as error:
            assert str(error)  # noqa: PT017 - that it can be printed is the point


@settings(max_examples=200)
@given(raw=st.binary(max_size=80))
def test_no_bytes_raise_anything_but_user_errors(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(raw)
    try:
        load_settings(cwd=path.parent, environ={"CLUSTERKIT_CONFIG_FILE": str(path)})
    except UserError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "a: " + "{b: " * 3000,
        '"\\UFFFFFFFF"',
        (
            "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
            "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
            "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n"
        ),
        "clusters: {a: {kind: ssh, hosts: 'n[1-65536],m[1-65536]'}}",
        "clusters: {a: {kind: local, gpus_per_node: " + "9" * 5000 + "}}",
        "<<: [1]",
        "a: &a {<<: *a}",
        "? [a]\n: b",
    ],
    ids=range(9),
)
def test_hostile_texts(tmp_path: Path, text: str) -> None:
    (tmp_path / "clusterkit.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError):
        load_settings(cwd=tmp_path, environ={})
