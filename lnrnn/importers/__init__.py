"""Conversion of models of PyTorch and Keras to models of lnrnn."""
