"""Writes networks as ONNX files."""
