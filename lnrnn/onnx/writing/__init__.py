"""Writes networks as ONNX files.

`to_onnx` (writer.py) calls networks.py, with equations in scan_bodies.py and nodes from builder.py.
`convert` (converter.py) edits a file with replacement.py and functions.py.
"""

OPSETS = 13, 28  # the first and last supported opset
LAYER_NORM = 17  # the first opset with LayerNormalization
RMS_NORM = 23  # the first opset with RMSNormalization
IR_VERSION = 8  # of opset 17; runtimes refuse newer ones than they know
