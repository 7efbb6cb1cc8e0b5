"""Sphinx builds the documentation from these Markdown pages and the package's docstrings: `make docs`."""

from sphinx.application import Sphinx

import anyorder

REPOSITORY = "https://github.com/anyorder/anyorder"

project = "anyorder"
author = "The anyorder authors"
copyright = author
release = version = anyorder.__version__
language = "en"
default_role = "code"  # `name` in a docstring is code, as it is in Markdown

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

myst_heading_anchors = 3
nb_execution_mode = "off"  # the tests execute the notebook; the site shows the outputs that are stored in it

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"show-inheritance": True}
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
suppress_warnings = ["ref.python"]  # names in shapes, such as (tokens, hidden), are not links
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"anyorder {release}"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}


def link_to_repository(app: Sphinx, page: str, text: list[str]) -> None:
    """Links to files outside of docs/ lead to the repository, as they do when the page is read there."""
    text[0] = text[0].replace("](../", f"]({REPOSITORY}/blob/main/")


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_to_repository)
