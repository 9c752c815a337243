"""Joins the grading to nbgrader, which keeps the books.

``course``
    nbgrader's configuration, and the folder from which it releases;
``folders``
    which file in a learner's folder is the submission;
``beside``
    what lies beside that file: the time stamp, and data that go along;
``listing``
    what shows of files and folders without opening any;
``last_run``
    whether anything changed since the last run;
``restored``
    the notebook that nbgrader shows: what was handed out, with the learner's answers and results;
``preprocessors``
    how ``nbgrader`` itself grades and releases with this engine;
``books``
    grades and comments of a whole class into the gradebook;
``feedback``
    the pages of ``nbgrader generate_feedback``, whose layout is in ``templates/``;
``prose``
    Markdown and outputs on them: formulas as MathML, nothing that needs a script;
``safe``
    takes out of HTML what could run or fetch something;
``export``
    grades as CSV that a spreadsheet cannot mistake for formulas;
``command``
    ``python -m autograder autograde``.
"""
