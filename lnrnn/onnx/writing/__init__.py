"""Writes networks as ONNX files.

`to_onnx` of writer.py calls networks.py. scan_bodies.py has the equations, and builder.py makes nodes.
"""
