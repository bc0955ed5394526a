"""A live look at nodes: whom to ask, one refresh after the other, and what is shown of it.

subject  a job or a cluster -> nodes, and the ways to them
watch    the nodes again and again -> `Snapshot`
training log of a job -> how fast it trains
remarks  what of a node deserves a word
table    a snapshot -> lines for people;   details: all that is known;   document: for programs
"""

from clusterkit.observe.top.snapshot import JobNow, NodeNow, Snapshot
from clusterkit.observe.top.watch import Watcher

__all__ = ["JobNow", "NodeNow", "Snapshot", "Watcher"]
