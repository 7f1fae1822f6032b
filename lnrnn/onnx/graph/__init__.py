"""Reads ONNX files, and finds constants, sizes and names in their graphs."""
