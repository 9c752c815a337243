"""What runs on the learner's side: nothing here knows a check, an answer or a score.

The package is all of ``autograder`` that a sandbox can read, so it must not import anything
outside itself, torch, NumPy, msgpack and the standard library (and Triton, where it is).
"""
