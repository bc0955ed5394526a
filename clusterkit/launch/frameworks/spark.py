"""spark: a standalone Spark cluster inside the allocation, and `spark-submit` of the script on it.

Every node runs `spark_launch.py`: the first one Spark's master, each of them a worker
with as many cores as it has slots, without SSH; the driver runs on the first node, and the cluster
ends with it. `--set spark.KEY=VALUE` is that very key of Spark's configuration.
"""

from __future__ import annotations

from clusterkit.core.data import framework_files, peers_program
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand
from clusterkit.launch.frameworks.base import Framework, LaunchInputs, launched_by, shared_files

_DECIDED = {
    "master": "the cluster is the job's own",
    "submit.deployMode": "the driver runs on the first node, and the job ends with it",
    "driver.host": "it is the first node's address",
    "driver.bindAddress": "it is the first node's address",
    "cores.max": "use --nodes, --gpus-per-node and --processes",
    "authenticate": "the job has a secret of its own",
    "authenticate.secret": "the job has a secret of its own",
    "local.dir": "it is a folder of the job on each node, below TMPDIR",
}
_OF_DAEMONS = ("master.", "worker.", "deploy.")


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the command of each node; every node runs the same one."""
    for key in inputs.options:
        if key in _DECIDED:
            raise UserError(f"spark.{key} is decided by the plan", hint=_DECIDED[key])
        if key.startswith(_OF_DAEMONS):
            raise UserError(
                f"spark.{key} is read by Spark's master and workers, and not by programs",
                hint=f"--env SPARK_DAEMON_JAVA_OPTS=-Dspark.{key}={inputs.options[key]}",
            )
    if not (inputs.script_kind.is_file and inputs.script.endswith((".py", ".jar"))):
        raise UserError(
            f"spark-submit knows a program by its name, and {inputs.script} ends in neither .py "
            "nor .jar",
            hint="give the file a name that ends in .py",
        )
    return NodeCommand(
        argv=launched_by(
            "launch.py",
            inputs,
            f"--processes={inputs.processes}",
            *(f"--conf=spark.{key}={value}" for key, value in inputs.options.items()),
            script=(inputs.script, *inputs.args),
        ),
        files={
            **framework_files("spark", "spark_launch.py", "spark_node.py"),
            **shared_files("clusterkit_failure.py", "clusterkit_tree.py"),
            **peers_program(),
        },
    )


FRAMEWORK = Framework(
    name="spark",
    summary="a Spark cluster of the job's own, spark-submit of the script",
    package="pyspark",
    image="spark",
    starts=("pyspark",),
    command=command,
    uneven_slots=True,
    by_hand='on each host K: CK_TOKEN=SECRET CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=("SPARK_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON"),
)
