"""Small data sets, each with the script that made it and its licence."""
