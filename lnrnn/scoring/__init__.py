"""lnrnn.Scorer runs a model over a column of sequences in a table; `lnrnn score` does it for Parquet files.

The Scorer (scorer.py) reads and writes columns of tables (columns.py), which are Arrow arrays (arrow.py) or
Python objects (objects.py). sequences.py runs the model. `lnrnn score` (bulk.py) calls the Scorer with
batches of the files (parquet.py) that inputs.py finds, and reports its progress (report.py).
"""
