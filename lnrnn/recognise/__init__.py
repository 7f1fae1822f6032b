"""Recognises cells in graphs of plain operators: single steps, unrolled steps, and bodies of Loop and Scan.

`find_cells` of finding.py is called for a whole model, and calls the others:

    interface            what a front's graphs have, such as ONNX files (lnrnn.onnx)
    graph, folding       facts about nodes and values, and the arrays of constants
    sizes                sizes of axes, numbers of shapes, slices and elements of values
    terms, operators     write each value as a sum of products
    patterns, matching   compare the sums with the equations of lnrnn's cells; a match is a Step
    loops, masks         a Step in the body of a Loop or Scan becomes a Recurrence
    recurrences          equal Steps one after another become a Recurrence; joins directions and layers
    finding              a Step alone becomes a Recurrence, and each Recurrence a Part
    proof                run the foreign cell and its network on the same inputs, and compare them
"""
