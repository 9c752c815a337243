"""What runs as the warm process: it confines itself, imports torch once, and forks sandboxes.

It is started fresh by :mod:`autograder.engine.warm.start` and never holds a check, an answer or a
submission, because every sandbox inherits its memory. Linux only; nothing outside
:mod:`autograder.engine` imports it.
"""
