"""Converts models of PyTorch and Keras to networks of lnrnn."""
