"""The documentation site: `sphinx-build -W -b html docs OUT`, without a network."""

import os
import re
import sys
from pathlib import Path

import attendax

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_site"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(DOCS / "_site"), os.environ.get("PYTHONPATH")])
)  # of cells

project = "attendax"
copyright = author = "the attendax authors"
release = version = attendax.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "formulas",
    "matrix",
    "cases",
    "moved",
    "law_tests",
    "public_names",
    "squares",
    "terms",
    "timings",
    "twins",
]
exclude_patterns = ["_build", "_site"]

pygments_dark_style = "monokai"
html_theme = "furo"
html_title = "attendax"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["attendax.css"]
html_js_files = ["matrix.js"]
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True  # on the terminal
nb_merge_streams = True

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # a module as a default would show where it lies
autodoc_typehints = "none"  # signatures would hide what they say behind unions; shapes and kinds are in the text
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # kinds are in the text
napoleon_custom_sections = [("Results", "params_style")]  # a Returns that names several


def setup(app):
    """Pages end a doctest by an empty line, which nobody needs to see."""

    def without_empty_lines(app, page, source):
        source[0] = re.sub(r"\n\n```$", "\n```", source[0], flags=re.MULTILINE)

    app.connect("source-read", without_empty_lines)
