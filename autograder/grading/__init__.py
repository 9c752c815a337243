"""Grades submissions: one after the other, in parallel, or on a cluster, and loses none.

``run``
    one submission, from its bytes to its result;
``keys``
    what a result depends on, as a hash;
``store``
    the kept results;
``batch``
    a class of submissions: what is kept already, what is to be graded, what is tried once more;
``pool``, ``cluster``
    the processes of this machine, and a Dask cluster;
``progress``
    the bar, the estimate, and what was slowest;
``command``
    ``python -m autograder grade``.

The trusted side is here. A learner's code runs behind :mod:`autograder.engine` alone.
"""
