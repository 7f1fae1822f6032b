"""Runs whole ONNX files and keeps their states.

model.py and model_stream.py are public. states.py finds the states, by names or by flow.py.
"""
