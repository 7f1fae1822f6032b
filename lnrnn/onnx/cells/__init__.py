"""Finds cells in plain operators: single steps, unrolled steps, and bodies of Loop and Scan."""
