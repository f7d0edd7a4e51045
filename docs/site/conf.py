"""The documentation site: the repository's Markdown pages as they are, and a reference from the docstrings.

    make docs-site     # runs/site/index.html; warnings are errors, broken links among them

Sphinx rather than MkDocs: it imports flowrt, so that the reference shows what runs (ops and layers have no
``def`` to read), its default role is what docstrings here use for names, and MkDocs' best theme, Material, is
maintained until May 2027 only. Furo is light and reads well on a telephone; MyST takes Markdown as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from reference import write_reference  # noqa: E402  of this folder

project = "flowrt"
author = "The flowrt authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
include_patterns = ["*.md", "docs/*.md", "docs/tutorials/*.md", "docs/explanation/*.md", "docs/site/**"]
exclude_patterns = ["docs/pictures/**", "docs/site/*.py", "docs/site/__pycache__/**"]
root_doc = "docs/site/index"
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}

html_theme = "furo"
html_title = "flowrt"
html_show_sphinx = False
html_extra_path = ["extra"]  # an index.html at the top
html_theme_options = {"sidebar_hide_name": False}

toc_object_entries_show_parents = "hide"
default_role = "py:obj"  # `name` in a docstring is a link if the reference has the name
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_display_short_literal_types = True
napoleon_use_rtype = False
myst_heading_anchors = 4
myst_enable_extensions = ["smartquotes"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = [
    "myst.header",  # pages that begin below a first heading
    "ref.python",  # names such as `RunOptions`, which several modules have
]


def setup(app: Any) -> None:
    """Write the pages of the reference before Sphinx looks for pages."""
    write_reference(Path(__file__).parent / "reference")
