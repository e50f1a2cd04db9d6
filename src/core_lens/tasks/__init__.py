"""Tasks: labelled text with training, in-domain and out-of-domain parts, from hub, files or DataFrames."""

from .base import Metric, Role, Split, Task, split_clusters, without_overlap
from .glue import load_task
from .labels import BetterAssignment, better_assignment, class_order

__all__ = [
    "BetterAssignment",
    "Metric",
    "Role",
    "Split",
    "Task",
    "better_assignment",
    "class_order",
    "load_task",
    "split_clusters",
    "without_overlap",
]
