"""Put a node's command into an image: the words before it, for each container runtime."""

from __future__ import annotations

from collections.abc import Iterable

from clusterkit.model import ContainerPlan, ContainerRuntime, Runtime, Word

RUNTIME_VARIABLES: tuple[str, ...] = (
    *(ref.name for ref in vars(Runtime).values() if hasattr(ref, "name")),
    "CK_VISIBLE_DEVICES",
    "CK_JOB_UID",
    "CK_FAILURE",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)
"""What a rank inside a container needs of its node, beside the job's own environment."""


def container_words(
    container: ContainerPlan | None, *, workdir: str, environment: Iterable[str], gpus: bool
) -> tuple[Word, ...]:
    """Return the words that go before a command to run it in `container`.

    Variables are passed by name, never by value, so no value can be misquoted or shows in `ps`.
    Pyxis gives none: there `srun` itself enters the image (see `pyxis_arguments`).
    """
    if container is None:
        return ()
    names = (*RUNTIME_VARIABLES, *environment)
    mounts: tuple[Word, ...] = (
        f"{workdir}:{workdir}",
        (Runtime.TMP, ":", Runtime.TMP),
        *container.mounts,
    )
    if container.runtime is ContainerRuntime.DOCKER:
        return _docker(container, workdir, names, mounts, gpus)
    if container.runtime is ContainerRuntime.APPTAINER:
        nv = ("--nv",) if gpus else ()
        binds = [_join("--bind=", mount) for mount in mounts]
        return ("apptainer", "exec", *nv, *binds, f"--pwd={workdir}", container.image)
    if container.runtime is ContainerRuntime.ENROOT:
        options = [_join("--mount=", mount) for mount in mounts]
        options += [f"--env={name}" for name in names]
        # enroot has no option for the working directory.
        inside = ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", workdir)
        return ("enroot", "start", "--rw", *options, container.image, *inside)
    return ()


def pyxis_arguments(container: ContainerPlan | None, *, workdir: str) -> tuple[str, ...]:
    """Return the `srun` arguments with which pyxis enters the image; empty for other runtimes."""
    if container is None or container.runtime is not ContainerRuntime.PYXIS:
        return ()
    mounts = ",".join((f"{workdir}:{workdir}", *container.mounts))
    return (
        f"--container-image={container.image}",
        f"--container-mounts={mounts}",
        f"--container-workdir={workdir}",
    )


def _docker(
    container: ContainerPlan,
    workdir: str,
    names: Iterable[str],
    mounts: tuple[Word, ...],
    gpus: bool,
) -> tuple[Word, ...]:
    words: list[Word] = ["docker", "run", "--rm", "--init", "--network=host"]
    words += ["--gpus=all"] if gpus else []
    words += [f"--shm-size={container.shm_size}", "--ulimit=memlock=-1", "--ulimit=stack=67108864"]
    words += [f"--workdir={workdir}"]
    words += [_join("--volume=", mount) for mount in mounts]
    words += [f"--env={name}" for name in names]
    return (*words, container.image)


def _join(option: str, value: Word) -> Word:
    return (option, *value) if isinstance(value, tuple) else (option, value)
