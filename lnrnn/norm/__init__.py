"""Norms and activations without a network: functions of arrays, and layers with parameters."""
