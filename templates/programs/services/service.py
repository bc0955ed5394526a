"""What a managed service tells a node of its job, as node.sh wants it.

Runs on nodes with nothing but Python >= 3.6: `service.py SERVICE LEAST MOST NAME=VARIABLE...` with
the number of nodes that the job was rendered for, and in which variables the service says what, as
`A|B` if it may be either (clusterkit/launch/services.tsv). Prints CK_NODES, CK_NODE_RANK and
CK_HEAD_ADDR, a line each.
"""

import json
import os
import re
import sys

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}", re.ASCII)
MOST_NODES = 10000


def fail(message, hint=""):
    sys.stderr.write("clusterkit: error: %s\n" % message)
    if hint:
        sys.stderr.write("  hint: %s\n" % hint)
    sys.exit(2)


class Service:
    def __init__(self, title, least, variables):
        self.least = least
        self.title = title
        self.variables = variables

    def read(self, what):
        """Return the variable that says `what`, and its value."""
        names = self.variables[what].split("|")
        for name in names:
            if os.environ.get(name):
                return name, os.environ[name]
        missing = " and ".join(names)
        hint = (
            "it has to be set in the job's own definition"
            if names[0].startswith("CK_")
            else ("the service sets it on its nodes; elsewhere run node.sh without --for")
        )
        return fail("%s not set, which tells %s on %s" % (missing, what, self.title), hint)

    def read_json(self, what):
        name, text = self.read(what)
        try:
            return name, json.loads(text)
        except (ValueError, RecursionError):
            return fail("%s is not JSON: %s" % (name, shown(text)))

    def whole(self, what):
        name, text = self.read(what)
        if not re.fullmatch("[0-9]{1,6}", text):
            fail("%s is no number: %s" % (name, shown(text)))
        return int(text)

    def nodes(self):
        """Return the names of all nodes, which is this, and the address of the first."""
        if "hosts" in self.variables:
            return self.by_list()
        if "cluster" in self.variables:
            return self.by_pools()
        rank = self.whole("rank")
        count = self.whole("count") if "count" in self.variables else self.least
        if "domain" in self.variables:
            name = self.read("name")[1]
            base, dash, end = name.rpartition("-")
            if not dash or end != str(rank):
                fail("%s does not end with -%d, as names of an Indexed Job" % (shown(name), rank))
            domain = self.read("domain")[1]
            names = ["%s-%d.%s" % (base, k, domain) for k in range(count)]
            return names, rank, names[0]
        head = host_of(self.read("first node")[1])
        return [head] + ["node-%d" % k for k in range(1, count)], rank, head

    def by_list(self):
        variable, hosts = self.read_json("hosts")
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            fail("%s is no list of names: %s" % (variable, shown(json.dumps(hosts))))
        hosts = sorted(set(hosts))
        me = self.read("name")[1]
        if me not in hosts:
            fail("%s is none of %s: %s" % (shown(me), variable, shown(" ".join(hosts))))
        return hosts, hosts.index(me), hosts[0]

    def by_pools(self):
        variable, spec = self.read_json("cluster")
        try:
            pools = spec["cluster"]
            # The first node is the chief, where one pool is called so.
            order = sorted(pools, key=lambda pool: (pool not in ("chief", "master"), pool))
            places = [(pool, k) for pool in order for k in range(len(pools[pool]))]
            mine = str(spec["task"]["type"]), int(spec["task"].get("index", 0))
            rank = places.index(mine)
            names = [host_of(pools[pool][k]) for pool, k in places]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            text = shown(json.dumps(spec))
            fail("%s does not say which nodes there are, and which is this: %s" % (variable, text))
        return names, rank, names[0]


def host_of(address):
    """Return the host of `HOST:PORT`, or an address without a port."""
    return address.rsplit(":", 1)[0] if address.count(":") == 1 else address


def shown(text):
    return repr(text if len(text) <= 200 else text[:200] + "...")


def main():
    title, least, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    service = Service(title, least, dict(word.split("=", 1) for word in sys.argv[4:]))
    names, rank, head = service.nodes()
    if not 0 <= rank < len(names) <= MOST_NODES:
        fail("node %d of %d: %s says of this node what cannot be" % (rank, len(names), title))
    for name in names:
        if NAME.fullmatch(name) is None:
            fail("no name of a node: %s" % shown(name))
    if not least <= len(names) <= most:
        wanted = str(least) if least == most else "%d to %d" % (least, most)
        hint = "render it again with --nodes %d" % len(names)
        fail("%s has %d nodes, and the job was rendered for %s" % (title, len(names), wanted), hint)
    sys.stdout.write("%s\n%d\n%s\n" % (" ".join(names), rank, head))


main()
