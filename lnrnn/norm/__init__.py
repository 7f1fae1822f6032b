"""Norms and activations: functions of arrays, and layers with parameters."""
