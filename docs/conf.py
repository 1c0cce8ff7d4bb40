"""Settings of the site, which `make docs` builds."""

import os
import sys
from pathlib import Path

from sween import __version__

sys.path.insert(0, str(Path(__file__).parent))  # for mathml and repository_pages

project = "sween"
author = "the sween authors"
version = release = __version__

extensions = ["myst_parser", "repository_pages", "mathml"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # links to headings, as code hosts make them

repository_url = os.environ.get("SWEEN_REPOSITORY_URL", "")
"""Where the tree can be browsed, such as https://host/owner/sween/blob/main; without it, links to
files outside the site are shown as their paths."""

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = html_css_files = ["site.css"]
html_title = f"sween {version}"
html_show_sphinx = html_show_copyright = False

nitpicky = True
linkcheck_timeout = 20
