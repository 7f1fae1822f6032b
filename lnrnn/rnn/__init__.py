"""Recurrent networks: classes, calls, streams, training and batch norm statistics."""
