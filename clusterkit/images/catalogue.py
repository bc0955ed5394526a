"""The catalogue of images: names, parents, versions, what goes in, how health is tested.

Tags, labels, the bake file, plain build commands, lock files, the table in docs/images.md and the
tests derive from what stands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from clusterkit.core.errors import UserError, choices_hint


class Variant(StrEnum):
    """What the Python packages of an image compute on."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"


VARIANTS: tuple[Variant, ...] = tuple(Variant)

ROOT_IMAGE = (
    "debian:bookworm-slim@sha256:4724b8cc51e33e398f0e2e15e18d5ec2851ff0c2280647e1310bc1642182655d"
)
"""What `base` is built from: Debian, for its Python 3.11.

Also for GPUs: torch's wheels bring the CUDA or ROCm libraries, the host brings the driver.
"""

MATRIX: Mapping[str, str] = MappingProxyType(
    {
        "python": "3.11",
        "torch": "2.13.0",
        "cuda": "13.0",  # torch's wheels bring it, and NCCL
        "nccl": "2.29.7",
        "numpy": "2.4.6",
        "deepspeed": "0.19.8",
        "horovod": "0.28.1",
        "accelerate": "1.15.0",
        "transformers": "5.23.0",
        "datasets": "5.2.0",
        "peft": "0.21.2",
    }
)
"""The one version of each thing that images are named for; the lock files pin the rest."""

EPOCH = 1795305600
"""2026-11-22: the date of images where SOURCE_DATE_EPOCH says no other; moved with the locks."""

PLATFORMS: tuple[str, ...] = ("linux/amd64",)
"""What the lock files hold hashes for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image, in all its variants."""

    name: str
    summary: str
    version_of: str
    """Key of MATRIX, or `clusterkit`, whose version stands in the image's tag."""
    parent: str | None = None
    """The image below it; None: the root image."""
    packages: tuple[str, ...] = ()
    """Requirements that its lock files resolve, beside those of its parents."""
    sources: tuple[str, ...] = ()
    """Requirements built from source inside, against what is there: pinned in lock/source.txt."""
    borrowed: tuple[str, ...] = ()
    """Files of other images, as paths below images/, that its context holds as well."""
    health: tuple[str, ...] = ("/opt/clusterkit/health",)
    """The command inside that proves it works: two ranks train."""
    variants: tuple[Variant, ...] = VARIANTS


def _pinned(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}=={MATRIX[name]}" for name in names)


_TOOLKIT = ("toolkit/cuda.txt", "toolkit/complete-cuda.sh")
"""NVIDIA's compiler by hash, for stages that build."""

_HOROVOD_NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")
"""What horovod 0.28.1 requires (its setup.py); it has no wheel that pip could ask."""

_IMAGES = (
    Image(
        name="base",
        summary="Debian, Python, tini, sshd, a user without rights, clusterkit's worker",
        version_of="clusterkit",
        # And what clusterkit requires; the rest are the tools that build packages without wheels.
        packages=("pip", "setuptools<80", "wheel"),
    ),
    Image(
        name="torch",
        parent="base",
        summary="torchrun: DDP, FSDP",
        version_of="torch",
        packages=_pinned("torch", "numpy"),
    ),
    Image(
        name="deepspeed",
        parent="torch",
        summary="DeepSpeed: ZeRO, with libaio for NVMe offload",
        version_of="deepspeed",
        packages=(*_pinned("deepspeed"), "ninja"),
        borrowed=_TOOLKIT,
    ),
    Image(
        name="horovod",
        parent="torch",
        summary="Horovod, built against the image's torch",
        version_of="horovod",
        packages=_HOROVOD_NEEDS,
        sources=_pinned("horovod"),
        borrowed=_TOOLKIT,
    ),
    Image(
        name="accelerate",
        parent="torch",
        summary="Hugging Face: accelerate, transformers, datasets, peft",
        version_of="accelerate",
        packages=_pinned("accelerate", "transformers", "datasets", "peft"),
    ),
    Image(
        name="full",
        parent="deepspeed",
        summary="All of them in one: DeepSpeed, Horovod, accelerate",
        version_of="torch",
        packages=(
            *_pinned("accelerate", "transformers", "datasets", "peft"),
            *_HOROVOD_NEEDS,
        ),
        sources=_pinned("horovod"),
        borrowed=(
            "horovod/build-wheel.sh",
            "horovod/test/train_horovod.py",
            "accelerate/test/train_accelerate.py",
            *_TOOLKIT,
        ),
    ),
)

IMAGES: Mapping[str, Image] = MappingProxyType({image.name: image for image in _IMAGES})
"""By name; parents before children."""


def find_image(name: str) -> Image:
    """Return the image of this name.

    Raises:
        UserError: there is none; with the closest name.
    """
    if name not in IMAGES:
        raise UserError(f"no image is called {name!r}", hint=choices_hint(name, IMAGES))
    return IMAGES[name]


def find_variant(name: str) -> Variant:
    """Return the variant of this name.

    Raises:
        UserError: there is none; with the closest name.
    """
    if name not in Variant.__members__.values():
        raise UserError(
            f"no variant is called {name!r}", hint=choices_hint(name, map(str, VARIANTS))
        )
    return Variant(name)


def lineage(image: Image) -> tuple[Image, ...]:
    """Return the image with all below it, the lowest first."""
    return tuple(reversed(tuple(_upward(image))))


def _upward(image: Image) -> Iterator[Image]:
    yield image
    if image.parent is not None:
        yield from _upward(IMAGES[image.parent])
