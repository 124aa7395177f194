"""A queue at work, from the first job to the report: `make demo`, or `python -m examples.demo --help`.

jobs      the app: ten kinds of handlers, good and bad
cast      the jobs that are submitted
workers   `penstock worker` processes, one of which is killed
watch     the display while they work
story     what the journal says about it
lake      the same as tables: sync, audit and report on Spark
places    the output folder, and the PostgreSQL server that it may start
"""
