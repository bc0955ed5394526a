"""The sources of the documentation site: the pages of `docs/`, and those made from the code.

    python -m docs.generate FOLDER      writes them; `make docs` does, and builds the site

`PROVIDERS` of `site.py` are the modules that make pages. Each has one function, `pages()`.
"""
