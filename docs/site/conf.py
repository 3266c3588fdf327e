"""The site of `docs/`: pages, essays, and the reference from docstrings. `python3 dev.py docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("NO_COLOR", "1")

project = "kdsl"
copyright = "the authors of kdsl, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "site_pages", "site_reference"]
source_suffix = {".md": "markdown", ".py": "essay"}
exclude_patterns = ["site", "deploy"]
html_theme = "furo"
html_title = "kdsl"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 90
