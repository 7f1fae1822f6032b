"""Reads ONNX files, and finds constants, sizes and names in their graphs.

All other folders but `writing` rely on `read` of reading.py and `constant` of constants.py.
"""
