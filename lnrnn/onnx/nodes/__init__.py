"""Finds nodes RNN, LSTM, GRU and DynamicQuantizeLSTM, and joins the layers of a network.

`Layers` of plain.py is made for a whole file, and joins layers. node.py reads a node.
"""
