"""Print the versions of the distributions that are its arguments: JSON, null for one not there."""

import importlib.metadata
import json
import sys


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


print(json.dumps({name: version(name) for name in sys.argv[1:]}))
