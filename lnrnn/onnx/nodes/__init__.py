"""Reads RNN, LSTM, GRU and DynamicQuantizeLSTM nodes, and joins those of one network.

node.py reads one node. `Layers` of plain.py reads all nodes of a file and joins stacked layers.
"""
