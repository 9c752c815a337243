"""Attacks on the grading engine, and faults: what each may get, and what it must not touch."""
