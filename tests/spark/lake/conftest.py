import importlib.util

# Where Spark is missing, tests/spark/test_presence.py says so.
collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]
