"""The one door through which every sentence for a learner or an instructor passes.

Sentences are written in English, wrapped in ``_()``, and collected with Babel (see
``CONTRIBUTING.md``). A translation is a catalogue in ``autograder/locale/<language>/LC_MESSAGES``;
no code changes. The language is read once, from ``COURSE_LANGUAGE``.
"""

import gettext
import os
from pathlib import Path

LANGUAGE = os.environ.get("COURSE_LANGUAGE", "en")

_catalogue = gettext.translation(
    "autograder", Path(__file__).parent / "locale", languages=[LANGUAGE], fallback=True
)
_ = _catalogue.gettext
ngettext = _catalogue.ngettext
