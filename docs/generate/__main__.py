"""Write the sources of the site into a folder: `python -m docs.generate FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.site import ROOT, write_site

write_site(ROOT, Path(sys.argv[1]))
