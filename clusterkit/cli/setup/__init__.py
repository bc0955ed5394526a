"""The verbs of a first day: `init`, `doctor`, `config`."""
