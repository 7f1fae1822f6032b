"""lnrnn.Scorer runs a model over a column of sequences in a table; `lnrnn score` over Parquet files.

scorer.py has the Scorer. columns.py reads and writes columns of tables, as Arrow arrays (arrow.py) or
Python objects (objects.py). sequences.py runs the model. `lnrnn score` (bulk.py) calls the Scorer with
batches of the files (parquet.py) that inputs.py finds, and reports progress (report.py).
"""
