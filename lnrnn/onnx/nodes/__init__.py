"""Finds nodes RNN, LSTM, GRU and DynamicQuantizeLSTM, and joins the layers of a network.

`Layers` of plain.py is made for a whole file. node.py reads a node, and stacks.py joins layers.
"""
