"""The documentation site: it builds without a warning, and what it shows is what the code says."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from clusterkit.cli.explain.reference import cluster_keys, job_keys
from clusterkit.core.data import read_table
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.env_lint.lint import RULES
from docs.generate import how_to
from docs.generate import site as generated
from docs.generate.documents import outline
from docs.generate.links import relocated, targets
from docs.generate.page import blocks, code, prose, table
from docs.generate.site import write_site
from docs.generate.verbs import commands
from docs.pictures.draw import FOLDER, PICTURES, draw
from tests.helpers.doc_blocks import ROOT
from tests.helpers.needs import require


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the site, built once for all processes of this test run."""
    require("sphinx")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "docs-site"
    with (base / "docs-site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "said.txt").exists():
            folder.mkdir(exist_ok=True)
            (folder / "said.txt").write_text(_build(folder))
    assert (folder / "said.txt").read_text() == ""
    return folder / "html"


def _build(folder: Path) -> str:
    """Build the site; return what there is to say against it."""
    write_site(ROOT, folder / "source")
    words = ("sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", folder / "trees")
    done = subprocess.run(
        [sys.executable, "-m", *words, folder / "source", folder / "html"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout + done.stderr if done.returncode else done.stderr


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag in {"script", "img", "link"}:
            self.loaded |= {found[name] for name in ("src", "href") if name in found}


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 80
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else set()
            if not target.exists() or (parts.fragment and parts.fragment not in anchors):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert lost == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {word for path in site.rglob("*.html") for word in _Page(path).loaded}
    assert {word for word in loaded if urlsplit(word).netloc} == set()


def test_no_page_tells_where_it_was_built(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if str(ROOT) in path.read_text("utf-8")]
    assert [str(page.relative_to(site)) for page in pages] == []


_SEARCH = """\
const fs = require("fs"), vm = require("vm");
const page = {addEventListener() {}, getElementById() {}, readyState: "loading"};
const context = vm.createContext({document: page, SPHINX_HIGHLIGHT_ENABLED: false});
context.window = context;
for (const file of ["doctools", "language_data", "searchtools"])
  vm.runInContext(fs.readFileSync(`_static/${file}.js`, "utf8"), context);
vm.runInContext(fs.readFileSync("searchindex.js", "utf8"), context);
context.typed = process.argv.slice(1);
const pages = "Search._performSearch(...Search._parseQuery(words)).reverse().map(hit => hit[0])";
const found = `typed.map(words => ${pages})`;
console.log(JSON.stringify(vm.runInContext(found, context)));
"""
"""What the search page does, by its own script: prints the pages found by each argument, the best
first."""


def test_the_search_finds_first_what_readers_look_for(site: Path) -> None:
    require("node")
    rows = read_table(generated.__file__, "searched.tsv")
    homes: dict[str, set[str]] = {}
    for row in rows:
        for words in row["words"].split(", "):
            homes.setdefault(words, set()).add(row["page"].removesuffix(".md"))
    assert {"out of memory", "multi node", "quickstart", "pip install"} <= homes.keys()
    done = subprocess.run(
        ("node", "-e", _SEARCH, *homes), cwd=site, check=True, capture_output=True, text=True
    )
    found = dict(zip(homes, json.loads(done.stdout), strict=True))
    late = {words: found[words][:3] for words in homes if not homes[words] & {*found[words][:3]}}
    assert late == {}


@pytest.mark.parametrize(
    ("block", "copied"),
    [
        ("pip install .\nclusterkit init\n", "pip install .\nclusterkit init"),
        ("$ clusterkit init --yes\nfound it\n$ ls\n", "clusterkit init --yes\nls"),
        ("$ clusterkit \\\n    status\nJOB\n", "clusterkit \\\n    status"),
    ],
)
def test_the_copy_button_takes_what_is_typed(block: str, copied: str) -> None:
    require("node")
    say = "console.log(JSON.stringify(require('./docs/static/copy.js')(process.argv[1])))"
    done = subprocess.run(
        ("node", "-e", say, block), cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == copied


_CLICK = """\
const made = [];
const block = { querySelector: () => ({ textContent: "$ clusterkit doctor\\nall is well\\n" }),
                append: (button) => made.push(button) };
const button = () => ({ addEventListener(_, does) { this.click = does; } });
let loaded;
globalThis.document = { addEventListener: (_, does) => { loaded = does; },
                        querySelectorAll: () => [block], createElement: button };
const clipboard = { writeText: async (text) => { clipboard.text = text; } };
Object.defineProperty(globalThis, "navigator", { value: { clipboard }, configurable: true });
globalThis.setTimeout = () => {};
require(process.argv[1]);
loaded();
made[0].click().then(() => console.log(made.length, made[0].textContent, clipboard.text));
"""
"""As much of a page as the script looks at: one block, which it adds a button to."""


def test_every_page_has_buttons_that_copy(site: Path) -> None:
    require("node")
    pages = [page for page in site.rglob("*.html") if "highlight-" in page.read_text("utf-8")]
    assert len(pages) > 50
    loads = re.compile(r'<script src="([^"]*_static/copy\.js)')
    for page in pages:
        found = loads.search(page.read_text("utf-8"))
        assert found, page
        script = page.parent / found[1]
        assert script.is_file()
    done = subprocess.run(
        ("node", "-e", _CLICK, script), check=True, capture_output=True, text=True
    )
    assert done.stdout == "1 Copied clusterkit doctor\n"


def _text(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_the_reference_has_every_verb_flag_key_check_and_rule(site: Path) -> None:
    reference = site / "reference"
    for words, command in commands().items():
        text = _text(reference / "cli" / f"{words.split()[0]}.html")
        assert f"clusterkit {words}" in text
        missing = {name for param in command.params for name in param.opts if name not in text}
        assert {name for name in missing if name.startswith("-")} == set(), words
    pages: Mapping[str, set[str]] = {
        "config.html": {f"config-{name.replace('_', '-')}" for name in cluster_keys()},
        "lint-rules.html": {rule.id.lower() for rule in RULES},
    }
    for name, ids in pages.items():
        assert ids <= _Page(reference / name).anchors
    assert all(key in _text(reference / "job-file.html") for key in job_keys())
    for check in all_checks():
        page = reference / "checks" / f"{check.area.lower()}.html"
        assert check.id.lower() in _Page(page).anchors


def test_the_index_of_how_tos_names_every_page(tmp_path: Path) -> None:
    for name in ("cluster", "diagnose", "unheard-of"):
        (tmp_path / f"{name}.md").write_text(f"# About {name}\n")
    found = how_to.grouped(tmp_path)
    assert found == {
        "Clusters and nodes": ("cluster",),
        "After the launch": ("diagnose",),
        "More": ("unheard-of",),
    }
    here = how_to.grouped(ROOT / "docs" / "how-to")
    pages = {path.stem for path in (ROOT / "docs" / "how-to").glob("*.md")}
    assert {name for names in here.values() for name in names} == pages
    assert how_to.REST not in here, "name the page in a group of docs/generate/how_to.py"


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_shows_what_the_command_prints_now(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert draw(name) == drawn, "make pictures, and look at them"


def test_every_picture_is_in_a_page() -> None:
    pages = "".join(path.read_text() for path in ROOT.glob("docs/**/*.md"))
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(PICTURES)
    assert [name for name in PICTURES if f"pictures/{name}.svg" not in pages] == []


def test_links_lead_where_they_led() -> None:
    text = "[a](../b.md#c) [d](x/y.py) [e](https://f/g.md) [h](#i)\n```\n[j](k.md)\n```\n"
    moved = relocated(
        text,
        origin="docs/how-to/z.md",
        page="how-to/z.md",
        homes={"docs/b.md": "b.md"},
    )
    assert moved == (
        "[a](../b.md#c) [d](../files/docs/how-to/x/y.py) [e](https://f/g.md) [h](#i)\n"
        "```\n[j](k.md)\n```\n"
    )
    assert list(targets(text, origin="docs/how-to/z.md")) == ["docs/b.md", "docs/how-to/x/y.py"]


def test_markdown_means_what_was_said() -> None:
    assert prose("a_b* <c> [d] `e_f*` --g") == r"a\_b\* \<c\> \[d\] `e_f*` `--g`"
    assert prose("it's one ` alone") == r"it's one \` alone"
    assert code("a`b") == "`` a`b ``"
    assert table(("x",), [("a|b",), (r"c\|d",)]) == "| x |\n| --- |\n| a\\|b |\n| c\\|d |"
    assert table(("x",), []) == ""
    assert blocks("a\n\n", "", "b") == "a\n\nb\n"


def test_the_outline_of_a_document() -> None:
    document = {
        "schema": 1,
        "nodes": ["n1"],
        "links": {"GPU0": {"GPU1": "NV12"}},
        "findings": [{"id": "A"}, {"id": "B", "hint": "do"}],
        "none": None,
    }
    assert list(outline(document)) == [
        ("schema", "number", "1"),
        ("nodes[]", "text", '"n1"'),
        ("links.*.*", "text", '"NV12"'),
        ("findings[].id", "text", '"B"'),
        ("findings[].hint", "text", '"do"'),
        ("none", "null", ""),
    ]
