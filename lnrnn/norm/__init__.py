"""Norms and activations by themselves, without a network: functions of arrays, and layers with parameters."""
