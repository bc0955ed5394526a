"""The rules of the lint: `rules.tsv` explains each, the modules here look for what it is about."""
