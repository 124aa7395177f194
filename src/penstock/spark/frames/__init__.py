"""Jobs as DataFrames: one transform runs all ready jobs of a type. See `run_frames`."""

from penstock.spark.frames._run import FramesReport, run_frames

__all__ = ["FramesReport", "run_frames"]
