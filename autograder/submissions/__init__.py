"""From what was handed in to the code that is run: find, read, align, and cut out what is needed.

``find``
    the submissions in a notebook, a folder or a zip, and their bytes;
``read``
    a notebook's cells, whatever its age, encoding or damage;
``template``
    what was handed out: which cell of the student's notebook is which;
``align``
    which of the learner's cells answers which exercise;
``statements``
    which names a piece of code binds and which it needs;
``program``
    the code to run for one exercise, and nothing else;
``shown``
    names and messages as they may be printed.

Nothing here runs a learner's code. Every repair is a sentence in the notes.
"""
