"""Finds nodes RNN, LSTM, GRU and DynamicQuantizeLSTM, and joins the layers of a network.

`plain_parts` of plain.py is called for a whole file. node.py reads a node, and stacks.py joins layers.
"""
