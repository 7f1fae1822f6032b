"""Runs whole ONNX files and keeps their states."""
