"""The learner's side: what a notebook calls, and ``python -m autograder check``.

It runs wherever a notebook does: no POSIX-only module, and no package beyond torch, matplotlib,
anywidget and what Jupyter itself brings.
"""
