"""Sequences of every length in tables: lnrnn.Scorer, and `lnrnn score` for Parquet files.

scorer.py is what `lnrnn.Scorer` needs: columns.py, arrow.py and objects.py turn a column into
sequences.Sequences and results into a column, models.py loads. The rest is `lnrnn score`: bulk.py the
command, row_groups.py what is done with one row group, journal.py what is kept to go on after a kill,
engines.py where row groups are computed, output.py the file that comes out.
"""
