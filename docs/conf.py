"""Settings of the site that `make docs` builds without a network."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "docs" / "_ext")]

import jaxnorm  # noqa: E402, because the path above must be set first

project = "jaxnorm"
author = "The jaxnorm authors"
release = jaxnorm.__version__
html_title = f"jaxnorm {release}"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "inline_code",
    "links",
    "mathml",
    "notebooks",
    "pictures",
    "reference",
    "results",
]
exclude_patterns = ["_ext"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs/_ext/scorer.js")
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_theme_options = {
    "top_of_page_buttons": [],
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

default_role = "py:obj"  # makes Sphinx link names that stand in single backticks
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_attr_annotations = False
napoleon_custom_sections = [("Attributes", "params_style")]
python_maximum_signature_line_length = 70
python_display_short_literal_types = True
add_module_names = False
toc_object_entries_show_parents = "hide"
bibtex_bibfiles = ["../references.bib"]
