"""What may be said of a job that went well: nothing by `diagnose`, nor that it hangs."""

from __future__ import annotations

from pathlib import Path

from clusterkit.observe.diagnose.job import sources_of
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.observe.diagnose.verdict import diagnose


def assert_healthy(run_dir: str) -> None:
    """Read all that a job has printed as if nobody knew that it succeeded: no rule may fire.

    Nor may a node have taken it for one that hangs, at any time.
    """
    assert not [path.read_text() for path in Path(run_dir).glob("hang-*.json")]
    folders = [Path(run_dir, name) for name in ("logs", "submitit")]
    sources, _ = sources_of([path for path in folders if any(path.glob("*"))])
    found = diagnose(own_rules(), sources)
    assert found.files
    assert found.cause is None, (found.cause.rule, found.cause.evidence)
