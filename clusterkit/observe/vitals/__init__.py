"""What nodes are doing now: one reading of each, and what two of them say together.

sample  outputs of the probes -> `NodeSample`
rates   two samples of a node -> `NodeRates`
ask     nodes behind a transport -> a sample of each, or why there is none
"""

from clusterkit.observe.vitals.ask import ONCE, PROBES, NodeVitals, ask_vitals
from clusterkit.observe.vitals.rates import GpuSlowdown, NodeRates, Traffic, rates, slowdowns
from clusterkit.observe.vitals.sample import NodeSample, read_samples

__all__ = [
    "ONCE",
    "PROBES",
    "GpuSlowdown",
    "NodeRates",
    "NodeSample",
    "NodeVitals",
    "Traffic",
    "ask_vitals",
    "rates",
    "read_samples",
    "slowdowns",
]
