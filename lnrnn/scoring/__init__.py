"""Sequences of any length in tables: lnrnn.Scorer, and `lnrnn score` for Parquet files.

The Scorer (scorer.py) reads and writes columns of tables (columns.py), of Arrow (arrow.py) or of Python
objects (objects.py). sequences.py runs the model over them. `lnrnn score` (bulk.py) has workers (engines.py)
compute row groups (job.py). Their results wait in a folder (journal.py) until output.py writes the file.
parquet.py reads and writes Parquet.
"""
