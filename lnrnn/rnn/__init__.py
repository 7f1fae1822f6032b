"""Recurrent networks: their classes, calls, streams, training and statistics."""
