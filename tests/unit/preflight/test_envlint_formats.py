"""How the lint reads YAML, other shells than sh, and scripts that are broken."""

from __future__ import annotations

import pytest

from clusterkit.preflight.env_lint.lint import lint
from clusterkit.preflight.env_lint.setting import Format
from clusterkit.preflight.env_lint.sources import guess_format, read_source


def settings(text: str, name: str = "x.sh") -> list[tuple[str, str | None, int | None]]:
    return [(s.name, s.value, s.line) for s in read_source(text, name).settings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_SOKET_IFNAME: eth0\n", [("NCCL_SOKET_IFNAME", "eth0", 1)]),
        ("env: {NCCL_IB_HCA: '=mlx5_0', A: b}\n", [("NCCL_IB_HCA", "=mlx5_0", 1)]),
        ("environment:\n- A=b\n- NCCL_IB_SL=1=2\n", [("NCCL_IB_SL", "1=2", 3)]),
        ("env:\n- name: NCCL_IB_SL\n  value: '1'\n", [("NCCL_IB_SL", "1", 2)]),
        ("a:\n  NCCL_IB_DISABLE: yes\n  NCCL_DEBUG:\n", [("NCCL_IB_DISABLE", "yes", 2)]),
        ("nccl_version: 2.18\nnccl_debug: INFO\nNCCL_IB_SL: 1\n", [("NCCL_IB_SL", "1", 3)]),
        ("a: 1\n---\nNCCL_IB_TC: 0106\n", [("NCCL_IB_TC", "0106", 3)]),
        ("x: &a {NCCL_IB_SL: 1}\ny: *a\nz: {<<: *a}\n", [("NCCL_IB_SL", "1", 1)]),
        ("x: &a [*a]\nNCCL_IB_SL: 1\n", [("NCCL_IB_SL", "1", 2)]),
        (
            "run: |\n  set -e\n  export NCCL_IB_SL=1\nsetup:\n- |\n  NCCL_IB_TC=2 ./x\n",
            [("NCCL_IB_SL", "1", 3), ("NCCL_IB_TC", "2", 6)],
        ),
    ],
)
def test_yaml(text: str, expected: list[tuple[str, str, int]]) -> None:
    source = read_source(text, "job.yaml")
    assert [(s.name, s.value, s.line) for s in source.settings] == expected
    assert source.notes == ()


ETC = "/etc/environment"


def test_etc_environment_is_read_as_pam_env_does() -> None:
    text = (
        "PATH=/bin\n# why\nNCCL_NET_GDR_LEVEL=PIX\nexport NCCL_IB_TC=52 # gold\n"
        "NCCL_DEBUG=\"INFO\"\n NCCL_IB_SL='1'\nNCCL_TOPO_FILE=$HOME/topo.xml\nNCCL_IB_SL =2\n"
    )
    assert guess_format(text, ETC) is Format.PAM
    assert settings(text, ETC) == [
        ("NCCL_NET_GDR_LEVEL", "PIX", 3),
        ("NCCL_IB_TC", "52", 4),
        ("NCCL_DEBUG", "INFO", 5),
        ("NCCL_IB_SL", "1", 6),
        ("NCCL_TOPO_FILE", "$HOME/topo.xml", 7),
        ("NCCL_IB_SL", "2", 8),
    ]
    found = {(f.id, f.line) for f in lint([read_source(text, ETC)]) if f.verdict != "pass"}
    assert found == {("NCCL161", 5), ("NCCL137", 7), ("NCCL133", 8), ("NCCL138", 6)}


@pytest.mark.parametrize(
    "text",
    [
        "write_files:\n- path: /etc/environment\n  append: true\n  content: |\n    NCCL_IB_SL=1\n",
        "- ansible.builtin.copy:\n    dest: /etc/environment\n    content: |\n      NCCL_IB_SL=1\n",
        "- type: data\n  destination: /etc/environment\n  content: |\n    NCCL_IB_SL=1\n",
        "- blockinfile:\n    path: /etc/environment\n    block: |\n      NCCL_IB_SL=1\n",
        "- lineinfile:\n    path: /etc/environment\n    line: NCCL_IB_SL=1\n",
        '- lineinfile: {path: /etc/environment, line: "NCCL_IB_SL=1"}\n',
        "- copy: {dest: /etc/nccl.conf, content: NCCL_IB_SL=1}\n",
        "data:\n  nccl.conf: |\n    NCCL_IB_SL=1\n",
        "data:\n  job.env: |\n    NCCL_IB_SL=1\n",
        "data:\n  train.sh: |\n    export NCCL_IB_SL=1\n",
    ],
)
def test_a_file_that_yaml_writes_is_read_as_that_file(text: str) -> None:
    source = read_source(text, "site.yml")
    assert [(s.name, s.value) for s in source.settings] == [("NCCL_IB_SL", "1")]
    assert (
        text.split("\n")[(source.settings[0].line or 0) - 1]
        .strip()
        .endswith(("NCCL_IB_SL=1", 'NCCL_IB_SL=1"}', "NCCL_IB_SL=1}"))
    )
    assert lint([source]) == ()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('NCCL_IB_SL = "1"\nNCCL_DEBUG = "WARN"  # quiet\n', "-"),
        ("[env]\nNCCL_IB_SL = 1\nNCCL_DEBUG = WARN\n", "-"),
        ('NCCL_IB_SL="1"\nNCCL_DEBUG="WARN"\n', "site.toml"),
    ],
)
def test_a_configuration_has_blanks_and_quotes(text: str, name: str) -> None:
    assert guess_format(text, name) is Format.TOML
    assert [(n, v) for n, v, _ in settings(text, name)] == [
        ("NCCL_IB_SL", "1"),
        ("NCCL_DEBUG", "WARN"),
    ]
    assert lint([read_source(text, name)]) == ()
    (said,) = lint([read_source('NCCL_IB_DISABLE = "true"\n', "x.toml")])
    assert said.id == "NCCL111"


def test_a_script_that_yaml_writes_has_to_export() -> None:
    text = "- copy:\n    dest: /etc/profile.d/nccl.sh\n    content: |\n      NCCL_IB_SL=1\n"
    assert [f.id for f in lint([read_source(text, "site.yml")])] == ["NCCL131"]


def test_mappings_of_yaml_are_not_set_in_one_process() -> None:
    apart = "a: {NCCL_IB_DISABLE: 1}\nb: {NCCL_IB_HCA: '=mlx5_0'}\n"
    beside = "a: {NCCL_IB_DISABLE: 1, NCCL_IB_HCA: '=mlx5_0'}\n"
    assert "NCCL147" not in {f.id for f in lint([read_source(apart, "x.yml")])}
    assert "NCCL147" in {f.id for f in lint([read_source(beside, "x.yml")])}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("NCCL_IB_SL: 1\n---\na: b: c\n", "line 3 is not valid YAML: mapping values"),
        ("NCCL_IB_SL: 1\n---\na: {\n", "is not valid YAML"),
        ("\x00", "the text is not valid YAML"),
        ("[" * 5000, "the text is not valid YAML"),
    ],
)
def test_what_is_no_yaml_is_told(text: str, note: str) -> None:
    source = read_source(text, "x.yaml")
    assert [s.name for s in source.settings] == (["NCCL_IB_SL"] if "NCCL" in text else [])
    (said,) = source.notes
    assert note in said


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("NCCL_SOKET_IFNAME: eth0\n", "-", Format.YAML),
        ("env:\n  - NCCL_DEBUG: INFO\n", "-", Format.YAML),
        ("a: b\n", "x.yml", Format.YAML),
        ("NCCL_DEBUG=INFO\n# NCCL_X: y\n", "-", Format.ENV_FILE),
        ("setenv NCCL_DEBUG INFO\n", "-", Format.SHELL),
    ],
)
def test_yaml_is_told_apart(text: str, name: str, expected: Format) -> None:
    assert guess_format(text, name) is expected


def test_csh_and_fish() -> None:
    csh = "if ($?X) then\n  setenv NCCL_IB_SL 1\nelse\n  setenv NCCL_IB_SL '2'\nendif\n"
    assert settings(csh, "x.csh") == [("NCCL_IB_SL", "1", 2), ("NCCL_IB_SL", "2", 4)]
    assert settings("set -gx NCCL_IB_TC 106\nset -x\nset -e -x\n") == [("NCCL_IB_TC", "106", 1)]
    assert [f.id for f in lint([read_source("setenv NCLL_DEBUG WARN\n", "x")])] == ["NCCL101"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('export A="x\nexport NCCL_IB_SL=1\n', 1),
        ("echo it's\nexport NCCL_IB_SL=1\n", 1),
        ("x\nA='\nB='y'\nexport NCCL_IB_SL=1\n", 2),
        ('A="x\nB="y"\nexport NCCL_IB_SL="1"\n', 1),
        ("A=$(date\nexport NCCL_IB_SL=1\n", 1),
        ("A=`date\nexport NCCL_IB_SL=1\n", 1),
        ("A=${B\nexport NCCL_IB_SL=1\n", 1),
    ],
)
def test_a_quote_that_is_left_open_hides_nothing(text: str, line: int) -> None:
    source = read_source(text, "x.sh")
    assert [(s.name, s.value) for s in source.settings] == [("NCCL_IB_SL", "1")]
    (note,) = source.notes
    assert note.startswith(f"line {line}: no end of a quote or a bracket")


@pytest.mark.parametrize(
    "text",
    [
        "bash -c '\nexport X=1\n'\nexport NCCL_IB_SL=1\n",
        'A="x\ny"\nexport NCCL_IB_SL=1\n',
        "A=$(\nx\n)\n",
    ],
)
def test_quotes_over_several_lines_are_fine(text: str) -> None:
    assert read_source(text, "x.sh").notes == ()


HELM = """\
{{- if eq .Values.test "allreduce" }}
{{/*
Of this chart: {{ no }} yaml
*/}}
kind: MPIJob
metadata:
  name: {{ include "x.name" . }}-test
  labels:
    {{- include "x.labels" . | nindent 4 }}
spec:
  replicas: {{ .Values.n }}
  args:
  - 'mpirun -np {{ mul .Values.n 8 }} -x NCCL_IB_SLL=3
    -x NCCL_IB_TC=41 all_reduce_perf'
  - -x NCCL_IB_TIMEOUT={{ .Values.timeout | default 22 }}
  env:
  {{- range .Values.env }}
  - name: {{ .name }}
    value: {{ .value | quote }}
  {{- end }}
  - name: NCCL_IB_QPS_PER_CONNECTION
    value: "{{ .Values.qps }}"
{{- end }}
"""


def test_what_a_template_fills_in_is_not_judged() -> None:
    source = read_source(HELM, "templates/job.yaml")
    assert source.notes == ()
    assert [(s.name, s.value, s.line) for s in source.settings] == [
        ("NCCL_IB_SLL", "3", 13),
        ("NCCL_IB_TC", "41", 13),
        ("NCCL_IB_TIMEOUT", None, 15),
        ("NCCL_IB_QPS_PER_CONNECTION", None, 21),
    ]
    assert [f.name for f in lint([source]) if f.verdict == "fail"] == ["NCCL_IB_SLL"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("env:\n  NCCL_IB_SL: ${{ inputs.sl }}\n", "ci.yml"),
        ("environment:\n- NCCL_IB_SL=${SL:-3}\n", "compose.yaml"),
        ("env:\n- name: NCCL_IB_SL\n  value: $(SL)\n", "pod.yaml"),
        ("env:\n- name: NCCL_IB_SL\n  value: $SL\n", "pod.yaml"),
        ('env = {\n  NCCL_IB_SL = "${var.sl}"\n}\n', "main.tf"),
        ("{% if ib %}\nexport NCCL_IB_SL={{ sl }}\n{% endif %}\n", "job.sh.j2"),
        ("NCCL_IB_SL={{ sl }}\n", "nccl.conf.j2"),
        ("NCCL_IB_SL=<%= @sl %>\n", "nccl.conf.erb"),
    ],
)
def test_a_value_that_is_filled_in_later_is_unknown(text: str, name: str) -> None:
    source = read_source(text, name)
    assert [(s.name, s.value) for s in source.settings] == [("NCCL_IB_SL", None)]
    assert [f for f in lint([source]) if f.verdict != "pass"] == []


def test_braces_of_a_shell_hide_nothing() -> None:
    text = """\
for i in {{0..3},5}; do echo "${a:-${b}}"; done
docker ps --format '{{.Names}}'
printf "{%d}\\n" 1; x=${y%%.*}; z=${#x}
export NCCL_IB_SLL=3
printf "%}"; echo }}
"""
    assert settings(text) == [("NCCL_IB_SLL", "3", 4)]


DOCKERFILE = """\
FROM ubuntu AS base
ENV NCCL_IB_SL 3
ENV A=b \\
  # why
  # not
  NCCL_IB_TC=41 \\
  NCCL_IB_TIMEOUT=22
"""


def test_comments_between_the_lines_of_an_instruction_do_not_end_it() -> None:
    source = read_source(DOCKERFILE, "Dockerfile")
    assert [(s.name, s.value, s.line, s.mistakes) for s in source.settings] == [
        ("NCCL_IB_SL", "3", 2, ()),
        ("NCCL_IB_TC", "41", 6, ()),
        ("NCCL_IB_TIMEOUT", "22", 7, ()),
    ]


def test_maps_and_sections_are_not_set_in_one_process() -> None:
    maps = """\
locals {
  shapes = {
    "BM.1" = {
      NCCL_MNNVL_ENABLE = "1"
    }
    "BM.2" = {
      NCCL_CUMEM_ENABLE = "0"
    }
  }
}
"""
    one = 'env = {\n  NCCL_MNNVL_ENABLE = "1"\n  NCCL_CUMEM_ENABLE = "0"\n}\n'
    toml = '[a]\nNCCL_MNNVL_ENABLE = "1"\n[b]\nNCCL_CUMEM_ENABLE = "0"\n'
    found = {
        name: {f.id for f in lint([read_source(text, name)]) if f.verdict == "fail"}
        for name, text in (("maps.tf", maps), ("one.tf", one), ("x.toml", toml))
    }
    assert found == {"maps.tf": set(), "one.tf": {"NCCL149"}, "x.toml": set()}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('run_cmd="NCCL_IB_SLL=3 NCCL_DEBUG=WARN python x.py \\\n --a"\neval ${run_cmd}\n', 1),
        ('A=1\nRDMA_ARG="-x A=b -x NCCL_IB_SLL=3"\nmpirun ${RDMA_ARG} x\n', 2),
        ('docker run x bash -lc "set -e\nexport NCCL_IB_SLL=3\ntorchrun x.py"\n', 2),
        ("srun bash -c 'NCCL_IB_SLL=3 torchrun x.py'\n", 1),
        ("bwrap --dev /dev \\\n --setenv NCCL_IB_SLL 3 python x.py\n", 2),
        ('CMD="source venv;\n  NCCL_IB_SLL=3 serve"\nssh n1 "$CMD"\n', 2),
    ],
)
def test_a_command_that_a_variable_keeps_is_read(text: str, line: int) -> None:
    found = [(f.name, f.line, f.id) for f in lint([read_source(text, "x.sh")])]
    assert ("NCCL_IB_SLL", line, "NCCL101") in found


@pytest.mark.parametrize(
    "text",
    [
        'command: ["bash", "-c", "cd /; mpirun -x NCCL_IB_SLL=3 x"]\n',
        "run: >-\n  mpirun\n  -x NCCL_IB_SLL=3\n  x\n",
        "run: NCCL_IB_SLL=3 python x.py\n",
        '{"env_vars": {"NCCL_IB_SLL": "3"}}',
    ],
)
def test_a_command_in_yaml_is_read(text: str) -> None:
    assert [f.name for f in lint([read_source(text, "a.json")])] == ["NCCL_IB_SLL"]


def test_a_text_in_yaml_is_no_command() -> None:
    text = "description: set NCCL_IB_SLL=3 to see\nrun: echo NCCL_IB_SLL=3\n"
    assert read_source(text, "a.yaml").settings == ()
