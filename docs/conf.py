"""Sphinx configuration."""

from __future__ import annotations

project = "windtunnel"
author = "The windtunnel developers"
project_copyright = "The windtunnel developers"
release = "0.1.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "windtunnel"
exclude_patterns = ["_build", "receipts/*.json"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = True
napoleon_google_docstring = False
nitpicky = False
