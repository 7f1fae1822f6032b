"""Recurrent networks: what a user makes and calls, how it is trained, and what it computes with."""
