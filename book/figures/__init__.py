"""The moving figures of the book: one ES module and one widget of the same name for each."""
