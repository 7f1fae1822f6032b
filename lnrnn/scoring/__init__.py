"""lnrnn.Scorer runs a model over a column of sequences in a table; `lnrnn score` does it for Parquet files.

The Scorer (scorer.py) reads and writes columns of tables (columns.py), which are Arrow arrays (arrow.py) or
Python objects (objects.py). sequences.py runs the model. `lnrnn score` (bulk.py) sends each row group
(job.py) to a worker (engines.py). The results are kept in a folder (journal.py) until output.py has written
them to the output file. parquet.py reads and writes Parquet.
"""
