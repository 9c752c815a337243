"""The HTML book: what turns a student's notebook and its worked run into a page.

``worked`` joins the two and adds hints and answers, ``mathml`` sets formulas, ``lean`` cuts style
sheets and fonts to what the pages use, ``extension`` tells Sphinx about them.
"""
