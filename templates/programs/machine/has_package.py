"""Print `missing` where there is no package of the name that is the argument.

It may be imported by another name than it is installed by; either will do.
"""

import sys
from importlib.util import find_spec

name = sys.argv[1]
sys.path.append("")  # the job would find it in its folder; last, so that nothing there is run
if find_spec(name.replace("-", "_")) is None:
    from importlib import metadata

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        print("missing")
