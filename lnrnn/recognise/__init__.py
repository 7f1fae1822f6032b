"""Recognises cells in graphs of plain operators: single steps, unrolled steps, and bodies of Loop and Scan.

`find_cells` of finding.py is called for a whole model, and calls the others:

    graph                what a front's graphs have: those of ONNX files (lnrnn.onnx) are one
    constants, values    facts about values: their arrays, ranks and sizes
    terms, operators     write each value as a sum of products
    patterns, matching   compare the sums with the equations of lnrnn's cells; a match is a Step
    loops, masks         a Step in the body of a Loop or Scan becomes a Recurrence
    unrolled             equal Steps one after another become a Recurrence
    finding              a Step alone becomes a Recurrence
    recurrences          joins directions and layers, and makes each a Part
    proof                run the foreign cell and its network on the same inputs, and compare them
"""
