"""A package index of an attacker: whatever is asked for by one of these names leaves a canary."""

from __future__ import annotations

import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

VERSIONS = ("0.0.1", "0.1.0", "99")


def plant(
    folder: Path, name: str, version: str, canary: Path, requires: Sequence[str] = ()
) -> Path:
    """Write a wheel whose import, and whose mere presence when Python starts, leaves the canary."""
    stem = name.replace("-", "_")
    about = f"{stem}-{version}.dist-info"
    harm = f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n"
    wanted = "".join(f"Requires-Dist: {one}\n" for one in requires)
    contents = {
        f"{'clusterkit' if 'clusterkit' in stem else stem}/__init__.py": harm,
        f"{stem}-evil.pth": harm,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wanted}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*contents, f"{about}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, text in contents.items():
            wheel.writestr(inside, text)
    return path


def plant_source(folder: Path, name: str, version: str, canary: Path) -> Path:
    """Write a source whose setup.py, which pip runs to learn its name, leaves the canary."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    harm = f"import pathlib; pathlib.Path({str(canary)!r}).touch(); raise SystemExit(1)\n"
    program = harm.encode()
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"{name}-{version}/setup.py")
        member.size = len(program)
        archive.addfile(member, io.BytesIO(program))
    return path


@dataclass
class Index:
    """A simple index (PEP 503) on a loopback port."""

    folder: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def config(self, path: Path) -> Path:
        """Write a pip.conf that knows this index and no other."""
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "index-url": f"{self.url}/simple",
            "extra-index-url": "",
            "find-links": self.folder,
        }
        lines = (f"{key} = {value}\n" for key, value in settings.items())
        path.write_text("[install]\nno-compile = true\n[global]\n" + "".join(lines))
        return path


@contextmanager
def serve(folder: Path) -> Iterator[Index]:
    """Serve the files in `folder` as an index."""
    index = Index(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            wanted = self.path.strip("/").split("/")
            if wanted[0] == "files":
                self.answer(200, (folder / wanted[1]).read_bytes(), "application/octet-stream")
                return
            key = wanted[-1].replace("-", "_")
            every = (path.name for path in folder.iterdir())
            names = [name for name in every if name.replace("-", "_").startswith(f"{key}_")]
            page = "".join(f'<a href="/files/{name}">{name}</a>' for name in names)
            self.answer(200 if names else 404, page.encode(), "text/html")

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
