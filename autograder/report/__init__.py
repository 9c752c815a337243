"""What an instructor reads after grading: a page, a table of grades, and the same as JSON.

``summary``
    counts a class: rows, pass rates, the most frequent mistakes;
``page``
    the page, one file that asks no other site for anything;
``write``
    puts page, ``grades.csv`` and ``report.json`` into a folder.
"""
