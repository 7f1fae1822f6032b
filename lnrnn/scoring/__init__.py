"""Sequences of every length in tables: lnrnn.Scorer, and `lnrnn score` for Parquet files.

scorer.py is the Scorer: columns.py, arrow.py and objects.py turn a column into sequences.Sequences and
results into a column, models.py loads. The rest is `lnrnn score`: bulk.py the command, job.py what goes to a
worker and comes back, row_groups.py what a worker does, engines.py where workers run, journal.py and parts.py
what is kept to go on after a kill, output.py the file that comes out, parquet.py reading and writing,
progress.py what is said.
"""
