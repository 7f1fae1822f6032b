"""Writes networks as ONNX files.

`to_onnx` of writer.py calls networks.py. scan_bodies.py has the equations, and builder.py makes nodes.
`convert` of converter.py changes a file by replacement.py and functions.py.
"""

OPSETS = 13, 28  # the first and the last
LAYER_NORM = 17  # the first opset with LayerNormalization
RMS_NORM = 23  # the first opset with RMSNormalization
IR_VERSION = 8  # of opset 17; older runtimes refuse newer ones
