"""Finds cells in plain operators: single steps, unrolled steps, and bodies of Loop and Scan.

`find_cells` of finding.py is called for a whole file, and calls the others:

    terms, operators     write each value as a sum of products
    patterns, matching   compare the sums with the equations of lnrnn's cells; a match is a Step
    node_steps           a Step that is a node LSTM or GRU for one time step
    loops, bodies, masks a Step in the body of a Loop or Scan becomes a Recurrence
    unrolled             equal Steps one after another become a Recurrence
    single_steps         a Step alone becomes a Recurrence
    joining              joins directions and layers
"""
