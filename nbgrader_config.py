"""nbgrader's configuration: `nbgrader VERB ...` in this folder works on _nbgrader/.

What is set, and why, stands in autograder/gradebook/course.py. Yours comes below the call.
"""

import os
import sys

# nbgrader puts neither this folder nor the current one on the path.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from autograder.gradebook.course import configure

configure(get_config())  # noqa: F821 — traitlets puts it here
