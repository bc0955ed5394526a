"""The GPUs that are known, their other names, and those that one describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.estimate import refusals
from clusterkit.estimate.machines import gpus
from clusterkit.estimate.machines.gpus import GPUS, gpu_named
from clusterkit.estimate.machines.interconnects import NETWORKS, interconnect_named
from clusterkit.estimate.models.model_config import family_of
from clusterkit.estimate.results import GIB
from clusterkit.estimate.strategies import STRATEGIES

TABLES = Path(gpus.__file__).parent

USABLE = {
    "A100-SXM4-80GB": 79.15,
    "A100-SXM4-40GB": 39.39,
    "H100-SXM5-80GB": 79.10,
    "H200-SXM-141GB": 139.80,
    "RTX-4090": 23.60,
    "L4-24GB": 22.03,
    "B200-SXM-180GB": 178.35,
}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("H100", "H100-SXM5-80GB"),
        ("h100-80gb", "H100-SXM5-80GB"),
        ("H100-SXM5-80GB", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("a100", "A100-SXM4-80GB"),
        ("A100 40GB", "A100-SXM4-40GB"),
        ("a100-40", "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("v100", "V100-SXM2-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla T4", "T4-16GB"),
        ("4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("rtx4090", "RTX-4090"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("mi300x", "MI300X-192GB"),
        ("AMD Instinct MI300X", "MI300X-192GB"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("gh200", "GH200-96GB"),
    ],
)
def test_a_gpu_has_many_names(text: str, name: str) -> None:
    assert gpu_named(text).name == name


@given(st.sampled_from(sorted(GPUS)), st.booleans())
def test_case_and_punctuation_do_not_matter(name: str, small: bool) -> None:
    written = name.replace("-", " ")
    assert gpu_named(written.lower() if small else written.upper()).name == name


@pytest.mark.parametrize(("name", "gib"), USABLE.items())
def test_a_program_gets_less_than_is_sold(name: str, gib: float) -> None:
    gpu = GPUS[name]
    assert gpu.usable_bytes == gib * GIB
    assert gpu.usable_bytes < gpu.memory_gb * GIB


@pytest.mark.parametrize("name", sorted(GPUS))
def test_figures_are_of_the_right_size(name: str) -> None:
    gpu = GPUS[name]
    assert 0.9 * gpu.memory_gb <= gpu.usable_bytes / GIB <= gpu.memory_gb
    assert gpu.ceiling_tflops < gpu.half_tflops
    if gpu.fp8_tflops is not None:
        assert gpu.fp8_tflops == pytest.approx(2 * gpu.half_tflops, rel=0.02)
    assert gpu.has_bf16 == (gpu.arch not in {"sm70", "sm75"})


def test_a_name_that_many_have_lists_them() -> None:
    with pytest.raises(UserError, match="A100-PCIe-40GB, A100-PCIe-80GB"):
        gpu_named("a100-pci")
    with pytest.raises(UserError, match="several GPUs are called 'rtx'"):
        gpu_named("rtx")


@pytest.mark.parametrize(
    ("text", "meant"),
    [("h10", "H100"), ("h101", "H100-SXM5-80GB"), ("RTX 4080", "RTX-4090"), ("mi350x", "MI3")],
)
def test_a_wrong_name_is_answered_with_a_close_one(text: str, meant: str) -> None:
    with pytest.raises(UserError, match=meant):
        gpu_named(text)


@pytest.mark.parametrize("text", ["", "  ", "gpu", "nvidia", "--", "h"])
def test_what_is_no_name_says_how_to_give_figures(text: str) -> None:
    with pytest.raises(UserError, match="memory=48,bf16=200,bandwidth=900"):
        gpu_named(text)


def test_a_gpu_of_ones_own_needs_three_figures() -> None:
    gpu = gpu_named("mine: memory=48, bf16=200, bandwidth=900, nvlink=100")
    assert (gpu.name, gpu.memory_gb, gpu.bf16_tflops, gpu.memory_gbs) == ("mine", 48, 200, 900)
    assert gpu.nvlink_busbw_gbs == 100
    assert gpu.usable_bytes < 48 * GIB
    with pytest.raises(UserError) as refused:
        gpu_named("mine:memory=48")
    assert [problem.message for problem in refused.value.problems] == [
        "the GPU 'mine' needs bandwidth=",
        "the GPU 'mine' needs bf16 or fp16=",
    ]


def test_figures_over_a_known_gpu_change_only_those() -> None:
    usual, changed = gpu_named("h100"), gpu_named("h100:memory=94,usable=93")
    assert changed.usable_bytes == 93 * GIB
    assert changed.bf16_tflops == usual.bf16_tflops
    assert changed.mamf_tflops == usual.mamf_tflops
    assert gpu_named("h100:bf16=600").mamf_tflops is None


@pytest.mark.parametrize("figure", ["memory=-1", "memory=0", "memory=nan", "memory=much", "nics=1"])
def test_a_figure_that_cannot_be_is_named(figure: str) -> None:
    with pytest.raises(UserError, match=figure.partition("=")[0]):
        gpu_named(f"h100:{figure}")


@given(st.text(max_size=40))
def test_any_text_is_a_gpu_or_a_user_error(text: str) -> None:
    try:
        gpu = gpu_named(text)
    except UserError:
        return
    assert gpu.memory_gb > 0


# --- the tables ---


def test_tables_name_what_there_is() -> None:
    aliases = [word for row in read_table(TABLES / "gpus.tsv") for word in row["aliases"].split()]
    named = [alias for alias in aliases if alias != "-"]
    assert len(named) == len(set(named))
    assert {gpu_named(alias).name for alias in named} <= set(GPUS)
    known = {row["arch"] for row in read_table(TABLES / "architectures.tsv")} - {"usual"}
    assert known <= {gpu.arch for gpu in GPUS.values()}
    for gpu in GPUS.values():
        facts = gpu.architecture
        assert facts.network is None or facts.network in NETWORKS
        assert facts.rate[0] < 1 < facts.rate[1]
        assert 0 < facts.attention_of_peak < facts.products_of_ceiling <= 1
    for row in read_table(TABLES / "networks.tsv"):
        for alias in row["aliases"].split() if row["aliases"] != "-" else ():
            assert interconnect_named(alias).name == row["name"]
    types = [row["type"] for row in read_table(TABLES.parent / "models" / "families.tsv")]
    assert len(types) == len({*types})
    assert {family_of(name).norms for name in types} == {0, 1, 2, 4}
    names = [row["name"] for row in read_table(TABLES.parent / "strategies.tsv")]
    assert names == [strategy.name for strategy in STRATEGIES]


def test_every_refusal_has_its_text_and_every_text_its_refusal() -> None:
    source = Path(refusals.__file__).read_text(encoding="utf-8")
    said = {row["id"] for row in read_table(TABLES.parent / "refusals.tsv")}
    raised = re.findall(r'(?:_problem\(|^ {8})"([a-z0-9-]+)"[,:]', source, re.MULTILINE)
    assert set(raised) == said
