"""Draw all pictures: `python -m docs.pictures`."""

from __future__ import annotations

from docs.pictures.draw import FOLDER, PICTURES, draw

for name in PICTURES:
    (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")
