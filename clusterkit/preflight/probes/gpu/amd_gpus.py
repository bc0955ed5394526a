"""State of AMD GPUs: `amd-smi --json` where there is one, else `rocm-smi --json`.

Written after documented output of ROCm 5 to 7 (rocm_smi.py, `showProductName`, `showTemp`; amd-smi,
`static` and `metric`) and pieces of answers from MI210 and MI300X in tests of other projects. No
recording of a whole answer was at hand, so only names that all of them share are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import NONSENSE, first_json, real, whole
from clusterkit.preflight.probes.gpu import for_gpu_jobs
from clusterkit.transport.probe import Probe, Unparsed, first_line

T = TypeVar("T")


def rocm_smi(flags: str, *, missing: str, first: str = "") -> str:
    """Return a snippet: the snippet `first`, then what `rocm-smi --json` says with `flags`.

    `missing` is said where there is no rocm-smi, though there is an AMD GPU.
    """
    return read_snippet("amd_head") + first + read_snippet("rocm_smi", flags=flags, missing=missing)


_SNIPPET = rocm_smi(
    "--showproductname --showdriverversion --showtemp",
    missing="neither amd-smi nor rocm-smi answers",
    first=read_snippet("amd_smi"),
)


_CARD = re.compile(r"card(\d{1,4})")
_DOCUMENT = re.compile(r"[\[{]")
_HIGHEST = 9999
NAMES = ("card series", "card model")
"""What rocm-smi may call the name of a card."""
_NO_VALUE = frozenset({"", "N/A", "None"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpu:
    """One AMD GPU; None is "the tool does not say"."""

    index: int
    name: str | None
    junction_c: float | None
    """Temperature of the hottest spot of the die; of its edge where there is no such sensor."""
    slowdown_c: float | None = None
    """At which the hottest spot makes it slow down."""
    uncorrected: int | None = None
    """ECC errors since the driver was loaded."""

    @property
    def margin_c(self) -> float | None:
        """Degrees left to the slowdown."""
        known = self.junction_c is not None and self.slowdown_c is not None
        return (self.slowdown_c or 0.0) - (self.junction_c or 0.0) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpus:
    """The AMD GPUs of a node."""

    driver: str | None
    gpus: tuple[AmdGpu, ...]


def parse(text: str) -> AmdGpus:
    """Read `amd-smi` and its two documents, or `rocm-smi --json`, with warnings before it."""
    try:
        facts = _amd_smi(text) if text.startswith("amd-smi\n") else _rocm_smi(text)
    except NONSENSE as error:
        if isinstance(error, Unparsed):
            raise
        raise Unparsed(f"no JSON of amd-smi or rocm-smi: {first_line(text)[:60]!r}") from None
    if not facts.gpus:
        raise Unparsed("no GPU in the JSON of amd-smi or rocm-smi")
    return facts


def _rocm_smi(text: str) -> AmdGpus:
    cards, driver = read_cards(text)
    return AmdGpus(
        driver=driver,
        gpus=tuple(
            AmdGpu(
                index=index,
                name=value_of(card, "card series", "card model"),
                junction_c=card_degrees(card),
            )
            for index, card in cards.items()
        ),
    )


def read_cards(text: str) -> tuple[dict[int, dict[str, str]], str | None]:
    """Return what `rocm-smi --json` says of each card, by name in small letters, and the driver.

    Raises:
        ValueError, AttributeError: it is no such document.
    """
    document, _ = first_json(text, max(text.find("{"), 0))
    cards = {
        int(found[1]): {str(k).lower(): str(v) for k, v in values.items()}
        for key, values in document.items()
        if (found := _CARD.fullmatch(key))
    }
    driver = document.get("system", {}).get("Driver version")
    return dict(sorted(cards.items())), None if driver is None else str(driver)


def card_degrees(card: Mapping[str, Any]) -> float | None:
    """Return the temperature of the hottest spot of a card, else of its edge."""
    return figure_of(card, "temperature (sensor junction) (c)", "temperature (sensor edge) (c)")


def value_of(values: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of these values that is told: as it stands, or beside its unit."""
    for name in names:
        value = values.get(name)
        value = str(value.get("value") if isinstance(value, dict) else value).strip()
        if value not in _NO_VALUE:
            return value
    return None


def figure_of(values: Mapping[str, Any], *names: str) -> float | None:
    """Return the first of these figures that is told.

    Raises:
        Unparsed: it is not a figure.
    """
    value = value_of(values, *names)
    return None if value is None else real(value)


def _amd_smi(text: str) -> AmdGpus:
    at, documents = 0, []
    while found := _DOCUMENT.search(text, at):
        document, at = first_json(text, found.start())
        documents.append(_by_gpu(document))
    static, metric = documents
    if static.keys() != metric.keys():
        raise Unparsed("amd-smi's answers are not about the same GPUs")

    def errors(index: int) -> str | None:
        return value_of(metric[index].get("ecc", {}), "total_uncorrectable_count")

    drivers = {str(gpu["driver"]["version"]) for gpu in static.values()}
    return AmdGpus(
        driver=" + ".join(sorted(drivers - _NO_VALUE)) or None,
        gpus=tuple(
            AmdGpu(
                index=index,
                name=value_of({"name": gpu["asic"]["market_name"]}, "name"),
                junction_c=figure_of(metric[index]["temperature"], "hotspot", "edge"),
                slowdown_c=figure_of(gpu.get("limit", {}), "slowdown_hotspot_temperature"),
                uncorrected=None if (n := errors(index)) is None else whole(n),
            )
            for index, gpu in sorted(static.items())
        ),
    )


def _by_gpu(document: Any) -> dict[int, Any]:
    """Return what is said of each GPU; before ROCm 7 the list stands alone."""
    listed = document["gpu_data"] if isinstance(document, dict) else document
    return {whole(str(gpu["gpu"]), maximum=_HIGHEST): gpu for gpu in listed}


def amd_probe(name: str, snippet: str, parse: Callable[[str], T]) -> Probe[T]:
    """Return a probe that asks the driver; see `Probe`."""
    return Probe(name=name, command=for_gpu_jobs(snippet), parse=parse, timeout_s=20.0, lane="amd")


PROBE = amd_probe("amd-gpus", _SNIPPET, parse)
