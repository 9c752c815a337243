"""Makes the notebooks and the page from their three sources: prose, right answers, judgement.

:mod:`~autograder.compose.authored` reads ``book/<stem>.md``;
:mod:`~autograder.compose.names` says which names a cell needs and makes;
:mod:`~autograder.compose.chapter` puts a chapter together and finds what is malformed;
:mod:`~autograder.compose.files` knows where the results lie, and whether they are fresh;
:mod:`~autograder.compose.execute` runs the worked notebook;
:mod:`~autograder.compose.command` is ``python -m autograder compose``.
"""
