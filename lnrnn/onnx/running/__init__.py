"""Runs whole ONNX files and keeps their states.

model.py and model_stream.py are public. states.py finds states by the names of inputs and outputs.
"""
