"""What goes wrong with the books, and is said in one line."""


class BooksError(Exception):
    """The gradebook cannot be written. Its text is one line."""
