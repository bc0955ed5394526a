"""Run a program given as an argument, behind the modules that it may import."""

import sys
import types

while sys.argv[1] != "--":
    _, name, source = sys.argv[:3]
    del sys.argv[1:3]
    sys.modules[name] = types.ModuleType(name)
    exec(source, sys.modules[name].__dict__)
source = sys.argv[2]
del sys.argv[1:3]
exec(source, {"__name__": "__main__"})
