"""Sphinx: `make docs` writes the sources of the site (`docs/generate`) and builds them."""

import gc

from sphinx import search
from sphinx.search.en import SearchEnglish

from clusterkit import __version__

# Trees of pages stay until the end: to look through them for garbage as often as Python does takes
# a quarter of the time.
gc.set_threshold(20000, 50, 1000)


class _English(SearchEnglish):
    """Looks for the stem of a word once, and not once for each of 130 pages."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._known: dict[str, str] = {}

    def stem(self, word: str) -> str:
        if word not in self._known:
            self._known[word] = super().stem(word)
        return self._known[word]


search.languages["en"] = _English

project = "clusterkit"
author = "the clusterkit authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["files"]
smartquotes = False  # `--flag` is no dash
default_role = "code"  # docstrings have Markdown's single backticks

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
python_maximum_signature_line_length = 80

highlight_language = "text"
html_theme = "furo"
html_title = f"clusterkit {version}"
html_static_path = ["static"]
html_css_files = ["clusterkit.css"]
html_js_files = ["copy.js"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
