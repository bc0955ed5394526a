"""Bundles are sent to colleagues: no variable is kept that no check reads."""

from __future__ import annotations

from pathlib import Path

from clusterkit.preflight.bundle import MASK, Bundle, write_bundle
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.checks import all_checks, select_checks
from clusterkit.preflight.evaluate import evaluate
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import PreflightJob, Reach

_SECRETS = {
    "WANDB_API_KEY": "s3cr3t-1",
    "HF_TOKEN": "s3cr3t-2",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-3",
    "DATABASE_URL": "postgres://me:s3cr3t-4@db/x",
    "CLUSTERKIT_TOKEN": "s3cr3t-5",
    "MY_OWN": "s3cr3t-6",
}
_READ = {
    "NCCL_DEBUG": "INFO",
    "NCCL_SOKET_IFNAME": "eth0",
    "NCLL_DEBUG": "WARN",
    "RCCL_MSCCL_ENABLE": "1",
    "UCX_NET_DEVICES": "mlx5_0:1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "TP_SOCKET_IFNAME": "eth0",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "FI_PROVIDER": "efa",
    "CLUSTERKIT_NCCL_TESTS": "0",
    "CLUSTERKIT_DCGM_DIAG": "0",
}


def test_a_saved_bundle_holds_no_secret_and_is_judged_as_before(tmp_path: Path) -> None:
    job = PreflightJob(hosts=("n1",), env={**_SECRETS, **_READ})
    before = Bundle(
        job=job, replies=(Reply(node="n1", reach=Reach()),), collected_at=1.0, seconds=1.0
    )
    write_bundle(tmp_path / "b", before)
    text = "".join(p.read_text() for p in (tmp_path / "b").rglob("*") if p.is_file())
    assert "s3cr3t" not in text
    after = read_bundle(tmp_path / "b")
    assert after.job.env == {**dict.fromkeys(_SECRETS, MASK), **_READ}
    checks = select_checks(all_checks(), select=("NCCL001", "GPU022", "GPU027", "TOPO", "IB"))
    found = evaluate(before, checks).findings
    assert evaluate(after, checks).findings == found
    assert any("NCCL_SOKET_IFNAME" in finding.summary for finding in found)
