"""How long things take: measurements for people, no tests."""
