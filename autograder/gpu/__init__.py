"""Measures the reference's attention kernels on a GPU: ``python -m autograder.gpu``, ``make gpu``.

``agreement`` compares the compiled kernels with attention in float64, ``contenders`` holds what is
timed against one another, ``measure`` times and weighs it, ``goals`` judges the figures. The result
is one JSON file in ``book/data/gpu``, from which the chapter ``flash_attention`` draws its plots.
"""
