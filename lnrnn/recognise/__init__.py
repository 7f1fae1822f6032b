"""Recognises the cells of others: converts them to networks, and proves the networks by running both."""
